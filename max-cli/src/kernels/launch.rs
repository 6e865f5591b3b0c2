//! [`KernelLaunch`]: one registered kernel by itself, on operands of a default or a given shape.

use max::driver::{Device, DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::{InferenceSession, Input, Inputs, Model};
use max::graph::{BufferType, Graph, Parameters, TensorType, Type, ops};
use max::kernel::KernelLibrary;
use max::kernel::abi::{Access, KernelDef, OperandDef};

use crate::data;
use crate::error::{CliError, WorkError};
use crate::kernels::variant::{Assignment, Variant, VariantArgs, dtype_names, missing};
use crate::name::{shape, shape_text};

/// A kernel, its operands and its parameters.
pub struct KernelLaunch {
    pub def: &'static KernelDef,
    /// The dtype of each generic.
    dtypes: Vec<DType>,
    /// Dtype and shape of each operand, in the order of the definition.
    pub operands: Vec<(DType, Vec<usize>)>,
    parameters: Parameters,
}

/// A model of one kernel, and what it is executed on.
pub struct Loaded {
    pub model: Model,
    /// The operands that are read, and whether the kernel writes to them.
    inputs: Vec<(Tensor, bool)>,
}

/// The shape of an operand of each rank, from 1, where none is given: about a million elements.
const DEFAULT_SHAPES: [&[usize]; 5] =
    [&[1 << 20], &[1024, 1024], &[16, 1024, 64], &[8, 16, 128, 64], &[4, 8, 8, 64, 64]];

/// What `softmax:f32:77x1000` names.
pub struct Named<'a> {
    pub def: &'static KernelDef,
    /// The dtypes of its generics; none if they are left open.
    pub dtypes: Vec<DType>,
    /// The shapes of its operands, in text.
    pub shapes: Option<&'a str>,
}

impl<'a> Named<'a> {
    /// Reads the name of a kernel, with or without dtypes and shapes.
    ///
    /// # Errors
    /// When there is no such kernel.
    pub fn read(text: &'a str, library: &KernelLibrary) -> Result<Named<'a>, CliError> {
        let (kernel, dtypes, shapes) = split(text, library);
        Ok(Named { def: library.table(kernel)?, dtypes, shapes })
    }

    /// The form of the kernel, where options give what the name leaves open.
    ///
    /// # Errors
    /// When dtypes or parameters do not fit the kernel; `name` is what the message calls it.
    pub fn variant(&self, name: &str, options: &VariantArgs) -> Result<Variant, CliError> {
        let generics = self.def.generics.as_slice();
        if self.dtypes.len() > generics.len() {
            let problem = format!("{} dtypes, but the kernel has {} generics", self.dtypes.len(), generics.len());
            let signature = self.def.signature.as_str();
            return Err(CliError::WorkShape { name: name.to_owned(), problem, signature });
        }
        let mut options = options.clone();
        for (generic, dtype) in generics.iter().zip(&self.dtypes) {
            options.dtypes.push(Assignment { name: generic.name.as_str().to_owned(), value: *dtype });
        }
        options.choose(self.def)
    }
}

impl KernelLaunch {
    /// A launch of a form of a kernel, on operands of the shapes that `shapes` gives in text; `name` is what messages call it.
    ///
    /// # Errors
    /// When a parameter is missing, or shapes do not fit the kernel.
    pub fn new(
        name: &str,
        def: &'static KernelDef,
        chosen: &Variant,
        shapes: Option<&str>,
    ) -> Result<KernelLaunch, CliError> {
        let misfit =
            |problem: String| CliError::WorkShape { name: name.to_owned(), problem, signature: def.signature.as_str() };
        let shapes = shapes_of(def, shapes, misfit)?;
        let dtype = |operand: &OperandDef| match usize::try_from(operand.dtype.generic) {
            Ok(i) => chosen.dtypes.get(i).copied(),
            Err(_) => DType::from_code(operand.dtype.fixed),
        };
        let dtypes = def.operands.as_slice().iter().map(|operand| dtype(operand).unwrap_or(DType::F32));
        let operands: Vec<(DType, Vec<usize>)> = dtypes.zip(shapes).collect();
        let mut bytes = 0u64;
        for (dtype, shape) in &operands {
            let size = shape.iter().try_fold(dtype.size_in_bytes() as u64, |all, dim| all.checked_mul(*dim as u64));
            let total = size.and_then(|size| bytes.checked_add(size)).filter(|total| *total < 1 << 62);
            bytes = total.ok_or_else(|| misfit("no memory holds operands of these sizes".to_owned()))?;
        }
        let mut parameters = Parameters::new();
        for (param, given) in def.params.as_slice().iter().zip(&chosen.params) {
            match given {
                Some(value) => parameters = parameters.with(param.name.as_str(), value.clone()),
                None if param.has_default => {}
                None => return Err(missing(def, param)),
            }
        }
        for (i, (generic, dtype)) in def.generics.as_slice().iter().zip(&chosen.dtypes).enumerate() {
            // A generic that no operand binds is a parameter.
            if !def.operands.as_slice().iter().any(|operand| usize::try_from(operand.dtype.generic) == Ok(i)) {
                parameters = parameters.with(generic.name.as_str(), *dtype);
            }
        }
        Ok(KernelLaunch { def, dtypes: chosen.dtypes.clone(), operands, parameters })
    }

