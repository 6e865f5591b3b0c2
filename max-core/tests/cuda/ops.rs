//! The kernels that the graphs of these tests use, and short ways to write graphs over them.

use max::driver::{Device, DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::{InferenceSession, Model};
use max::graph::{Graph, Shape, TensorType};
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

#[kernel(op = "sum", dtypes(T = [f32]))]
fn sum<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let total = x.row(row).fold(0, |s, v| s + v).sum();
    y.row(row).set(0, total);
}

#[kernel(op = "softmax", dtypes(T = [f32]))]
fn softmax<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let m = x.fold(T::NEG_INFINITY, |m, v| m.max(v)).max();
    let s = x.fold(0, |s, v| s + (v - m).exp()).sum();
    y.row(row).write(x.map(|v| (v - m).exp() / s));
}

#[kernel(op = "matmul", tile(BM = 4, BN = 16, BK = 16), tile(gpu(BM = 32, BN = 32, BK = 32)), dtypes(T = [f32]))]
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

/// Two results of one kernel.
#[kernel(op = "order", dtypes(T = [f32]))]
fn order<T: Number>(x: T, y: T) -> (T, T) {
    (x.min(y), x.max(y))
}

pub const GPU: DeviceRef = DeviceRef::gpu(0);

pub fn gpu() -> Device {
    Device::accelerator(0).unwrap()
}

pub fn f32s(shape: impl Into<Shape>, device: DeviceRef) -> TensorType {
    TensorType::new(DType::F32, shape, device)
}

/// A tensor of the host, of small numbers of both signs.
pub fn numbers(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i * 37 + 11) % 64) as f32 / 16.0 - 2.0;
    Tensor::from_vec((0..count).map(value).collect(), shape).unwrap()
}

pub fn load(graph: &Graph) -> Model {
    InferenceSession::with_devices([gpu()]).load(graph).unwrap()
}

/// The values of a tensor on any device.
pub fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to(&Device::cpu()).unwrap().to_vec().unwrap()
}

pub fn close(a: &Tensor, b: &Tensor) -> bool {
    let (a, b) = (values(a), values(b));
    a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1.0))
}
