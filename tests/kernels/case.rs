//! What a kernel must compute: a row of the table, and the problems drawn from it.

use max::dtype::DType;
use max::kernel::abi::{Access, KernelDef, KernelKind, ParamBits, ParamKind, hash_str};
use max::kernel::{BoundKernel, Form, KernelError, KernelLibrary, ParamArg};

use crate::number::{Num, Values, Want, compute, draw, encode, min_positive};
use crate::random::Rng;
use crate::tensor::{Layout, Tensor};

/// A parameter's name and value.
pub type Param = (&'static str, ParamArg<'static>);

/// A kernel's reference: the wanted elements of each result, in row-major order.
type Reference = Box<dyn Fn(&Problem) -> Vec<Vec<Want>> + Send + Sync>;

/// Sizes of problems, and what makes their values.
type Made = (Vec<[i64; 5]>, fn(&mut Problem));

/// A row of the table.
pub struct Case {
    pub kernel: &'static str,
    /// The error allowed beside the final rounding, in units of the compute dtype at the scale that the reference gives;
    /// 0 where results are exact.
    pub ulps: f64,
    /// Whether all engines with fused multiply-add give the same bits: whether nothing is reduced.
    pub same_bits: bool,
    /// How the elements of each input are drawn; the last stands for the rest.
    pub values: Vec<Values>,
    /// The operands' dims from five sizes; of an elementwise kernel all operands have the same.
    pub shapes: fn(&[i64]) -> Vec<Vec<i64>>,
    /// Sizes that are tried as they are, beside those that are drawn.
    pub sizes: Vec<[i64; 5]>,
    /// The most multiplications, or elements, of a problem.
    pub work: fn(&[Vec<i64>]) -> i64,
    params: fn(&mut Rng) -> Vec<Param>,
    reference: Reference,
    /// Sizes of problems whose values are made to belong together, and how: of values that are drawn, few lead through all
    /// loops of a kernel.
    pub made: Option<Made>,
}

/// Operands and parameters for one launch.
#[derive(Clone)]
pub struct Problem {
    pub def: &'static KernelDef,
    /// The dtype bound to each generic.
    pub dtypes: Vec<DType>,
    pub params: Vec<Param>,
    pub operands: Vec<Tensor>,
    /// The elements of each input, none of a result.
    pub values: Vec<Vec<Num>>,
    /// Whether the last warp of a block has its turn first in the simulator.
    pub descending_warps: bool,
}

impl Problem {
    pub fn dims(&self, operand: usize) -> &[i64] {
        &self.operands[operand].dims
    }

    /// Gives an input other elements.
    pub fn set(&mut self, operand: usize, mut element: impl FnMut(usize) -> Num) {
        let tensor = &mut self.operands[operand];
        let dtype = tensor.dtype;
        let mut places = 0..;
        tensor.fill(|| encode(dtype, element(places.next().unwrap_or(0))));
        self.values[operand] = tensor.values();
    }

    /// The elements of an input.
    pub fn floats(&self, operand: usize) -> Vec<f64> {
        self.values[operand].iter().map(|v| v.float()).collect()
    }