    /// Its whole name, with dtypes and shapes: `softmax:f32:77x1000`.
    pub fn name(&self) -> String {
        let parts = [self.def.name.as_str().to_owned(), dtype_names(&self.dtypes), self.shapes()];
        parts.iter().filter(|part| !part.is_empty()).map(String::as_str).collect::<Vec<_>>().join(":")
    }

    /// The dtypes of its generics: `f32-i64`.
    pub fn dtypes(&self) -> String {
        dtype_names(&self.dtypes)
    }

    /// The shape of all operands, or of each by name.
    pub fn shapes(&self) -> String {
        let first = self.operands.first().map_or(&[][..], |(_, shape)| shape);
        if self.operands.iter().all(|(_, shape)| shape == first) {
            return shape_text(first);
        }
        let named = self.def.operands.as_slice().iter().zip(&self.operands);
        named.map(|(o, (_, shape))| format!("{}={}", o.name.as_str(), shape_text(shape))).collect::<Vec<_>>().join(",")
    }

    /// The operands that the kernel writes, as [`Loaded::written`] gives them.
    pub fn written_names(&self) -> impl Iterator<Item = &'static str> {
        let of = |access| move |operand: &&OperandDef| operand.access == access;
        let operands = self.def.operands.as_slice();
        let (results, changed) = (operands.iter().filter(of(Access::Out)), operands.iter().filter(of(Access::InOut)));
        results.chain(changed).map(|operand| operand.name.as_str())
    }

    /// Makes operands, builds a graph of the kernel alone and loads it, for the session's first device.
    ///
    /// # Errors
    /// When the graph cannot be built or loaded, or there is no memory for the operands.
    pub fn load(&self, session: &InferenceSession, library: &KernelLibrary) -> Result<Loaded, WorkError> {
        let device = session.devices()[0];
        let place = DeviceRef::from(&device);
        let mut in_types: Vec<Type> = Vec::new();
        let mut out_types: Vec<Type> = Vec::new();
        let mut inputs: Vec<(Tensor, bool)> = Vec::new();
        for (seed, (operand, (dtype, shape))) in (1..).zip(self.def.operands.as_slice().iter().zip(&self.operands)) {
            let ty = TensorType::new(*dtype, shape.as_slice(), place);
            if operand.access == Access::Out {
                out_types.push(ty.into());
                continue;
            }
            let in_place = operand.access == Access::InOut;
            inputs.push((data::normal(*dtype, shape, seed)?.to(&device)?, in_place));
            in_types.push(if in_place { BufferType::new(*dtype, shape.as_slice(), place).into() } else { ty.into() });
        }
        let graph = Graph::new(self.name(), in_types);
        graph.set_kernel_library(library.clone());
        let (op, parameters) = (self.def.name.as_str(), self.parameters.clone());
        let results = if inputs.iter().any(|(_, in_place)| *in_place) {
            ops::inplace_custom(op, place, graph.inputs(), out_types, parameters)?
        } else {
            graph.custom(op, place, graph.inputs(), out_types, parameters)?
        };
        graph.output(results)?;
        Ok(Loaded { model: session.load(&graph)?, inputs })
    }
}

