//! The golden graphs: small ones that together reach every pass of the compiler and every way in which kernels are fused.

use max::graph::ops::{
    self, AttentionOptions, ConvOptions, GeluApproximation, PadMode, PoolOptions, attention, attention_masked,
};
use max::graph::{GraphError, TensorValue, Type};
use max::prelude::*;

type Built = Result<Vec<TensorValue>, GraphError>;

/// A graph: its name, its inputs and its body.
pub struct Golden {
    pub name: &'static str,
    inputs: &'static [(DType, &'static [i64])],
    /// A size that is a symbol where an input has this number.
    body: fn(&Graph, &[Value], DeviceRef) -> Built,
}

/// Stands in shapes for the symbol `n`.
const N: i64 = -1;

impl Golden {
    /// The graph on a device.
    pub fn build(&self, device: DeviceRef) -> Result<Graph, GraphError> {
        let ty = |(dtype, shape): &(DType, &[i64])| -> Type {
            let dims: Vec<Dim> = shape.iter().map(|&n| if n == N { Dim::from("n") } else { Dim::from(n) }).collect();
            let is_buffer = self.name.starts_with("buffer");
            if is_buffer {
                BufferType::new(*dtype, dims, device).into()
            } else {
                TensorType::new(*dtype, dims, device).into()
            }
        };
        let types: Vec<Type> = self.inputs.iter().map(ty).collect();
        Graph::build(self.name, types, |graph, inputs| (self.body)(graph, inputs, device))
    }
}

/// A matrix of weights, none of which is 0.
fn weights(graph: &Graph, shape: &[usize], device: DeviceRef) -> Result<TensorValue, GraphError> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i % 7) as f32 * 0.25 + 0.5).collect();
    let values = Tensor::from_vec(values, shape).expect("as many values as the shape has");
    ops::constant(graph, values, DType::F32, device)
}

use DType::{BF16, F16, F32, F64, I32, I64, U8};

macro_rules! golden {
    ($($name:ident [$($dtype:ident $shape:expr),*] |$graph:ident, $x:ident, $device:ident| $body:expr;)+) => {
        /// All golden graphs.
        pub const ALL: &[Golden] = &[$(Golden {
            name: stringify!($name),
            inputs: &[$(($dtype, &$shape)),*],
            body: |$graph, $x, $device| -> Built { $body },
        }),+];
    };
}