    #[track_caller]
    pub fn param(&self, name: &str) -> ParamArg<'static> {
        self.params.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no parameter {name}")).1
    }

    pub fn flag(&self, name: &str) -> bool {
        self.param(name) == ParamArg::Bool(true)
    }

    #[track_caller]
    pub fn number(&self, name: &str) -> f64 {
        match self.param(name) {
            ParamArg::Float(v) => v,
            ParamArg::Int(v) => v as f64,
            other => panic!("{name} is {other:?}"),
        }
    }

    /// The dtype that results of the kernel's first generic compute in.
    pub fn compute(&self) -> DType {
        compute(self.dtypes.first().copied().unwrap_or(DType::Bool))
    }

    /// The smallest normal number of that dtype: what stands between a small result's scale and denormal steps.
    pub fn tiny(&self) -> f64 {
        if self.compute().is_float() { min_positive(self.compute()) } else { 0.0 }
    }

    /// The bits of each parameter as kernels take them.
    pub fn param_bits(&self) -> Vec<ParamBits> {
        let bits = |(name, kind, default): (&str, ParamKind, ParamBits)| {
            let given = self.params.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
            match (given, kind) {
                // What launches give has no value here.
                (None, _) | (Some(ParamArg::Dynamic), _) => default,
                (Some(ParamArg::Int(v)), ParamKind::Float) => (v as f64).to_bits(),
                (Some(ParamArg::Int(v)), _) => v as u64,
                (Some(ParamArg::Bool(v)), _) => v.into(),
                (Some(ParamArg::Float(v)), _) => v.to_bits(),
                (Some(ParamArg::String(v)), _) => hash_str(v),
                (Some(ParamArg::DType(v)), _) => v.code().into(),
            }
        };
        self.def.params.as_slice().iter().map(|p| bits((p.name.as_str(), p.kind, p.default))).collect()
    }

    /// The code of the dtype that each generic was compiled for.
    pub fn codes(&self) -> Vec<u8> {
        let generics = self.def.generics.as_slice().iter();
        generics.zip(&self.dtypes).filter_map(|(generic, &dtype)| generic.code(dtype)).collect()
    }

    /// The kernel bound to the operands' dtypes and the parameters.
    pub fn bind(&self, form: Form) -> Result<BoundKernel, KernelError> {
        let dtypes: Vec<DType> = self.operands.iter().map(|t| t.dtype).collect();
        let param = |name: &str| {
            let given = self.params.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
            let generic = self.def.generics.as_slice().iter().position(|g| g.name.as_str() == name);
            given.or_else(|| generic.map(|g| ParamArg::DType(self.dtypes[g])))
        };
        self.def.bind(&dtypes, param, form)
    }

    /// What the engines are given: for messages.
    pub fn describe(&self) -> String {
        let operand = |t: &Tensor| format!("{}{:?} strides {:?}", t.dtype.short_name(), t.dims, t.strides);
        let operands: Vec<String> = self.operands.iter().map(operand).collect();
        let (name, order) = (self.def.name.as_str(), if self.descending_warps { ", last warps first" } else { "" });
        format!("{name}({}) {:?}{order}", operands.join(", "), self.params)
    }
}

/// What a problem is drawn from.
#[derive(Clone, Debug)]
pub struct Draw {
    /// The sizes that dims are taken from.
    pub sizes: Vec<i64>,
    /// How many of them are dims of an elementwise kernel.
    pub rank: usize,
    /// A layout for each operand.
    pub layouts: Vec<Layout>,
    /// The most work: larger sizes are cut.
    pub limit: i64,
    pub seed: u64,
}

impl Case {
    /// An elementwise kernel: the reference maps the elements of the inputs to those of the results.
    pub fn map(kernel: &'static str, f: impl Fn(&Problem, &[Num]) -> Want + Send + Sync + 'static) -> Case {
        let reference = move |p: &Problem| {
            let inputs: Vec<&Vec<Num>> = p.values.iter().filter(|v| !v.is_empty()).collect();
            let element = |i: usize| f(p, &inputs.iter().map(|v| v[i]).collect::<Vec<Num>>());
            vec![(0..p.operands[0].len()).map(element).collect()]
        };
        Case {
            kernel,
            ulps: 0.0,
            same_bits: true,
            values: vec![Values::Any],
            shapes: |sizes| vec![sizes.to_vec()],
            work: |shapes| elements(&shapes[0]),
            sizes: Vec::new(),
            params: |_| Vec::new(),
            reference: Box::new(reference),
            made: None,
        }
    }

    /// A program kernel, with its operands' dims.
    pub fn program(
        kernel: &'static str,
        shapes: fn(&[i64]) -> Vec<Vec<i64>>,
        reference: impl Fn(&Problem) -> Vec<Vec<Want>> + Send + Sync + 'static,
    ) -> Case {
        Case {
            kernel,
            ulps: 0.0,
            same_bits: true,
            values: vec![Values::Mostly(-4.0, 4.0)],
            shapes,
            work: |shapes| shapes.iter().map(|dims| elements(dims)).max().unwrap_or(1),
            sizes: Vec::new(),
            params: |_| Vec::new(),
            reference: Box::new(reference),
            made: None,
        }
    }