impl Loaded {
    /// Executes the model.
    ///
    /// # Errors
    /// When that fails.
    pub fn execute(&mut self) -> Result<Vec<Tensor>, WorkError> {
        let inputs = self.inputs.iter_mut();
        let operands: Inputs<'_> = inputs
            .map(|(tensor, in_place)| if *in_place { Input::Buffer(tensor) } else { Input::Tensor(tensor) })
            .collect();
        Ok(self.model.execute(operands.into_vec())?)
    }

    /// Executes the model, and copies what the kernel wrote to the host: results, and what it changed in place, both in
    /// the order of its operands.
    ///
    /// # Errors
    /// When that fails.
    pub fn written(&mut self) -> Result<Vec<Tensor>, WorkError> {
        let results = self.execute()?;
        let changed = self.inputs.iter().filter(|(_, in_place)| *in_place).map(|(tensor, _)| tensor);
        let host = Device::cpu();
        results.iter().chain(changed).map(|tensor| Ok(tensor.to(&host)?)).collect()
    }
}

/// The kernel's name, dtypes and shapes in `softmax:f32:77x1000`, of which only the first must be there. Names of kernels
/// may hold colons too.
fn split<'a>(text: &'a str, library: &KernelLibrary) -> (&'a str, Vec<DType>, Option<&'a str>) {
    let (mut kernel, mut dtypes, mut shapes) = (text, Vec::new(), None);
    while library.table(kernel).is_err()
        && let Some((rest, last)) = kernel.rsplit_once(':')
    {
        match last.split('-').map(str::parse).collect() {
            Ok(named) => dtypes = named,
            Err(_) => shapes = Some(last),
        }
        kernel = rest;
    }
    (kernel, dtypes, shapes)
}

