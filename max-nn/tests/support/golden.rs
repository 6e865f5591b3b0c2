//! The golden cases, and each function of `functional` on their operands.

use std::path::{Path, PathBuf};

use max::driver::{self, Device, DeviceRef, SliceIndex};
use max::dtype::{DType, Element};
use max::functional::{self as F, *};
use max::tensor::{Operand, Tensor};
use max_core::dispatch;
use safetensors::SafeTensors;
use serde_json::Value as Json;

/// The functions of MAX's module `functional`.
pub const FUNCTIONS: &str = "abs add argmax argmin argsort as_interleaved_complex atanh avg_pool2d band_part broadcast_to cast \
    chunk constant constant_external conv2d conv2d_transpose conv3d cos cumsum custom div equal erf exp flatten floor fold \
    functional gather gather_nd gelu greater greater_equal hann_window irfft is_inf is_nan layer_norm log log1p logical_and \
    logical_not logical_or logical_xor logsoftmax masked_scatter matmul max max_pool2d mean min mod mul negate nonzero \
    not_equal outer pad permute pow range relu repeat_interleave reshape round rsqrt scatter scatter_nd sigmoid silu sin \
    slice_tensor softmax split sqrt squeeze stack sub sum tanh tile top_k transfer_to transpose trunc unsqueeze where";

/// The arguments of a case beside tensors, and the device of those that have no operand.
pub struct Arguments<'a>(pub &'a Json, pub DeviceRef);

impl Arguments<'_> {
    fn int(&self, name: &str) -> i64 {
        self.0[name].as_i64().unwrap_or_else(|| panic!("no argument {name} in {}", self.0))
    }

    fn float(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or_else(|| panic!("no argument {name} in {}", self.0))
    }

    fn flag(&self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or_else(|| panic!("no argument {name} in {}", self.0))
    }

    fn ints(&self, name: &str) -> Vec<i64> {
        let list = self.0[name].as_array().unwrap_or_else(|| panic!("no argument {name} in {}", self.0));
        list.iter().filter_map(Json::as_i64).collect()
    }

    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_else(|| panic!("no argument {name} in {}", self.0))
    }

    fn dtype(&self) -> DType {
        self.text("dtype").parse().expect("a dtype")
    }

    fn pool(&self) -> ([i64; 2], PoolOptions) {
        let or = |name: &str, default: i64| [self.0[name].as_i64().unwrap_or(default); 2];
        let options = PoolOptions { stride: or("stride", 1), padding: or("padding", 0), ..PoolOptions::default() };
        (self.ints("kernel_size").try_into().expect("two sizes"), options)
    }

    fn conv<const D: usize>(&self) -> ConvOptions<D> {
        let mut options = ConvOptions::<D>::default();
        let list = |name: &str| self.0[name].as_array().map(|_| self.ints(name));
        for (name, to) in [("stride", &mut options.stride), ("dilation", &mut options.dilation)] {
            if let Some(values) = list(name) {
                to.copy_from_slice(&values);
            }
        }
        if let Some(values) = list("padding") {
            options.padding.as_flattened_mut().copy_from_slice(&values);
        }
        options.groups = self.0["groups"].as_i64().unwrap_or(1);
        options
    }

    fn slices(&self) -> Vec<SliceIndex> {
        let number = |v: &Json| v.as_i64().map(|v| v as isize);
        let index = |v: &Json| match v {
            Json::Null => SliceIndex::NewAxis,
            Json::String(_) => SliceIndex::Ellipsis,
            Json::Array(s) => {
                SliceIndex::Range { start: number(&s[1]), stop: number(&s[2]), step: number(&s[3]).unwrap_or(1) }
            }
            other => SliceIndex::Index(number(other).expect("an integer")),
        };
        self.0["indices"].as_array().expect("a list").iter().map(index).collect()
    }
}

