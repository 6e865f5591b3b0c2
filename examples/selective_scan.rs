//! A scalar recurrence over time: the selective scan of state space models (Gu and Dao: Mamba, 2023).
use max::prelude::*;

/// `h = exp(dt a) h + dt b x; y[t] = c h`, with a state `h` of `N` numbers for each channel. A program takes a channel
/// through all of time: `x`, `dt` and `y` are `[channels, time]`, `a` is `[channels, N]`, `b` and `c` are `[time, N]`.
#[kernel(op = "selective_scan", tile(N = 16))]
fn selective_scan(y: Out<f32, 2>, x: In<f32, 2>, dt: In<f32, 2>, a: In<f32, 2>, b: In<f32, 2>, c: In<f32, 2>) {
    let channel = program_id(0);
    let (x, dt) = (x.row(channel), dt.row(channel));
    let a = a.tile::<1, N>(channel, 0).load();
    let mut h = Tile::<f32, 1, N>::zeros();
    for t in 0..x.len() {
        let step = dt.at(t);
        h = (a * step).exp() * h + b.tile::<1, N>(t, 0).load() * (step * x.at(t));
        y.row(channel).set(t, (c.tile::<1, N>(t, 0).load() * h).row_sum().item());
    }
}

/// Scans on a device, and checks the result by the definition. Gives the seconds of an execution.
pub fn run(device: &Device, channels: usize, time: usize) -> max::Result<f64> {
    let place = DeviceRef::from(device);
    let ty = |rows: usize, columns: usize| TensorType::new(DType::F32, (rows as i64, columns as i64), place);
    let shapes = [(channels, time), (channels, time), (channels, 16), (time, 16), (time, 16)];
    let graph = Graph::build("scan", shapes.map(|(r, c)| ty(r, c)), |_, inputs| {
        ops::custom("selective_scan", place, inputs, ty(channels, time), ())
    })?;
    let wave = |k: usize, n: usize| (0..n).map(|i| ((i * (7 + k) + i / 13) as f32 * 0.37).sin()).collect::<Vec<f32>>();
    let mut of: Vec<Vec<f32>> = shapes.iter().enumerate().map(|(k, (r, c))| wave(k, r * c)).collect();
    of[1].iter_mut().for_each(|dt| *dt = 0.1 + 0.05 * *dt);
    of[2].iter_mut().for_each(|a| *a -= 1.5);
    let tensor = |(x, (r, c)): (&Vec<f32>, (usize, usize))| Ok(Tensor::from_slice(x, [r, c])?.to(device)?);
    let operands: Vec<Tensor> = of.iter().zip(shapes).map(tensor).collect::<max::Result<_>>()?;
    let model = InferenceSession::with_devices([*device]).load(&graph)?;
    let y = model.execute(&operands)?.remove(0).to(&Device::cpu())?.to_vec::<f32>()?;
    let begin = std::time::Instant::now();
    model.execute(&operands)?;
    let seconds = begin.elapsed().as_secs_f64();

    for i in 0..channels {
        let mut h = [0.0f64; 16];
        for t in 0..time {
            let at = |k: usize, j: usize| f64::from(of[k][j]);
            let (x, dt) = (at(0, i * time + t), at(1, i * time + t));
            (0..16).for_each(|n| h[n] = (dt * at(2, i * 16 + n)).exp() * h[n] + dt * at(3, t * 16 + n) * x);
            let exact: f64 = (0..16).map(|n| at(4, t * 16 + n) * h[n]).sum();
            assert!((f64::from(y[i * time + t]) - exact).abs() < 1e-4, "{} is not {exact}", y[i * time + t]);
        }
    }
    Ok(seconds)
}

fn main() -> max::Result<()> {
    let channels = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1024);
    let seconds = run(&Device::cpu(), channels, channels)?;
    println!("{channels} channels in {channels} steps: {:.2} ns a step", 1e9 * seconds / (channels * channels) as f64);
    Ok(())
}