/// The shape of each operand: by name in `x=77x1000,y=77`, or from one shape for all of them, or the default.
fn shapes_of(
    def: &'static KernelDef,
    text: Option<&str>,
    misfit: impl Fn(String) -> CliError,
) -> Result<Vec<Vec<usize>>, CliError> {
    let operands = def.operands.as_slice();
    let read = |text: &str| shape(text).ok_or_else(|| misfit(format!("`{text}` is no shape such as `77x1000`")));
    let most = operands.iter().map(|operand| operand.rank.max(0) as usize).max().unwrap_or(0);
    let (common, named) = match text {
        Some(text) if text.contains('=') => {
            let mut named = Vec::new();
            for item in text.split(',') {
                let (name, sizes) =
                    item.split_once('=').ok_or_else(|| misfit(format!("`{item}` is not NAME=SHAPE")))?;
                let Some(i) = operands.iter().position(|operand| operand.name.as_str() == name) else {
                    return Err(misfit(format!("the kernel has no operand `{name}`")));
                };
                named.push((i, read(sizes)?));
            }
            (None, named)
        }
        Some(text) => (Some(read(text)?), Vec::new()),
        None => (None, Vec::new()),
    };
    let rank = if most == 0 { 2 } else { most };
    let common = match (common, named.first()) {
        (Some(common), _) => common,
        // Elementwise operands have one shape: whichever was named.
        (None, Some((_, first))) if most == 0 => first.clone(),
        (None, _) => DEFAULT_SHAPES.get(rank - 1).map_or_else(|| vec![8; rank], |shape| shape.to_vec()),
    };
    let shape_of = |(i, operand): (usize, &OperandDef)| {
        if let Some((_, shape)) = named.iter().find(|(named, _)| *named == i) {
            let fits = operand.rank < 0 || operand.rank as usize == shape.len();
            let (name, rank) = (operand.name.as_str(), operand.rank);
            return match fits {
                true => Ok(shape.clone()),
                false => Err(misfit(format!("`{name}` has rank {rank}, but was given `{}`", shape_text(shape)))),
            };
        }
        match usize::try_from(operand.rank) {
            Err(_) => Ok(common.clone()),
            Ok(rank) if rank > common.len() => {
                let (name, given) = (operand.name.as_str(), shape_text(&common));
                Err(misfit(format!("`{name}` has rank {rank}, so `{given}` is too short")))
            }
            // One value for each row, and one row of values for all rows.
            Ok(rank) if operand.access == Access::Out => Ok(common[..rank].to_vec()),
            Ok(rank) => Ok(common[common.len() - rank..].to_vec()),
        }
    };
    operands.iter().enumerate().map(shape_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str) -> Result<KernelLaunch, CliError> {
        let named = Named::read(text, &KernelLibrary::linked())?;
        KernelLaunch::new(text, named.def, &named.variant(text, &VariantArgs::default())?, named.shapes)
    }

    #[track_caller]
    fn shapes(text: &str) -> Vec<Vec<usize>> {
        let work = find(text).unwrap_or_else(|error| panic!("{error}"));
        work.operands.into_iter().map(|(_, shape)| shape).collect()
    }

    #[test]
    fn a_name_says_shapes_and_dtypes_and_reads_back() {
        for (text, name) in [
            ("relu", "relu:f32:1024x1024"),
            ("relu:5", "relu:f32:5"),
            ("softmax:77x1000", "softmax:f32:77x1000"),
            ("softmax:bf16", "softmax:bf16:1024x1024"),
            ("cast:f32-i64:2x3x4", "cast:f32-i64:2x3x4"),
            ("matmul:a=2x3,b=3x4,c=2x4", "matmul:f32:c=2x4,a=2x3,b=3x4"),
        ] {
            let work = find(text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(work.name(), name);
            let again = find(&work.name()).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((again.name(), &again.operands), (work.name(), &work.operands));
        }
    }

    #[test]
    fn operands_of_lower_rank_take_part_of_the_shape() {
        // Of three elementwise operands; and of an index for each row.
        assert_eq!(shapes("add:3x5"), [[3, 5], [3, 5], [3, 5]]);
        assert_eq!(shapes("gather:2x3x5"), [vec![2, 3, 5], vec![2, 3, 5], vec![5]]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let error = |text: &str| find(text).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error("softmaxx:3x5").contains("no kernel is named `softmaxx`"), "{}", error("softmaxx:3x5"));
        assert!(error("softmax:3x").contains("`3x` is no shape"), "{}", error("softmax:3x"));
        assert!(error("softmax:3").contains("`y` has rank 2, so `3` is too short"), "{}", error("softmax:3"));
        assert!(error("matmul:q=2x3").contains("no operand `q`"), "{}", error("matmul:q=2x3"));
        assert!(error("matmul:a=2").contains("`a` has rank 2"), "{}", error("matmul:a=2"));
        assert!(error("softmax:i8").contains("`T` cannot be int8"), "{}", error("softmax:i8"));
        assert!(error("relu:f32-f32").contains("2 dtypes, but the kernel has 1"), "{}", error("relu:f32-f32"));
        assert!(error("relu:4000000000x4000000000").contains("no memory"));
        assert!(error("layer_norm").contains("--param epsilon=VALUE"), "{}", error("layer_norm"));
    }
}