/// The function on operands of either world; `None` if there is none of that name.
pub fn apply(op: &str, a: &Arguments, x: &[Tensor]) -> max::Result<Option<Vec<Tensor>>> {
    type Unary = fn(Operand) -> max::Result<Tensor>;
    type Binary = fn(Operand, Operand) -> max::Result<Tensor>;
    type Axis = fn(Operand, i64) -> max::Result<Tensor>;
    type Scatter = fn(Operand, Operand, Operand, i64) -> max::Result<Tensor>;
    let unary: [(&str, Unary); 23] = [
        ("abs", F::abs),
        ("acos", F::acos),
        ("atanh", F::atanh),
        ("ceil", F::ceil),
        ("cos", F::cos),
        ("erf", F::erf),
        ("exp", F::exp),
        ("floor", F::floor),
        ("is_inf", F::is_inf),
        ("is_nan", F::is_nan),
        ("log", F::log),
        ("log1p", F::log1p),
        ("logical_not", F::logical_not),
        ("negate", F::negate),
        ("relu", F::relu),
        ("round", F::round),
        ("rsqrt", F::rsqrt),
        ("sigmoid", F::sigmoid),
        ("silu", F::silu),
        ("sin", F::sin),
        ("sqrt", F::sqrt),
        ("tanh", F::tanh),
        ("trunc", F::trunc),
    ];
    if let Some((_, f)) = unary.iter().find(|(name, _)| *name == op) {
        return Ok(Some(vec![f((&x[0]).into())?]));
    }
    let binary: [(&str, Binary); 17] = [
        ("add", F::add),
        ("div", F::div),
        ("equal", F::equal),
        ("greater", F::greater),
        ("greater_equal", F::greater_equal),
        ("logical_and", F::logical_and),
        ("logical_or", F::logical_or),
        ("logical_xor", F::logical_xor),
        ("matmul", F::matmul),
        ("max", F::maximum),
        ("min", F::minimum),
        ("mod", F::mod_),
        ("mul", F::mul),
        ("not_equal", F::not_equal),
        ("outer", F::outer),
        ("pow", F::pow),
        ("sub", F::sub),
    ];
    if let (Some((_, f)), [x, y]) = (binary.iter().find(|(name, _)| *name == op), x) {
        return Ok(Some(vec![f(x.into(), y.into())?]));
    }
    let along: [(&str, Axis); 9] = [
        ("argmax", F::argmax),
        ("argmin", F::argmin),
        ("max", F::max),
        ("mean", F::mean),
        ("min", F::min),
        ("prod", F::prod),
        ("sum", F::sum),
        ("squeeze", F::squeeze),
        ("unsqueeze", F::unsqueeze),
    ];
    if let Some((_, f)) = along.iter().find(|(name, _)| *name == op) {
        return Ok(Some(vec![f((&x[0]).into(), a.int("axis"))?]));
    }
    let scatters: [(&str, Scatter); 5] = [
        ("scatter", F::scatter),
        ("scatter_add", F::scatter_add),
        ("scatter_max", F::scatter_max),
        ("scatter_min", F::scatter_min),
        ("scatter_mul", F::scatter_mul),
    ];
    if let Some((_, f)) = scatters.iter().find(|(name, _)| *name == op) {
        return Ok(Some(vec![f((&x[0]).into(), (&x[1]).into(), (&x[2]).into(), a.int("axis"))?]));
    }
    let one = match op {
        "argsort" => F::argsort(&x[0], a.flag("ascending"))?,
        "as_interleaved_complex" => F::as_interleaved_complex(&x[0])?,
        "avg_pool2d" => {
            let (kernel_size, options) = a.pool();
            F::avg_pool2d(&x[0], kernel_size, options, true)?
        }
        "band_part" => {
            let count = |name: &str| a.0[name].as_i64();
            F::band_part(&x[0], count("num_lower"), count("num_upper"), a.flag("exclude"))?
        }
        "broadcast_to" => F::broadcast_to(&x[0], a.ints("shape"))?,
        "cast" => F::cast(&x[0], a.dtype())?,
        "concat" => F::concat(x, a.int("axis"))?,
        "conv2d" => F::conv2d(&x[0], &x[1], x.get(2), a.conv())?,
        "conv2d_transpose" => F::conv2d_transpose(&x[0], &x[1], None, a.conv(), [0, 0])?,
        "conv3d" => F::conv3d(&x[0], &x[1], None, a.conv())?,
        "cumsum" => F::cumsum(&x[0], a.int("axis"), a.flag("exclusive"), a.flag("reverse"))?,
        "flatten" => F::flatten(&x[0], a.int("start_dim"), a.int("end_dim"))?,
        "fold" => {
            let pair = |name: &str| <[i64; 2]>::try_from(a.ints(name)).expect("two sizes");
            let both = |name: &str| [a.int(name); 2];
            let options = FoldOptions { stride: both("stride"), dilation: both("dilation"), padding: both("padding") };
            F::fold(&x[0], pair("output_size"), pair("kernel_size"), options)?
        }
        "gather" => F::gather(&x[0], &x[1], a.int("axis"))?,
        "gather_nd" => F::gather_nd(&x[0], &x[1], a.int("batch_dims") as usize)?,
        "gelu" => {
            let approximate = match a.text("approximate") {
                "tanh" => GeluApproximation::Tanh,
                "quick" => GeluApproximation::Quick,
                _ => GeluApproximation::None,
            };
            F::gelu(&x[0], approximate)?
        }
        "irfft" => {
            let normalization = match a.text("normalization") {
                "ortho" => Normalization::Ortho,
                "forward" => Normalization::Forward,
                _ => Normalization::Backward,
            };
            let n = Some(a.int("n") as usize);
            F::irfft(&x[0], n, a.int("axis"), normalization, a.flag("input_is_complex"))?
        }
        "layer_norm" => F::layer_norm(&x[0], &x[1], &x[2], a.float("epsilon"))?,
        "logsoftmax" => F::logsoftmax(&x[0], -1)?,
        "masked_scatter" => F::masked_scatter(&x[0], &x[1], &x[2])?,
        "max_pool2d" => {
            let (kernel_size, options) = a.pool();
            F::max_pool2d(&x[0], kernel_size, options)?
        }
        "pad" => {
            let mode = match a.text("mode") {
                "reflect" => PadMode::Reflect,
                "edge" => PadMode::Edge,
                _ => PadMode::Constant(a.float("value").into()),
            };
            F::pad(&x[0], a.ints("paddings"), mode)?
        }
        "permute" => F::permute(&x[0], a.ints("dims"))?,
        "repeat_interleave" => F::repeat_interleave(&x[0], a.int("repeats"), a.0["axis"].as_i64())?,
        "reshape" => F::reshape(&x[0], a.ints("shape"))?,
        "resize" => {
            let mode = match a.text("interpolation") {
                "nearest" => InterpolationMode::Nearest,
                "bicubic" => InterpolationMode::Bicubic,
                _ => InterpolationMode::Bilinear,
            };
            F::resize(&x[0], a.ints("shape"), mode)?
        }
        "rms_norm" => F::rms_norm(&x[0], &x[1], a.float("epsilon"))?,
        "scatter_nd" => F::scatter_nd(&x[0], &x[1], &x[2])?,
        "slice_tensor" => F::slice_tensor(&x[0], a.slices())?,
        "softmax" => F::softmax(&x[0], -1)?,
        "stack" => F::stack(x, a.int("axis"))?,
        "tile" => F::tile(&x[0], a.ints("repeats"))?,
        "transpose" => F::transpose(&x[0], a.int("axis_1"), a.int("axis_2"))?,
        "where" => F::where_(&x[0], &x[1], &x[2])?,
        "hann_window" => F::hann_window(a.int("window_length") as usize, a.1, a.flag("periodic"), DType::F32)?,
        "range" => F::range(a.int("start"), a.int("stop"), a.int("step"), a.dtype(), a.1)?,
        "nonzero" => F::nonzero(&x[0])?,
        "chunk" => return F::chunk(&x[0], a.int("chunks") as usize, a.int("axis")).map(Some),
        "split" => return F::split(&x[0], a.ints("split_sizes"), a.int("axis")).map(Some),
        "top_k" | "bottom_k" => {
            let f = if op == "top_k" { F::top_k } else { F::bottom_k };
            let (values, positions) = f(&x[0], a.int("k") as usize, a.int("axis"))?;
            return Ok(Some(vec![values, positions]));
        }
        _ => return Ok(None),
    };
    Ok(Some(vec![one]))
}

