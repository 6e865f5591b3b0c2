//! Weights in blocks of small integers: their elements, and products with them.

use crate::dtype::DType;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::node::Op;
use crate::graph::ops::movement::views::{permute_at, reshape_at};
use crate::graph::parameters::{KernelCall, Parameters};
use crate::graph::quantization::{QuantizationConfig, QuantizationEncoding};
use crate::graph::symbolic::dim::Dim;
use crate::graph::types::Type;
use crate::graph::value::{Operand, TensorValue, Value};

/// The kernels of an encoding: for its elements, and for products.
const fn kernels(encoding: QuantizationEncoding) -> [&'static str; 2] {
    match encoding {
        QuantizationEncoding::Q4_0 => ["dequantize_q4_0", "qmatmul_q4_0"],
        QuantizationEncoding::Q8_0 => ["dequantize_q8_0", "qmatmul_q8_0"],
        QuantizationEncoding::Q4_K => ["dequantize_q4_k", "qmatmul_q4_k"],
        QuantizationEncoding::Q5_K => ["dequantize_q5_k", "qmatmul_q5_k"],
        QuantizationEncoding::Q6_K => ["dequantize_q6_k", "qmatmul_q6_k"],
        QuantizationEncoding::Gptq32 | QuantizationEncoding::Gptq64 | QuantizationEncoding::Gptq128 => {
            ["dequantize_gptq", "qmatmul_gptq"]
        }
        QuantizationEncoding::Float8E4M3FN32 | QuantizationEncoding::Float8E4M3FN128 => {
            ["dequantize_float8_e4m3fn", "qmatmul_float8_e4m3fn"]
        }
        QuantizationEncoding::Custom(custom) => [custom.dequantize_kernel, custom.qmatmul_kernel],
    }
}

/// The parameters of these kernels: the sizes of blocks that are not always the same.
fn parameters(encoding: QuantizationEncoding) -> Parameters {
    match encoding {
        QuantizationEncoding::Gptq32
        | QuantizationEncoding::Gptq64
        | QuantizationEncoding::Gptq128
        | QuantizationEncoding::Float8E4M3FN32
        | QuantizationEncoding::Float8E4M3FN128 => {
            Parameters::new().with("group", encoding.elements_per_block() as i64)
        }
        _ => Parameters::new(),
    }
}

/// What the last dim of packed weights must be.
const fn whole_blocks(encoding: QuantizationEncoding) -> &'static str {
    match encoding {
        QuantizationEncoding::Q4_0 => "a multiple of 18, the bytes of a block of q4_0",
        QuantizationEncoding::Q8_0 => "a multiple of 34, the bytes of a block of q8_0",
        QuantizationEncoding::Q4_K => "a multiple of 144, the bytes of a block of q4_k",
        QuantizationEncoding::Q5_K => "a multiple of 176, the bytes of a block of q5_k",
        QuantizationEncoding::Q6_K => "a multiple of 210, the bytes of a block of q6_k",
        QuantizationEncoding::Gptq32 => "a multiple of 20, the bytes of a block of gptq_32",
        QuantizationEncoding::Gptq64 => "a multiple of 36, the bytes of a block of gptq_64",
        QuantizationEncoding::Gptq128 => "a multiple of 68, the bytes of a block of gptq_128",
        QuantizationEncoding::Float8E4M3FN32 => "a multiple of 36, the bytes of a block of float8_e4m3fn_32",
        QuantizationEncoding::Float8E4M3FN128 => "a multiple of 132, the bytes of a block of float8_e4m3fn_128",
        QuantizationEncoding::Custom(_) => "a multiple of the bytes of a block",
    }
}

