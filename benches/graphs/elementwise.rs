//! Elementwise ops: one, chains of them, in cache and from memory.

use criterion::Criterion;
use max::graph::ops::GeluApproximation;
use max::prelude::*;

use crate::{Work, bench};

pub fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("elementwise");
    for n in [256, 2048] {
        let shape = [n, n];
        let bytes = |tensors: usize, dtype: DType| Work::Bytes(tensors * n * n * dtype.size_in_bytes());
        for dtype in [DType::F32, DType::BF16] {
            let name = |op: &str| format!("{op}_{}_{n}x{n}", dtype.short_name());
            bench(&mut group, &name("add"), bytes(3, dtype), dtype, &[&shape, &shape], |x| ops::add(&x[0], &x[1]));
            bench(&mut group, &name("exp"), bytes(2, dtype), dtype, &[&shape], |x| ops::exp(&x[0]));
        }
        let name = format!("chain5_f32_{n}x{n}");
        bench(&mut group, &name, bytes(2, DType::F32), DType::F32, &[&shape], |x| {
            Ok(ops::relu(&x[0] * 2.0 + 1.0)? * &x[0] - &x[0])
        });
        let name = format!("chain_gelu_tanh_f32_{n}x{n}");
        bench(&mut group, &name, bytes(2, DType::F32), DType::F32, &[&shape], |x| {
            Ok(ops::tanh(ops::gelu(&x[0] * 2.0 + 1.0, GeluApproximation::None)?)? * &x[0])
        });
        let name = format!("add_row_f32_{n}x{n}");
        bench(&mut group, &name, bytes(2, DType::F32), DType::F32, &[&shape, &[n]], |x| ops::add(&x[0], &x[1]));
    }
}
