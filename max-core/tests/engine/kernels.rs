//! The kernels of these tests, and short ways to write graphs over them.

use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::{InferenceSession, Model};
use max::graph::{BufferType, Graph, Shape, TensorType};
use max::kernel;

#[kernel(op = "relu")]
fn relu<T: Number>(x: T) -> T {
    x.max(0)
}

#[kernel(op = "add")]
fn add<T: Number>(x: T, y: T) -> T {
    x + y
}

#[kernel(op = "mul")]
fn mul<T: Number>(x: T, y: T) -> T {
    x * y
}

#[kernel(op = "scale", dtypes(T = [f32, i32]))]
fn scale<T: Number>(x: T, #[param(default = 3)] by: i64) -> T {
    x * T::from_i64(by)
}

/// A reduction: one result a row.
#[kernel(op = "sum", dtypes(T = [f32, f64, i32, i64]))]
fn sum<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let total = x.row(row).fold(0, |s, v| s + v).sum();
    y.row(row).set(0, total);
}

/// A result as long as the row: how far each element is below the row's largest.
#[kernel(op = "softmax", dtypes(T = [f32]))]
fn below_largest<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let m = x.fold(T::NEG_INFINITY, |m, v| m.max(v)).max();
    y.row(row).write(x.map(|v| v - m));
}

/// A matrix product whose results are one program each.
#[kernel(op = "matmul", tile(BM = 4, BN = 16, BK = 16), tile(gpu(BM = 64, BN = 64, BK = 32)), dtypes(T = [f32]))]
fn matmul<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc.cast());
}

/// Changes a buffer.
#[kernel(op = "accumulate", dtypes(T = [f32]))]
fn accumulate<T: Number>(total: &mut T, x: T) {
    *total = *total + x;
}

/// Changes two buffers.
#[kernel(op = "accumulate_both", dtypes(T = [f32]))]
fn accumulate_both<T: Number>(a: &mut T, b: &mut T) {
    *a = *a + 1;
    *b = *b + 2;
}

pub fn f32s(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::F32, shape, DeviceRef::CPU)
}

pub fn f32_buffer(shape: impl Into<Shape>) -> BufferType {
    f32s(shape).as_buffer()
}

/// A tensor of 0, 1, 2, ….
pub fn count(shape: &[usize]) -> Tensor {
    let elements: usize = shape.iter().product();
    Tensor::arange(0.0f32, elements as f32, 1.0).unwrap().reshape(shape).unwrap()
}

pub fn load(graph: &Graph) -> Model {
    InferenceSession::new().load(graph).unwrap()
}

pub fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

/// Two results of one kernel.
#[kernel(op = "order", dtypes(T = [f32]))]
fn order<T: Number>(x: T, y: T) -> (T, T) {
    (x.min(y), x.max(y))
}

/// Results that are larger than the operands, and back.
#[kernel(op = "widen")]
fn widen(x: f32) -> f64 {
    x as f64
}

#[kernel(op = "narrow")]
fn narrow(x: f64) -> f32 {
    x as f32
}