/// Packed weights whose rows are known to be whole blocks, and how many blocks a row has. Where a symbolic size does not show it,
/// it is asserted for when the model executes.
fn packed(
    site: &Site,
    encoding: QuantizationEncoding,
    what: &'static str,
    last: &'static str,
    value: TensorValue,
) -> Result<(TensorValue, Dim)> {
    site.require(what, &value, "uint8, the bytes of blocks", |dtype| dtype == DType::U8)?;
    let size = encoding.block_size() as i64;
    let Some(bytes) = value.shape().last().cloned() else {
        let expected = "at least 1 axis, that of the bytes of blocks".into();
        return site.fail(&[&value], GraphErrorKind::Rank { what, rank: 0, expected });
    };
    if let Some(blocks) = bytes.exact_div(&Dim::Static(size)) {
        return Ok((value, blocks));
    }
    if bytes.is_static() {
        return site
            .fail(&[&value], GraphErrorKind::DimValue { what: last, dim: bytes, expected: whole_blocks(encoding) });
    }
    let blocks = bytes / size;
    let mut dims = value.shape().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = blocks.clone() * size;
    }
    let ty = site.checked(&[&value], value.ty.with_shape(dims.into()))?;
    let message = format!("`{}`: the last dim of {what} must be {}", site.op, whole_blocks(encoding));
    Ok((site.view(Op::Rebind { message: message.into() }, &value, ty)?, blocks))
}

/// The elements of a quantized tensor, as `float32`: `[.., bytes]` of blocks become `[.., elements]`.
///
/// Rows are whole blocks. Where the last dim is symbolic and need not be so many bytes, that is checked when the model executes.
///
/// # Errors
/// When `quantized` is a scalar or not `uint8`, and when its last dim is no multiple of a block's bytes.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// use max_core::graph::quantization::QuantizationEncoding;
///
/// let blocks = TensorType::new(DType::U8, ("rows", 144), DeviceRef::CPU);
/// let graph = Graph::new("g", [blocks]);
/// let x = ops::dequantize(QuantizationEncoding::Q4_K, &graph.inputs()[0])?;
/// assert_eq!(x.ty().to_string(), "float32[rows, 256]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn dequantize(encoding: QuantizationEncoding, quantized: impl Into<Operand>) -> Result<TensorValue> {
    let site = Site::new("dequantize");
    let quantized = site.tensor("the operand", quantized)?;
    let (quantized, blocks) = packed(&site, encoding, "the operand", "the operand's last dim", quantized)?;
    let elements = blocks * encoding.elements_per_block() as i64;
    let mut dims = quantized.shape().to_vec();
    let Some(bytes) = dims.pop() else { return site.fail(&[&quantized], GraphErrorKind::NoTensor) };
    let rows = dims.iter().fold(Dim::Static(1), |rows, dim| rows * dim);
    let x = reshape_at(&site, &quantized, [rows.clone(), bytes].into())?;
    let ty = x.ty.with_shape([rows, elements.clone()].into()).with_dtype(DType::F32);
    let [kernel, _] = kernels(encoding);
    let y = site.kernel(kernel, &[&x], ty, parameters(encoding))?;
    dims.push(elements);
    reshape_at(&site, &y, dims.into())
}

