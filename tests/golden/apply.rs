//! The golden cases' ops, by MAX's names of them and of their arguments.

use max::driver::SliceIndex;
use max::graph::Operand;
use max::graph::ops::{
    self, ConvOptions, FoldOptions, GeluApproximation, InterpolationMode, Normalization, PadMode, PoolOptions,
};
use max::prelude::*;
use serde_json::Value as Json;

/// An op's arguments.
pub struct Arguments<'a>(pub &'a Json);

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

    /// The size of a window, and how windows lie.
    fn pool(&self) -> ([i64; 2], PoolOptions) {
        let or = |name: &str, default: i64| [self.0[name].as_i64().unwrap_or(default); 2];
        let options = PoolOptions { stride: or("stride", 1), padding: or("padding", 0), ..PoolOptions::default() };
        (self.ints("kernel_size").try_into().expect("two sizes"), options)
    }

    /// The options of a convolution: those that are not named have their defaults.
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

    /// `["slice", start, stop, step]`, `"ellipsis"`, `null` or an integer.
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

pub type GraphResult<T> = Result<T, max::graph::GraphError>;

/// A formula over `x` of one operator and one number, such as `x+3`.
fn formula(text: &str, x: impl Into<Operand>) -> GraphResult<TensorValue> {
    let parts = text.strip_prefix('x').and_then(|rest| Some((rest.get(..1)?, rest.get(1..)?.parse::<i64>().ok()?)));
    match parts {
        Some(("*", number)) => ops::mul(x, number),
        Some(("+", number)) => ops::add(x, number),
        Some(("-", number)) => ops::sub(x, number),
        Some(("<", number)) => ops::greater(number, x),
        _ => panic!("{text} is no formula"),
    }
}

