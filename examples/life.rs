//! A stencil: Conway's Game of Life. Neighbours are rows that are shifted, so that they are read as vectors.
use max::prelude::*;

/// The next generation of cells that are 0 or 1. Outside of the field everything is dead.
#[kernel(op = "life")]
fn life(next: Out<u8, 2>, cells: In<u8, 2>) {
    let i = program_id(0);
    let (above, own, below) = (cells.row(i - 1), cells.row(i), cells.row(i + 1));
    let beside = (above, below).map(|(a, b)| a + b);
    let left = (above.shift(-1), own.shift(-1), below.shift(-1)).map(|(a, b, c)| a + b + c);
    let right = (above.shift(1), own.shift(1), below.shift(1)).map(|(a, b, c)| a + b + c);
    next.row(i).write((own, beside, left, right).map(|(own, beside, left, right)| {
        let around = beside + left + right;
        select(around == 3 || (around == 2 && own == 1), 1, 0)
    }));
}

/// Computes a generation on a device, and checks it by the rules. Gives the seconds of an execution.
pub fn run(device: &Device, n: usize) -> max::Result<f64> {
    let ty = TensorType::new(DType::U8, (n as i64, n as i64), DeviceRef::from(device));
    let graph = Graph::build("life", [&ty], |_, inputs| ops::custom("life", DeviceRef::from(device), inputs, &ty, ()))?;
    let model = InferenceSession::with_devices([*device]).load(&graph)?;
    let cells: Vec<u8> = (0..n * n).map(|i| u8::from((i * 2_654_435_761) >> 7 & 7 < 3)).collect();
    let x = Tensor::from_slice(&cells, [n, n])?.to(device)?;
    let next = model.execute(&x)?.remove(0).to(&Device::cpu())?.to_vec::<u8>()?;
    let mut seconds = f64::INFINITY;
    for _ in 0..9 {
        let begin = std::time::Instant::now();
        model.execute(&x)?;
        seconds = seconds.min(begin.elapsed().as_secs_f64());
    }

    let alive = |i: usize, j: usize| i < n && j < n && cells[i * n + j] == 1;
    for (i, j) in (0..n * n).map(|at| (at / n, at % n)) {
        let near = |k: usize| [k.wrapping_sub(1), k, k + 1];
        let around = near(i).into_iter().flat_map(|r| near(j).map(|c| (r, c)));
        let count = around.filter(|&(r, c)| (r, c) != (i, j) && alive(r, c)).count();
        assert_eq!(next[i * n + j] == 1, count == 3 || (count == 2 && alive(i, j)), "cell {i}, {j}");
    }
    Ok(seconds)
}

fn main() -> max::Result<()> {
    let n = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(4096);
    let seconds = run(&Device::cpu(), n)?;
    // The floor: every cell is read once and written once, as by a copy.
    let (from, mut to) = (vec![1u8; n * n], vec![0u8; n * n]);
    let begin = std::time::Instant::now();
    to.copy_from_slice(&from);
    let floor = begin.elapsed().as_secs_f64();
    println!("{n} x {n} cells in {:.3} ms, copied in {:.3} ms, {}", 1e3 * seconds, 1e3 * floor, to[n]);
    Ok(())
}