/// `lhs · rhsᵀ` with packed weights: the product over the last axis of `lhs`, `[.., k]` of `float32`, and the elements of the rows of
/// `rhs`, `[n, bytes]`; `[.., n]` of `float32`.
///
/// Weights stay packed in memory: for few rows of `lhs` their bytes are read once, as they lie. `lhs` is rounded to 8 bits as MAX and ggml
/// do it: blocks of 32 elements (Q4_0, Q8_0) or 256 (the others) become integers from -127 to 127, with the largest magnitude divided by
/// 127 as scale. Products are of these integers, and sums of the products of a block are exact; these, times the scales, are added in
/// `float32`, in an order that depends on the number of rows. A block with an infinity or NaN gives NaN.
///
/// `config` describes encodings whose blocks have no layout of their own; those of GGUF take none, and one tensor on the right.
///
/// # Errors
/// When `lhs` is a scalar or not `float32`; when there is not one right side, or it is not `uint8` of rank 2; when its last dim is no
/// multiple of a block's bytes; when rows of both sides have different numbers of elements; when a config is given that the encoding does not
/// take; when operands are of different graphs or on different devices.
///
/// ```
/// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
/// use max_core::graph::quantization::QuantizationEncoding;
///
/// let x = TensorType::new(DType::F32, ("tokens", 4096), DeviceRef::CPU);
/// let w = TensorType::new(DType::U8, (1024, 4096 / 32 * 34), DeviceRef::CPU);
/// let graph = Graph::new("g", [x, w]);
/// let y = ops::qmatmul(QuantizationEncoding::Q8_0, None, &graph.inputs()[0], [&graph.inputs()[1]])?;
/// assert_eq!(y.ty().to_string(), "float32[tokens, 1024]");
/// # Ok::<(), max_core::graph::GraphError>(())
/// ```
#[track_caller]
pub fn qmatmul<R: Into<Operand>>(
    encoding: QuantizationEncoding,
    config: Option<&QuantizationConfig>,
    lhs: impl Into<Operand>,
    rhs: impl IntoIterator<Item = R>,
) -> Result<TensorValue> {
    let site = Site::new("qmatmul");
    let lhs = site.tensor("the left side", lhs)?;
    if let Some(config) = config {
        return site.argument(&[&lhs], "config", config, format!("none for {encoding}, whose blocks say all"));
    }
    let all = rhs.into_iter().map(|value| site.tensor("the right side", value)).collect::<Result<Vec<_>>>()?;
    let [rhs] = <[TensorValue; 1]>::try_from(all).or_else(|all| {
        let expected = format!("1 tensor for {encoding}, the packed weights");
        site.argument(&[&lhs], "rhs", format!("{} tensors", all.len()), expected)
    })?;
    site.together(&[&lhs, &rhs])?;
    site.require("the left side", &lhs, "float32", |dtype| dtype == DType::F32)?;
    if rhs.rank() != 2 {
        let expected = "2 axes, rows of packed weights".into();
        let kind = GraphErrorKind::Rank { what: "the right side", rank: rhs.rank(), expected };
        return site.fail(&[&lhs, &rhs], kind);
    }
    let (rhs, blocks) = packed(&site, encoding, "the right side", "the right side's last dim", rhs)?;
    let mut dims = lhs.shape().to_vec();
    let Some(k) = dims.pop() else {
        let expected = "at least 1 axis".into();
        return site.fail(&[&lhs, &rhs], GraphErrorKind::Rank { what: "the left side", rank: 0, expected });
    };
    let elements = blocks * encoding.elements_per_block() as i64;
    if k != elements {
        let what = "the left side's last dim and the elements of the right side's rows";
        return site.fail(&[&lhs, &rhs], GraphErrorKind::DimMismatch { what, lhs: k, rhs: elements });
    }
    let rows = dims.iter().fold(Dim::Static(1), |rows, dim| rows * dim);
    let n = rhs.shape()[0].clone();
    let x = reshape_at(&site, &lhs, [rows.clone(), k].into())?;
    // A program has some rows of weights, which it unpacks for all of `lhs`: the result of each is a row.
    let ty = x.ty.with_shape([n.clone(), rows.clone()].into());
    let [_, kernel] = kernels(encoding);
    let y = if encoding.is_gguf() {
        let [q, scales] = quantize_rows(&site, encoding, &x)?;
        site.kernel(kernel, &[&rhs, &q, &scales], ty, Parameters::new())?
    } else {
        site.kernel(kernel, &[&rhs, &x], ty, parameters(encoding))?
    };
    let y = if rows == 1 { y } else { permute_at(&site, &y, [1, 0].into_iter().collect())? };
    dims.push(n);
    reshape_at(&site, &y, dims.into())
}

/// A matrix in blocks of 8 bits: integers, as bytes of its shape, and the scale of each block. One launch: both are results of one node.
#[track_caller]
fn quantize_rows(site: &Site, encoding: QuantizationEncoding, x: &TensorValue) -> Result<[TensorValue; 2]> {
    let [rows, k] = x.shape().dims() else { return site.fail(&[x], GraphErrorKind::NoTensor) };
    let size = encoding.elements_per_block() as i64;
    let kernel = if size == 32 { "quantize_q8_32" } else { "quantize_q8_256" };
    let of = |columns: Dim, dtype| x.ty.with_shape([rows.clone(), columns].into()).with_dtype(dtype);
    let types = [of(k.clone(), DType::U8), of(k.clone() / size, DType::F32)];
    let parameters = site.verify_built_in(kernel, &[x], &types.each_ref(), Parameters::new())?;
    let call = KernelCall { name: kernel.into(), axis: None, parameters };
    let results = types.into_iter().map(Type::Tensor).collect();
    let ids = [x.id].into_iter().collect();
    let results = site.push_values(&x.graph, Op::Kernel(call), ids, results, x.device(), false);
    match <[Value; 2]>::try_from(results) {
        Ok([Value::Tensor(q), Value::Tensor(scales)]) => Ok([q, scales]),
        _ => site.fail(&[x], GraphErrorKind::NoOperands),
    }
}
