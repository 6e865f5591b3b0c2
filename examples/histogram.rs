//! Counting with atomics: many programs add to the same few counters.
use max::prelude::*;

/// How often each value occurs. A program counts 4096 elements; its additions are atomic, since others count too.
#[kernel(op = "histogram", grid(x.dim(0) / 4096))]
fn histogram(counts: Out<i32, 1>, x: In<u8, 1>) {
    x.block::<4096>(program_id(0)).for_each(|value| counts.atomic_add([value as i64], 1));
}

fn main() -> max::Result<()> {
    let x = TensorType::new(DType::U8, ("n",), DeviceRef::CPU);
    let counts = TensorType::new(DType::I32, (256,), DeviceRef::CPU);
    let graph =
        Graph::build("histogram", [x], |_, inputs| ops::custom("histogram", DeviceRef::CPU, inputs, counts, ()))?;
    let model = InferenceSession::new().load(&graph)?;

    // The sums of two dice, thrown a million times.
    let mut state = 1u32;
    let mut die = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + ((state >> 16) % 6) as u8
    };
    let throws: Vec<u8> = (0..1_000_000).map(|_| die() + die()).collect();
    let counts = model.execute(&Tensor::from_slice(&throws, [throws.len()])?)?.remove(0);
    let counts = counts.as_slice::<i32>()?;
    for (sum, count) in counts.iter().enumerate().skip(2) {
        println!("{sum:2} {}", "*".repeat(*count as usize / 4000));
    }

    assert_eq!(counts.iter().sum::<i32>(), 1_000_000);
    let sevens = throws.iter().filter(|sum| **sum == 7).count();
    assert_eq!(counts[7] as usize, sevens);
    Ok(())
}