/// The op on a graph's inputs.
pub fn apply(
    (graph, device): (&Graph, DeviceRef),
    op: &str,
    a: &Arguments,
    x: &[Value],
) -> GraphResult<Vec<TensorValue>> {
    type Unary = fn(Operand) -> GraphResult<TensorValue>;
    type Binary = fn(Operand, Operand) -> GraphResult<TensorValue>;
    type Reduction = fn(Operand, i64) -> GraphResult<TensorValue>;
    let unary: Option<Unary> = match op {
        "abs" => Some(ops::abs),
        "acos" => Some(ops::acos),
        "atanh" => Some(ops::atanh),
        "ceil" => Some(ops::ceil),
        "cos" => Some(ops::cos),
        "erf" => Some(ops::erf),
        "exp" => Some(ops::exp),
        "floor" => Some(ops::floor),
        "is_inf" => Some(ops::is_inf),
        "is_nan" => Some(ops::is_nan),
        "log" => Some(ops::log),
        "log1p" => Some(ops::log1p),
        "logical_not" => Some(ops::logical_not),
        "negate" => Some(ops::negate),
        "relu" => Some(ops::relu),
        "round" => Some(ops::round),
        "rsqrt" => Some(ops::rsqrt),
        "sigmoid" => Some(ops::sigmoid),
        "silu" => Some(ops::silu),
        "sin" => Some(ops::sin),
        "sqrt" => Some(ops::sqrt),
        "tanh" => Some(ops::tanh),
        "trunc" => Some(ops::trunc),
        _ => None,
    };
    if let Some(f) = unary {
        return Ok(vec![f((&x[0]).into())?]);
    }
    let binary: Option<Binary> = match op {
        "add" => Some(ops::add),
        "div" => Some(ops::div),
        "equal" => Some(ops::equal),
        "greater" => Some(ops::greater),
        "greater_equal" => Some(ops::greater_equal),
        "logical_and" => Some(ops::logical_and),
        "logical_or" => Some(ops::logical_or),
        "logical_xor" => Some(ops::logical_xor),
        "matmul" => Some(ops::matmul),
        "max" if x.len() == 2 => Some(ops::maximum),
        "min" if x.len() == 2 => Some(ops::minimum),
        "mod" => Some(ops::mod_),
        "mul" => Some(ops::mul),
        "not_equal" => Some(ops::not_equal),
        "outer" => Some(ops::outer),
        "pow" => Some(ops::pow),
        "sub" => Some(ops::sub),
        _ => None,
    };
    if let Some(f) = binary {
        return Ok(vec![f((&x[0]).into(), (&x[1]).into())?]);
    }
    let reduction: Option<Reduction> = match op {
        "argmax" => Some(ops::argmax),
        "argmin" => Some(ops::argmin),
        "max" => Some(ops::max),
        "mean" => Some(ops::mean),
        "min" => Some(ops::min),
        "prod" => Some(ops::prod),
        "sum" => Some(ops::sum),
        "squeeze" => Some(ops::squeeze),
        "unsqueeze" => Some(ops::unsqueeze),
        _ => None,
    };
    type Scatter = fn(Operand, Operand, Operand, i64) -> GraphResult<TensorValue>;
    let scatter: Option<Scatter> = match op {
        "scatter" => Some(ops::scatter),
        "scatter_add" => Some(ops::scatter_add),
        "scatter_max" => Some(ops::scatter_max),
        "scatter_min" => Some(ops::scatter_min),
        "scatter_mul" => Some(ops::scatter_mul),
        _ => None,
    };
    if let Some(f) = scatter {
        return Ok(vec![f((&x[0]).into(), (&x[1]).into(), (&x[2]).into(), a.int("axis"))?]);
    }
    if let Some(f) = reduction {
        return Ok(vec![f((&x[0]).into(), a.int("axis"))?]);
    }
    let one = match op {
        "argsort" => ops::argsort(&x[0], a.flag("ascending"))?,
        "as_interleaved_complex" => ops::as_interleaved_complex(&x[0])?,
        "avg_pool2d" => {
            let (kernel_size, options) = a.pool();
            ops::avg_pool2d(&x[0], kernel_size, options, true)?
        }
        "dequantize" => ops::dequantize(a.text("encoding").parse().expect("an encoding"), &x[0])?,
        "qmatmul" => ops::qmatmul(a.text("encoding").parse().expect("an encoding"), None, &x[0], [&x[1]])?,
        "band_part" => {
            let count = |name: &str| a.0[name].as_i64();
            ops::band_part(&x[0], count("num_lower"), count("num_upper"), a.flag("exclude"))?
        }
        "broadcast_to" => ops::broadcast_to(&x[0], a.ints("shape"))?,
        "cast" => ops::cast(&x[0], a.text("dtype").parse().expect("a dtype"))?,
        "concat" => ops::concat(x, a.int("axis"))?,
        "conv2d" => ops::conv2d(&x[0], &x[1], x.get(2).map(Value::tensor).transpose()?, a.conv())?,
        "conv2d_transpose" => ops::conv2d_transpose(&x[0], &x[1], None, a.conv(), [0, 0])?,
        "conv3d" => ops::conv3d(&x[0], &x[1], None, a.conv())?,
        "cumsum" => ops::cumsum(&x[0], a.int("axis"), a.flag("exclusive"), a.flag("reverse"))?,
        "flatten" => ops::flatten(&x[0], a.int("start_dim"), a.int("end_dim"))?,
        "fold" => {
            let pair = |name: &str| <[i64; 2]>::try_from(a.ints(name)).expect("two sizes");
            let both = |name: &str| [a.int(name); 2];
            let options = FoldOptions { stride: both("stride"), dilation: both("dilation"), padding: both("padding") };
            ops::fold(&x[0], pair("output_size"), pair("kernel_size"), options)?
        }
        "gather" => ops::gather(&x[0], &x[1], a.int("axis"))?,
        "gather_nd" => ops::gather_nd(&x[0], &x[1], a.int("batch_dims") as usize)?,
        "gelu" => {
            let approximate = match a.text("approximate") {
                "tanh" => GeluApproximation::Tanh,
                "quick" => GeluApproximation::Quick,
                _ => GeluApproximation::None,
            };
            ops::gelu(&x[0], approximate)?
        }
        "irfft" => {
            let normalization = match a.text("normalization") {
                "ortho" => Normalization::Ortho,
                "forward" => Normalization::Forward,
                _ => Normalization::Backward,
            };
            ops::irfft(&x[0], Some(a.int("n") as usize), a.int("axis"), normalization, a.flag("input_is_complex"))?
        }
        "layer_norm" => ops::layer_norm(&x[0], &x[1], &x[2], a.float("epsilon"))?,
        "logsoftmax" => ops::logsoftmax(&x[0], -1)?,
        "masked_scatter" => ops::masked_scatter(&x[0], &x[1], &x[2])?,
        "max_pool2d" => {
            let (kernel_size, options) = a.pool();
            ops::max_pool2d(&x[0], kernel_size, options)?
        }
        "pad" => {
            let mode = match a.text("mode") {
                "reflect" => PadMode::Reflect,
                "edge" => PadMode::Edge,
                _ => PadMode::Constant(a.float("value").into()),
            };
            ops::pad(&x[0], a.ints("paddings"), mode)?
        }
        "permute" => ops::permute(&x[0], a.ints("dims"))?,
        "repeat_interleave" => ops::repeat_interleave(&x[0], a.int("repeats"), a.0["axis"].as_i64())?,
        "reshape" => ops::reshape(&x[0], a.ints("shape"))?,
        "resize" => {
            let mode = match a.text("interpolation") {
                "nearest" => InterpolationMode::Nearest,
                "bicubic" => InterpolationMode::Bicubic,
                _ => InterpolationMode::Bilinear,
            };
            ops::resize(&x[0], a.ints("shape"), mode)?
        }
        "rms_norm" => ops::rms_norm(&x[0], &x[1], a.float("epsilon"))?,
        "scatter_nd" => ops::scatter_nd(&x[0], &x[1], &x[2])?,
        "slice_tensor" => ops::slice_tensor(&x[0], a.slices())?,
        "softmax" => ops::softmax(&x[0], -1)?,
        "stack" => ops::stack(x, a.int("axis"))?,
        "tile" => ops::tile(&x[0], a.ints("repeats"))?,
        "transpose" => ops::transpose(&x[0], a.int("axis_1"), a.int("axis_2"))?,
        "where" => ops::where_(&x[0], &x[1], &x[2])?,
        "hann_window" => {
            let length = a.int("window_length") as usize;
            ops::hann_window(graph, length, device, a.flag("periodic"), DType::F32)?
        }
        "range" => {
            let dtype = a.text("dtype").parse().expect("a dtype");
            ops::range(graph, a.int("start"), a.int("stop"), a.int("step"), dtype, device)?
        }
        "chunk" => return ops::chunk(&x[0], a.int("chunks") as usize, a.int("axis")),
        "split" => return ops::split(&x[0], a.ints("split_sizes"), a.int("axis")),
        "top_k" | "bottom_k" => {
            let f = if op == "top_k" { ops::top_k } else { ops::bottom_k };
            let (values, positions) = f(&x[0], a.int("k") as usize, a.int("axis"))?;
            return Ok(vec![values, positions]);
        }
        "cond" => {
            let branch = |name: &str| formula(a.text(name), &x[1]);
            let ty = x[1].tensor()?.ty().clone();
            return ops::cond(&x[0], [ty], || branch("then"), || branch("else"));
        }
        "while_loop" => {
            return ops::while_loop(&x[0], |x| formula(a.text("predicate"), &x[0]), |x| formula(a.text("body"), &x[0]));
        }
        "nonzero" => ops::nonzero(&x[0], "count")?,
        _ => panic!("no test of {op}"),
    };
    Ok(vec![one])
}
