//! Attention in one kernel: scores are computed a block of keys at a time and never stand in memory as a whole.
use max::prelude::*;

/// `softmax(q · kᵀ / √D) · v` for queries, keys and values of `D` elements. When a block has a larger score than those
/// before it, what was summed so far is scaled down to it.
#[kernel(op = "fused_attention", dtypes(T = [f32]), tile(BM = 8, BN = 64, D = 64, gpu(BM = 64)))]
fn fused_attention<T: Float>(out: Out<T, 2>, q: In<T, 2>, k: In<T, 2>, v: In<T, 2>) {
    let m = program_id(0);
    let n = k.dim(0);
    let q = q.tile::<BM, D>(m, 0).load() * (D as T).rsqrt();
    let mut acc = Tile::<T, BM, D>::zeros();
    let mut largest = Tile::<T, BM, 1>::full(T::NEG_INFINITY);
    let mut total = Tile::<T, BM, 1>::zeros();
    for j in range(0, n, BN) {
        let scores = dot(q, k.tile::<BN, D>(j, 0).t(), Tile::<T, BM, BN>::zeros());
        // The last block may have fewer keys.
        let scores = scores.map_indexed(|_, c, s| if j + c < n { s } else { T::NEG_INFINITY });
        let larger = largest.max(scores.row_max());
        let weights = (scores - larger).exp();
        let rescale = (largest - larger).exp();
        total = total * rescale + weights.row_sum();
        acc = dot(weights, v.tile::<BN, D>(j, 0), acc * rescale);
        largest = larger;
    }
    out.rows::<BM, D>(m).write(acc / total);
}

fn main() -> max::Result<()> {
    let (queries, keys, d) = (50, 100, 64);
    let ty = |rows: &str| TensorType::new(DType::F32, (rows, 64), DeviceRef::CPU);
    let graph = Graph::build("attention", [ty("queries"), ty("keys"), ty("keys")], |_, inputs| {
        ops::custom("fused_attention", DeviceRef::CPU, inputs, ty("queries"), ())
    })?;
    let wave = |n: usize, f: f32| (0..n * d).map(|i| (i as f32 * f).sin()).collect::<Vec<f32>>();
    let (q, k, v) = (wave(queries, 0.37), wave(keys, 0.11), wave(keys, 0.73));
    let tensor = |x: &[f32]| Tensor::from_slice(x, [x.len() / d, d]);
    let out = InferenceSession::new().load(&graph)?.execute([&tensor(&q)?, &tensor(&k)?, &tensor(&v)?])?.remove(0);

    // The same by the definition, a query at a time.
    for (q, out) in q.chunks(d).zip(out.as_slice::<f32>()?.chunks(d)) {
        let score = |k: &[f32]| (q.iter().zip(k).map(|(a, b)| a * b).sum::<f32>() / 8.0).exp();
        let weights: Vec<f32> = k.chunks(d).map(score).collect();
        for (i, y) in out.iter().enumerate() {
            let exact =
                weights.iter().zip(v.chunks(d)).map(|(w, v)| w * v[i]).sum::<f32>() / weights.iter().sum::<f32>();
            assert!((y - exact).abs() < 1e-5, "{y} instead of {exact}");
        }
    }
    println!("{queries} queries attended to {keys} keys");
    Ok(())
}
