//! Matrix products: square, with few rows, of awkward sizes, of halves.

use criterion::Criterion;
use max::prelude::*;

use crate::{Work, bench};

pub fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("matmul");
    for (dtype, m, k, n) in [
        (DType::F32, 128, 128, 128),
        (DType::F32, 512, 512, 512),
        (DType::F32, 1, 2048, 2048),
        (DType::F32, 127, 1000, 513),
        (DType::BF16, 512, 512, 512),
    ] {
        let name = format!("{}_{m}x{k}x{n}", dtype.short_name());
        bench(&mut group, &name, Work::Flops(2 * m * k * n), dtype, &[&[m, k], &[k, n]], |x| ops::matmul(&x[0], &x[1]));
    }
    let (b, m, k, n) = (16, 128, 64, 128);
    let shapes: [&[usize]; 2] = [&[b, m, k], &[b, k, n]];
    bench(&mut group, "batch_16x128x64x128", Work::Flops(2 * b * m * k * n), DType::F32, &shapes, |x| {
        ops::matmul(&x[0], &x[1])
    });
}
