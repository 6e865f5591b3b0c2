//! A mixture of experts: rows of tokens are gathered where they are multiplied, by the matrix of the expert of each block.
use max::prelude::*;

/// `y[i] = x[rows[i]] · w[e]`, where `e` is the expert of row `i`'s block of 128 rows. Rows are in the order of their experts,
/// and -1 where an expert's last block has no more of them: those are 0.
#[kernel(op = "moe", tile(BM = 128, BN = 1024, BK = 512, v2(BN = 16, BK = 64), gpu(BN = 64, BK = 32)))]
fn moe(y: Out<f32, 2>, x: In<f32, 2>, w: In<f32, 3>, rows: In<i64, 1>, experts: In<i64, 1>) {
    let [m, n] = program_id();
    let (rows, w) = (rows.block::<BM>(m), w.select(experts.at(m)));
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, x.dim(1), BK) {
        acc = dot(x.rows_at::<BM, BK>(rows, k), w.tile::<BK, BN>(k, n), acc);
    }
    y.tile::<BM, BN>(m, n).write(acc);
}

/// Multiplies on a device, and checks the result. Gives the seconds of that, and of a dense product of as many rows.
pub fn run(device: &Device, tokens: usize, n: usize, experts: usize) -> max::Result<[f64; 2]> {
    let place = DeviceRef::from(device);
    let (mut rows, mut of) = (Vec::new(), Vec::new()); // Those of each expert up to a multiple of 128.
    for e in 0..experts {
        rows.extend((0..tokens).filter(|token| token * 7 % experts == e).map(|token| token as i64));
        rows.resize(rows.len().next_multiple_of(128), -1);
        of.resize(rows.len() / 128, e as i64);
    }
    let number = |i: usize| (i * 389 % 997) as f32 / 500.0 - 1.0;
    let floats = |x: &[usize]| Tensor::from_vec((0..x.iter().product()).map(number).collect(), x)?.to(device);
    let indices = |x: &[i64]| Tensor::from_slice(x, [x.len()])?.to(device);
    let operands = [floats(&[tokens, n])?, floats(&[experts, n, n])?, indices(&rows)?, indices(&of)?];
    let factors = [floats(&[rows.len(), n])?, floats(&[n, n])?];
    let (types, y) = (operands.each_ref().map(TensorType::from), TensorType::from(&factors[0]));
    let graph = Graph::build("moe", types, |_, x| ops::custom("moe", place, x, y, ()))?;
    let dense = Graph::build("dense", factors.each_ref().map(TensorType::from), |_, x| ops::matmul(&x[0], &x[1]))?;
    let time = |graph: &Graph, x: &[Tensor]| -> max::Result<(Vec<f32>, f64)> {
        let model = InferenceSession::with_devices([*device]).load(graph)?;
        let mut best = (Vec::new(), f64::INFINITY);
        for _ in 0..5 {
            let (begin, y) = (std::time::Instant::now(), model.execute(x)?);
            best = (y, best.1.min(begin.elapsed().as_secs_f64()));
        }
        Ok((best.0.remove(0).to(&Device::cpu())?.to_vec()?, best.1))
    };
    let ((y, seconds), (_, dense)) = (time(&graph, &operands)?, time(&dense, &factors)?);
    for (i, y) in y.iter().enumerate().step_by(61) {
        let (row, matrix) = (rows[i / n], of[i / n / 128] as usize);
        let term = |k: usize| f64::from(number(row as usize * n + k)) * f64::from(number((matrix * n + k) * n + i % n));
        let exact: f64 = if row < 0 { 0.0 } else { (0..n).map(term).sum() };
        assert!((f64::from(*y) - exact).abs() < 1e-2, "element {i}: {y} is not {exact}");
    }
    Ok([seconds, dense])
}

fn main() -> max::Result<()> {
    let n = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1024);
    let [moe, dense] = run(&Device::cpu(), n, n, 8)?.map(|seconds| 1e3 * seconds);
    println!("{n} tokens of {n} to 8 experts in {moe:.2} ms, the dense product in {dense:.2} ms");
    Ok(())
}
