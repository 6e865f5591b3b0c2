//! The Mandelbrot set in eager tensors: no kernel is written, and each turn of the loop is one fused region, compiled once.

use max::functional::{self as F, functional};
use max::tensor::{Tensor, default_device};

const LIMIT: usize = 100;

fn main() -> max::Result<()> {
    let start = std::time::Instant::now();
    let counts = default_device(max::driver::DeviceRef::CPU, counts)?;
    println!("computed in {:.1?}", start.elapsed());

    for row in counts.to_vec::<f32>()?.chunks(320).step_by(12) {
        let shade = |n: &f32| match *n as usize {
            LIMIT => '#',
            n => ['.', ':', '-', '=', '+', '*'][n.ilog2().min(5) as usize],
        };
        println!("{}", row.iter().step_by(4).map(shade).collect::<String>());
    }
    // -0.1 belongs to the set, and the corner leaves it after its first step.
    assert_eq!(counts.i((120, 200))?.item::<f32>()?, LIMIT as f32);
    assert_eq!(counts.i((0, 0))?.item::<f32>()?, 1.0);
    Ok(())
}

/// How often `z = z² + c` stays within the circle of radius 2, for a part of the plane of 240 by 320 points.
fn counts() -> max::Result<Tensor> {
    let re = (Tensor::arange(0, 320, 1)? * 0.01 - 2.1).reshape([1, 320])?.broadcast_to([240, 320])?;
    let im = (Tensor::arange(0, 240, 1)? * 0.01 - 1.2).reshape([240, 1])?.broadcast_to([240, 320])?;
    let (mut x, mut y) = (Tensor::zeros([240, 320])?, Tensor::zeros([240, 320])?);
    let mut counts = Tensor::zeros([240, 320])?;
    for _ in 0..LIMIT {
        (x, y, counts) = functional(|| {
            let (xx, yy) = (&x * &x, &y * &y);
            let stays = F::greater_equal(4.0, &xx + &yy)?;
            // What has left stays where it is, so that nothing overflows.
            let next = F::where_(&stays, &xx - &yy + &re, &x)?;
            let im = F::where_(&stays, &x * &y * 2.0 + &im, &y)?;
            Ok((next, im, &counts + F::where_(&stays, Tensor::ones([1, 1])?, 0.0)?))
        })?;
    }
    Ok(counts)
}
