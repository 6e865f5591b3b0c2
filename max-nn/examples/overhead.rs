//! What staging costs: one op, a region that is found again, and a million ops in a loop.

use std::hint::black_box;
use std::time::Instant;

use max_nn::functional::{self as F, functional};
use max_nn::tensor::Tensor;
use max_nn::{driver, nn};

/// The bytes of memory that the process has, where the system tells.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or_default() * 4096
}

/// The least time of a turn, in nanoseconds, of many rounds.
fn measure(mut turn: impl FnMut()) -> f64 {
    const TURNS: u32 = 1000;
    let mut rounds: Vec<f64> = (0..200)
        .map(|_| {
            let start = Instant::now();
            (0..TURNS).for_each(|_| turn());
            start.elapsed().as_nanos() as f64 / f64::from(TURNS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("    median {:.0} ns, least {:.0} ns", rounds[rounds.len() / 2], rounds[0]);
    rounds[0]
}

fn main() -> Result<(), max_nn::Error> {
    max_kernels::link();
    let x = Tensor::constant([1.0f32, -2.0, 3.0, -4.0, 5.0])?;
    println!("relu of 5 elements, staged and computed:");
    let relu = measure(|| drop(black_box(F::relu(&x).and_then(|y| y.realize().map(|()| y)))));
    println!("relu of 5 elements, staged and dropped:");
    measure(|| drop(black_box(F::relu(&x))));

    let (a, b, c) = (Tensor::ones([5])?, Tensor::ones([5])?, Tensor::ones([5])?);
    println!("a * b + c in a region:");
    let region = measure(|| drop(black_box(functional(|| Ok(&a * &b + &c)))));
    let types = [a.ty(), b.ty(), c.ty()];
    let model = nn::compile("mul_add", types, |x| Ok(&x[0] * &x[1] + &x[2]))?;
    let inputs = [a.driver_tensor()?, b.driver_tensor()?, c.driver_tensor()?];
    println!("Model::execute of the same:");
    let execute = measure(|| drop(black_box(model.execute(&inputs))));
    println!("a region costs {:.0} ns more than its model; relu {relu:.0} ns", region - execute);

    let mut y = Tensor::from(driver::Tensor::full(0.0f32, [5])?);
    let mut step = |count: u32| {
        for _ in 0..count {
            y = &y * 0.5 + 1.0;
        }
    };
    step(10_000);
    let (before, start) = (resident(), Instant::now());
    step(500_000);
    let per_op = start.elapsed().as_nanos() as f64 / 1e6;
    println!("a million ops: {per_op:.0} ns each, resident memory {before} before, {} after", resident());
    Ok(())
}