fn dtype(of: safetensors::Dtype) -> DType {
    match of {
        safetensors::Dtype::BOOL => DType::Bool,
        safetensors::Dtype::U8 => DType::U8,
        safetensors::Dtype::I32 => DType::I32,
        safetensors::Dtype::I64 => DType::I64,
        safetensors::Dtype::F16 => DType::F16,
        safetensors::Dtype::BF16 => DType::BF16,
        safetensors::Dtype::F32 => DType::F32,
        safetensors::Dtype::F64 => DType::F64,
        other => panic!("no golden value has dtype {other:?}"),
    }
}

fn tensor(file: &SafeTensors, name: &Json) -> driver::Tensor {
    let view = file.tensor(name.as_str().expect("a name")).expect("a tensor of that name");
    let mut bytes = driver::Tensor::zeros(DType::U8, [view.data().len()], &Device::cpu()).expect("memory");
    bytes.as_mut_slice::<u8>().expect("own memory").copy_from_slice(view.data());
    bytes.view(dtype(view.dtype()), Some(view.shape())).expect("a view")
}

/// How results differ.
pub fn difference(got: &driver::Tensor, want: &driver::Tensor, rtol: f64, atol: f64) -> Option<String> {
    let (a, b) = ((got.dtype(), got.shape()), (want.dtype(), want.shape()));
    if a != b {
        return Some(format!("got {a:?}, not {b:?}"));
    }
    dispatch!(want.dtype(), T => {
        let (got, want) = (got.to_vec::<T>().expect("elements"), want.to_vec::<T>().expect("elements"));
        let is_near = |got: T, want: T| {
            let (g, w) = (got.to_f64(), want.to_f64());
            got == want || T::DTYPE.is_float() && ((g - w).abs() <= atol + rtol * w.abs() || g.is_nan() && w.is_nan())
        };
        let far = got.iter().zip(&want).position(|(got, want)| !is_near(*got, *want));
        far.map(|i| format!("element {i} is {}, not {}", got[i], want[i]))
    })
}

/// A golden case.
pub struct Case {
    pub json: Json,
    pub inputs: Vec<driver::Tensor>,
    pub wanted: Vec<driver::Tensor>,
}

/// The golden cases.
pub fn cases() -> Vec<Case> {
    max_kernels::link();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let files = std::fs::read_dir(&folder).expect("golden values").map(|file| file.expect("a file").path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).collect();
    files.sort();
    let mut cases = Vec::new();
    for path in files {
        let bytes = std::fs::read(&path).expect("a readable file");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("its header");
        let list = &header.metadata().as_ref().expect("its metadata")["cases"];
        for json in serde_json::from_str::<Vec<Json>>(list).expect("a list") {
            let named = |key: &str| -> Vec<driver::Tensor> {
                json[key].as_array().expect("a list").iter().map(|name| tensor(&file, name)).collect()
            };
            let (inputs, wanted) = (named("inputs"), named("outputs"));
            cases.push(Case { json, inputs, wanted });
        }
    }
    cases
}