    /// Allows an error.
    pub fn ulps(self, ulps: f64) -> Case {
        Case { ulps, ..self }
    }

    /// Says that results are reductions, whose order is an engine's own.
    pub fn reduces(self) -> Case {
        Case { same_bits: false, ..self }
    }

    pub fn values(self, values: &[Values]) -> Case {
        Case { values: values.to_vec(), ..self }
    }

    pub fn params(self, params: fn(&mut Rng) -> Vec<Param>) -> Case {
        Case { params, ..self }
    }

    pub fn sizes(self, sizes: impl IntoIterator<Item = [i64; 5]>) -> Case {
        Case { sizes: sizes.into_iter().collect(), ..self }
    }

    pub fn made(self, sizes: impl IntoIterator<Item = [i64; 5]>, make: fn(&mut Problem)) -> Case {
        Case { made: Some((sizes.into_iter().collect(), make)), ..self }
    }

    pub fn work(self, work: fn(&[Vec<i64>]) -> i64) -> Case {
        Case { work, ..self }
    }

    /// The kernel.
    pub fn def(&self) -> &'static KernelDef {
        KernelLibrary::linked().table(self.kernel).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Draws a problem.
    pub fn problem(&self, dtypes: &[DType], from: &Draw) -> Problem {
        let def = self.def();
        let mut rng = Rng(from.seed);
        let operands = def.operands.as_slice();
        let mut sizes = from.sizes.clone();
        if def.kind == KernelKind::Elementwise {
            sizes.truncate(from.rank);
        }
        let mut shapes = (self.shapes)(&sizes);
        while (self.work)(&shapes) > from.limit {
            let largest = (0..sizes.len()).max_by_key(|&i| sizes[i]).expect("sizes");
            sizes[largest] -= sizes[largest] / 3 + 1;
            shapes = (self.shapes)(&sizes);
        }
        let mut tensors = Vec::new();
        let mut values = Vec::new();
        for (k, operand) in operands.iter().enumerate() {
            let dtype = match usize::try_from(operand.dtype.generic) {
                Ok(generic) => dtypes[generic],
                Err(_) => DType::from_code(operand.dtype.fixed).expect("a dtype"),
            };
            let dims = shapes.get(k).unwrap_or(&shapes[0]);
            let layout = from.layouts.get(k).copied().unwrap_or_default();
            let layout = match operand.access {
                Access::In => layout,
                Access::Out if operand.leaves_out() => layout.contiguous(),
                Access::Out | Access::InOut => layout.writable(),
            };
            let mut tensor = Tensor::new(dtype, dims, layout, &mut rng);
            if operand.access == Access::Out {
                values.push(Vec::new());
            } else {
                let kind = self.values.get(k).or(self.values.last()).copied().unwrap_or(Values::Any);
                tensor.fill(|| draw(dtype, kind, &mut rng));
                values.push(tensor.values());
            }
            tensors.push(tensor);
        }
        let params = (self.params)(&mut rng);
        Problem {
            def,
            dtypes: dtypes.to_vec(),
            params,
            operands: tensors,
            values,
            descending_warps: from.seed.is_multiple_of(2),
        }
    }

    pub fn want(&self, problem: &Problem) -> Vec<Vec<Want>> {
        (self.reference)(problem)
    }
}

/// The elements of a tensor, an empty dim counted as 1: it does not make the others cheap.
pub fn elements(dims: &[i64]) -> i64 {
    dims.iter().map(|&d| d.max(1)).product()
}

/// Every binding of a kernel's generics. Of dtypes that are only moved, one of each size stands for all.
pub fn bindings(def: &KernelDef) -> Vec<Vec<DType>> {
    let mut all = vec![Vec::new()];
    for generic in def.generics.as_slice() {
        let moved = [DType::I8, DType::U16, DType::U32, DType::I64];
        let dtypes: Vec<DType> = if generic.by_size {
            moved.into_iter().filter(|&d| generic.code(d).is_some()).collect()
        } else {
            generic.dtypes.as_slice().iter().filter_map(|&code| DType::from_code(code)).collect()
        };
        all = all.iter().flat_map(|b| dtypes.iter().map(|&d| [&b[..], &[d]].concat())).collect();
    }
    all
}
