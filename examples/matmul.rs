//! A tile kernel: each program computes one tile of the product, a strip of `BK` at a time.
use std::time::Instant;

use max::prelude::*;

/// `c = a · b`. The sizes of the tiles differ between machines, the code does not.
#[kernel(
    op = "my_matmul",
    dtypes(T = [f32, bf16]),
    tile(BM = 4, BN = 64, BK = 256, v2(BN = 16), v3(BN = 32), gpu(BM = 64, BN = 64, BK = 32))
)]
fn matmul<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc.cast());
}

fn main() -> max::Result<()> {
    let ty = |rows, columns| TensorType::new(DType::F32, [rows, columns], DeviceRef::CPU);
    let graph = Graph::build("matmul", [ty("m", "k"), ty("k", "n")], |_, inputs| {
        ops::custom("my_matmul", DeviceRef::CPU, inputs, ty("m", "n"), ())
    })?;
    let model = InferenceSession::new().load(&graph)?;

    let (m, k, n) = (300, 500, 700);
    let a: Vec<f32> = (0..m * k).map(|i| (i % 7) as f32 - 3.0).collect();
    let b: Vec<f32> = (0..k * n).map(|i| (i % 5) as f32 - 2.0).collect();
    let inputs = [Tensor::from_slice(&a, [m, k])?, Tensor::from_slice(&b, [k, n])?];
    model.execute(&inputs)?;
    let start = Instant::now();
    let c = model.execute(&inputs)?.remove(0);
    let seconds = start.elapsed().as_secs_f64();
    println!("{m} x {k} x {n} in {:.2} ms: {:.0} GFLOP/s", seconds * 1e3, 2e-9 * (m * k * n) as f64 / seconds);

    // Small integers: the sums are exact, in any order.
    let c = c.as_slice::<f32>()?;
    for (i, j) in [(0, 0), (1, 699), (299, 0), (150, 333), (299, 699)] {
        assert_eq!(c[i * n + j], (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum::<f32>());
    }
    Ok(())
}
