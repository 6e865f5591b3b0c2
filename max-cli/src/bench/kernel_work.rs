//! The work `kernel:NAME`: one registered kernel by itself, on a default or a given shape.

use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::{InferenceSession, Input, Inputs};
use max::graph::{BufferType, Graph, Parameters, TensorType, Type, ops};
use max::kernel::KernelLibrary;
use max::kernel::table::{Access, KernelDef, OperandDef};

use super::data;
use super::name::{shape, shape_text};
use super::roof::Cost;
use super::work::{Prepared, WorkError, repeat};
use crate::error::CliError;
use crate::variant::{Assignment, VariantArgs, dtype_names, missing};

/// A kernel, its operands and its parameters.
pub struct KernelWork {
    name: String,
    def: &'static KernelDef,
    /// Dtype and shape of each operand, in the order of the definition.
    operands: Vec<(DType, Vec<usize>)>,
    parameters: Parameters,
}

/// The shape of an operand of each rank, from 1, where none is given: about a million elements.
const DEFAULT_SHAPES: [&[usize]; 5] =
    [&[1 << 20], &[1024, 1024], &[16, 1024, 64], &[8, 16, 128, 64], &[4, 8, 8, 64, 64]];

impl KernelWork {
    /// The work `name`; `text` is what follows `kernel:`.
    ///
    /// # Errors
    /// When there is no such kernel, or dtypes, parameters or shapes do not fit it.
    pub fn find(
        name: &str,
        text: &str,
        library: &KernelLibrary,
        variant: &VariantArgs,
    ) -> Result<KernelWork, CliError> {
        let (kernel, dtypes, shapes) = split(text, library);
        let def = library.get(kernel)?;
        let misfit =
            |problem: String| CliError::WorkShape { name: name.to_owned(), problem, signature: def.signature.as_str() };
        let generics = def.generics.as_slice();
        if dtypes.len() > generics.len() {
            return Err(misfit(format!("{} dtypes, but the kernel has {} generics", dtypes.len(), generics.len())));
        }
        let mut variant = variant.clone();
        for (generic, dtype) in generics.iter().zip(dtypes) {
            variant.dtypes.push(Assignment { name: generic.name.as_str().to_owned(), value: dtype });
        }
        let chosen = variant.choose(def)?;
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
        for (i, (generic, dtype)) in generics.iter().zip(&chosen.dtypes).enumerate() {
            // A generic that no operand binds is a parameter.
            if !def.operands.as_slice().iter().any(|operand| usize::try_from(operand.dtype.generic) == Ok(i)) {
                parameters = parameters.with(generic.name.as_str(), *dtype);
            }
        }
        let name = full_name(def, &chosen.dtypes, &operands);
        Ok(KernelWork { name, def, operands, parameters })
    }

    /// Its whole name, with dtypes and shapes: `kernel:softmax:f32:77x1000`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The least that it needs, as far as the signature tells: every operand is moved once.
    pub fn cost(&self) -> Cost {
        let size =
            |(dtype, shape): &(DType, Vec<usize>)| (shape.iter().product::<usize>() * dtype.size_in_bytes()) as u64;
        let moved = self.def.operands.as_slice().iter().zip(&self.operands).map(|(operand, described)| {
            let times = if operand.access == Access::InOut { 2 } else { 1 };
            times * size(described)
        });
        Cost { flops: 0, bytes: moved.sum(), reads_only: false, dtype: DType::F32 }
    }

    /// Makes operands, builds a graph of the kernel alone and loads it.
    ///
    /// # Errors
    /// When the graph cannot be built or loaded, or there is no memory for the operands.
    pub fn prepare<'a>(&self, session: &InferenceSession, library: &KernelLibrary) -> Result<Prepared<'a>, WorkError> {
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
        let graph = Graph::new(self.name.as_str(), in_types);
        graph.set_kernel_library(library.clone());
        let (op, parameters) = (self.def.name.as_str(), self.parameters.clone());
        let results = if inputs.iter().any(|(_, in_place)| *in_place) {
            ops::inplace_custom(op, place, graph.inputs(), out_types, parameters)?
        } else {
            graph.custom(op, place, graph.inputs(), out_types, parameters)?
        };
        graph.output(results)?;
        let model = session.load(&graph)?;
        Ok(repeat(device, move || {
            let operands: Inputs<'_> = inputs
                .iter_mut()
                .map(|(tensor, in_place)| if *in_place { Input::Buffer(tensor) } else { Input::Tensor(tensor) })
                .collect();
            model.execute(operands.into_vec())?;
            Ok(())
        }))
    }
}

/// The kernel's name, dtypes and shapes in `softmax:f32:77x1000`, of which only the first must be there. Names of kernels
/// may hold colons too.
fn split<'a>(text: &'a str, library: &KernelLibrary) -> (&'a str, Vec<DType>, Option<&'a str>) {
    let (mut kernel, mut dtypes, mut shapes) = (text, Vec::new(), None);
    while library.get(kernel).is_err()
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

fn full_name(def: &KernelDef, dtypes: &[DType], operands: &[(DType, Vec<usize>)]) -> String {
    let first = operands.first().map_or(&[][..], |(_, shape)| shape);
    let shapes = if operands.iter().all(|(_, shape)| shape == first) {
        shape_text(first)
    } else {
        let named = def.operands.as_slice().iter().zip(operands);
        named.map(|(o, (_, shape))| format!("{}={}", o.name.as_str(), shape_text(shape))).collect::<Vec<_>>().join(",")
    };
    let dtypes = if dtypes.is_empty() { String::new() } else { format!("{}:", dtype_names(dtypes)) };
    format!("kernel:{}:{dtypes}{shapes}", def.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str) -> Result<KernelWork, CliError> {
        let variant = VariantArgs::default();
        KernelWork::find(&format!("kernel:{text}"), text, &KernelLibrary::linked(), &variant)
    }

    #[track_caller]
    fn shapes(text: &str) -> Vec<Vec<usize>> {
        let work = find(text).unwrap_or_else(|error| panic!("{error}"));
        work.operands.into_iter().map(|(_, shape)| shape).collect()
    }

    #[test]
    fn a_name_says_shapes_and_dtypes_and_reads_back() {
        for (text, name) in [
            ("relu", "kernel:relu:f32:1024x1024"),
            ("relu:5", "kernel:relu:f32:5"),
            ("softmax:77x1000", "kernel:softmax:f32:77x1000"),
            ("softmax:bf16", "kernel:softmax:bf16:1024x1024"),
            ("cast:f32-i64:2x3x4", "kernel:cast:f32-i64:2x3x4"),
            ("matmul:a=2x3,b=3x4,c=2x4", "kernel:matmul:f32:c=2x4,a=2x3,b=3x4"),
        ] {
            let work = find(text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(work.name(), name);
            let again = find(&name["kernel:".len()..]).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((again.name(), &again.operands), (name, &work.operands));
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
