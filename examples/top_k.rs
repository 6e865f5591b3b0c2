//! Two results, and a loop: the `k` largest elements of each row, with their positions.
use max::prelude::*;

/// Each round takes the largest element that comes after the last one taken; of equal elements the first comes first.
/// How many rounds there are follows from the shape of the results.
#[kernel(op = "my_top_k")]
fn top_k<T: Number>(values: Out<T, 2>, positions: Out<i64, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let n = x.dim(0);
    let mut last = T::HIGHEST;
    let mut last_at = -1;
    for j in 0..values.dim(1) {
        let bound = last;
        let after = last_at;
        let left = x.enumerate().map(|(v, i)| {
            let open = v < bound || (v == bound && i > after);
            (if open { v } else { T::LOWEST }, if open { i } else { n })
        });
        let best = left.map(|(v, _)| v).max();
        let at = left.map(|(v, i)| if v == best { i } else { n }).min();
        values.row(row).set(j, best);
        positions.row(row).set(j, at);
        last = best;
        last_at = at;
    }
}

fn main() -> max::Result<()> {
    let (rows, columns, k) = (100, 1000, 5);
    let x = TensorType::new(DType::F32, (rows, columns), DeviceRef::CPU);
    let values = TensorType::new(DType::F32, (rows, k), DeviceRef::CPU);
    let positions = TensorType::new(DType::I64, (rows, k), DeviceRef::CPU);
    let graph = Graph::build("top_k", [x], |_, inputs| {
        ops::custom("my_top_k", DeviceRef::CPU, inputs, [values, positions], ())
    })?;

    let scores: Vec<f32> = (0..rows * columns).map(|i| ((i * 7919) % 10007) as f32).collect();
    let x = Tensor::from_slice(&scores, [rows, columns].map(|n| n as usize))?;
    let outputs = InferenceSession::new().load(&graph)?.execute(&x)?;
    println!("{}\n{}", outputs[0].select(0, 0)?, outputs[1].select(0, 0)?);

    let (values, positions) = (outputs[0].as_slice::<f32>()?, outputs[1].as_slice::<i64>()?);
    for (row, (values, positions)) in scores.chunks(1000).zip(values.chunks(5).zip(positions.chunks(5))) {
        let mut sorted = row.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(values, &sorted[..5]);
        assert!(values.iter().zip(positions).all(|(v, at)| row[*at as usize] == *v));
    }
    Ok(())
}