golden! {
    elementwise_chain [F32 [64, 96], F32 [96]] |_g, x, _d| {
        let y = ops::relu(ops::add(&x[0], &x[1])?)?;
        Ok(vec![ops::tanh(&y)? * 2.0 + &y])
    };
    elementwise_symbolic [F32 [N, 96], F32 [N, 1]] |_g, x, _d| Ok(vec![ops::exp(ops::mul(&x[0], &x[1])?)?]);
    elementwise_dtypes [I32 [500], F16 [500]] |_g, x, _d| {
        let wide = ops::cast(&x[1], F32)?;
        Ok(vec![ops::cast(&x[0], F32)? * &wide, ops::cast(ops::greater(&wide, 0.0)?, U8)?])
    };
    elementwise_two_results [F32 [1000]] |_g, x, _d| {
        let y = ops::sin(&x[0])?;
        Ok(vec![ops::exp(&y)?, ops::abs(&y)?])
    };
    constants_fold [F32 [8, 16]] |g, x, d| {
        let w = weights(g, &[16], d)?;
        Ok(vec![x[0].tensor()? + (ops::exp(&w)? * 3.0 - &w)])
    };
    equal_values_once [F32 [40]] |_g, x, _d| Ok(vec![ops::exp(&x[0])? + ops::exp(&x[0])?]);
    dead_values_removed [F32 [40]] |_g, x, _d| {
        ops::softmax(&x[0], -1)?;
        Ok(vec![ops::negate(&x[0])?])
    };
    views [F32 [4, 6, 8]] |_g, x, _d| {
        let y = ops::permute(&x[0], [2, 0, 1])?;
        Ok(vec![ops::reshape(ops::relu(&y)?, (8, 24))?, ops::flatten(ops::exp(ops::transpose(&x[0], 0, 1)?)?, 1, 2)?])
    };
    view_slices [F32 [10, 12]] |_g, x, _d| {
        let x = x[0].tensor()?;
        let even = x.slice_tensor([DimSlice::range(1, 9).step_by(2), DimSlice::range(0, 12)])?;
        Ok(vec![ops::softmax(&even, -1)?, ops::concat([even, x.slice_tensor([DimSlice::range(0, 3)])?], 0)?])
    };
    concat_writes_in_place [F32 [4, 6], F32 [2, 6]] |_g, x, _d| {
        Ok(vec![ops::concat([ops::relu(&x[0])?, ops::exp(&x[1])?], 0)?])
    };
    split_and_stack [F32 [6, 8]] |_g, x, _d| {
        let halves = ops::chunk(&x[0], 2, 1)?;
        Ok(vec![ops::stack([ops::tanh(&halves[0])?, ops::tanh(&halves[1])?], 0)?])
    };
    buffer_in_place [F32 [16, 4], F32 [4, 16]] |_g, x, _d| {
        let (a, b) = (x[0].buffer()?, x[1].buffer()?);
        let sum = a.load()? + b.load()?.t()?;
        a.store(&sum)?;
        b.store_slice(a.load()?.t()?, [DimSlice::range(0, 4)])?;
        Ok(vec![ops::exp(a.load()?)?])
    };
    matmul_f32 [F32 [128, 192], F32 [192, 256]] |_g, x, _d| Ok(vec![ops::matmul(&x[0], &x[1])?]);
    matmul_bf16 [BF16 [128, 192], BF16 [192, 256]] |_g, x, _d| Ok(vec![ops::matmul(&x[0], &x[1])?]);
    matmul_transposed [BF16 [128, 192], BF16 [256, 192]] |_g, x, _d| {
        Ok(vec![ops::matmul(&x[0], ops::transpose(&x[1], 0, 1)?)?])
    };
    matmul_batch [F16 [3, 64, 32], F16 [3, 32, 64]] |_g, x, _d| Ok(vec![ops::matmul(&x[0], &x[1])?]);
    matmul_symbolic [F32 [N, 64], F32 [64, 32]] |_g, x, _d| Ok(vec![ops::matmul(&x[0], &x[1])?]);
    matmul_f64 [F64 [40, 50], F64 [50, 60]] |_g, x, _d| Ok(vec![ops::matmul(&x[0], &x[1])?]);
    matmul_epilogue [F32 [N, 192], F32 [256]] |g, x, d| {
        let y = ops::matmul(&x[0], weights(g, &[192, 256], d)?)? + x[1].tensor()?;
        Ok(vec![ops::gelu(&y, GeluApproximation::Tanh)?])
    };
    matmul_prologue [F32 [128, 192], F32 [192, 256]] |_g, x, _d| Ok(vec![ops::matmul(ops::relu(&x[0])?, &x[1])?]);
    matmul_prologue_and_epilogue [BF16 [128, 64], BF16 [64, 128], BF16 [128, 128]] |_g, x, _d| {
        Ok(vec![ops::silu(ops::matmul(ops::silu(&x[0])?, &x[1])?)? * x[2].tensor()?])
    };
    matmul_residual [F32 [64, 64], F32 [64, 64]] |_g, x, _d| {
        let y = ops::matmul(&x[0], &x[1])? + x[0].tensor()?;
        Ok(vec![ops::layer_norm(&y, ops::exp(x[1].tensor()?.slice_tensor([0])?)?, x[1].tensor()?.slice_tensor([1])?, 1e-5)?])
    };
    attention_causal [F16 [2, 4, 64, 64], F16 [2, 2, 64, 64], F16 [2, 2, 64, 64]] |_g, x, _d| {
        let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
        Ok(vec![attention(&x[0], &x[1], &x[2], options)?])
    };
    attention_with_mask [F32 [1, 2, 30, 40], F32 [1, 2, 50, 40], F32 [30, 50]] |_g, x, _d| {
        Ok(vec![attention_masked(&x[0], &x[1], &x[1], &x[2], AttentionOptions::default())?])
    };
    convolution [F32 [2, 16, 16, 8], F32 [3, 3, 8, 16]] |_g, x, _d| {
        let options = ConvOptions { padding: [[1, 1]; 2], ..ConvOptions::default() };
        Ok(vec![ops::relu(ops::conv2d(&x[0], &x[1], None, options)?)?])
    };
    pooling [F32 [2, 16, 16, 8]] |_g, x, _d| {
        Ok(vec![ops::max_pool2d(&x[0], [2, 2], PoolOptions { stride: [2, 2], ..PoolOptions::default() })?])
    };
    softmax_rows [F32 [N, 300]] |_g, x, _d| Ok(vec![ops::softmax(&x[0], -1)?]);
    softmax_columns [F32 [300, 64]] |_g, x, _d| Ok(vec![ops::softmax(&x[0], 0)?]);
    reductions [F32 [20, 30, 40]] |_g, x, _d| Ok(vec![ops::sum(&x[0], 2)?, ops::max(&x[0], 1)?, ops::mean(&x[0], 0)?]);
    reduction_of_fused [F32 [64, 512]] |_g, x, _d| Ok(vec![ops::sum(ops::exp(&x[0])? * 0.5, -1)?]);
    norms [BF16 [32, 256], BF16 [256]] |_g, x, _d| Ok(vec![ops::rms_norm(&x[0], &x[1], 1e-6)?]);
    cumulative_sum [I64 [5, 1000]] |_g, x, _d| Ok(vec![ops::cumsum(&x[0], 1, true, false)?]);
    sorting [F32 [8, 200]] |_g, x, _d| {
        let (values, positions) = ops::top_k(&x[0], 9, -1)?;
        Ok(vec![values, positions, ops::argmax(&x[0], -1)?])
    };
    argsort [F32 [700]] |_g, x, _d| Ok(vec![ops::argsort(&x[0], true)?]);
    gather_and_scatter [F32 [50, 16], I64 [7]] |_g, x, _d| {
        let rows = ops::gather(&x[0], &x[1], 0)?;
        Ok(vec![ops::exp(&rows)?, ops::scatter_nd(&x[0], &rows, ops::unsqueeze(&x[1], 1)?)?])
    };
    padding [F32 [6, 7]] |_g, x, _d| Ok(vec![ops::pad(&x[0], vec![1, 2, 0, 3], PadMode::Reflect)?]);
    sizes_as_values [F32 [N, 3]] |g, x, _d| Ok(vec![ops::shape_to_tensor(g, x[0].tensor()?.shape().clone())?]);
    arena_is_shared [F32 [64, 64]] |_g, x, _d| {
        let a = ops::softmax(&x[0], -1)?;
        let b = ops::softmax(&a, 0)?;
        let c = ops::softmax(&b, -1)?;
        Ok(vec![ops::softmax(&c, 0)?])
    };
    arena_of_symbols [F32 [N, 64]] |_g, x, _d| {
        let a = ops::softmax(ops::softmax(&x[0], -1)?, -1)?;
        Ok(vec![ops::softmax(&a, -1)?])
    };
    transformer_block [F32 [N, 128], F32 [128], F32 [128, 384], F32 [128, 128]] |_g, x, _d| {
        let (x, norm) = (x[0].tensor()?, ops::rms_norm(&x[0], &x[1], 1e-6).map(|y| (y, &x[2], &x[3]))?);
        let (normed, qkv, out) = norm;
        let heads = |part: &TensorValue| ops::transpose(ops::reshape(part, (Dim::from("n"), 4, 32))?, 0, 1);
        let parts = ops::chunk(ops::matmul(&normed, qkv)?, 3, 1)?;
        let [q, k, v] = [heads(&parts[0])?, heads(&parts[1])?, heads(&parts[2])?];
        let y = attention(&q, &k, &v, AttentionOptions { causal: true, ..AttentionOptions::default() })?;
        let y = ops::reshape(ops::transpose(&y, 0, 1)?, (Dim::from("n"), 128))?;
        Ok(vec![ops::matmul(&y, out)? + x])
    };
}
