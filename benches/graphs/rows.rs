//! Ops along rows and columns: reductions, norms, scans, selection.

use criterion::Criterion;
use max::prelude::*;

use crate::{Work, bench};

pub fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rows");
    for (rows, columns) in [(77, 1000), (1024, 4096)] {
        let (shape, row): (&[usize], &[usize]) = (&[rows, columns], &[columns]);
        let bytes = |tensors: usize| Work::Bytes(tensors * rows * columns * 4);
        let name = |op: &str| format!("{op}_{rows}x{columns}");
        let f32 = DType::F32;
        bench(&mut group, &name("softmax"), bytes(2), f32, &[shape], |x| ops::softmax(&x[0], -1));
        bench(&mut group, &name("layer_norm"), bytes(2), f32, &[shape, row, row], |x| {
            ops::layer_norm(&x[0], &x[1], &x[2], 1e-5)
        });
        bench(&mut group, &name("rms_norm"), bytes(2), f32, &[shape, row], |x| ops::rms_norm(&x[0], &x[1], 1e-6));
        bench(&mut group, &name("sum_rows"), bytes(1), f32, &[shape], |x| ops::sum(&x[0], -1));
        bench(&mut group, &name("sum_cols"), bytes(1), f32, &[shape], |x| ops::sum(&x[0], 0));
        bench(&mut group, &name("argmax"), bytes(1), f32, &[shape], |x| ops::argmax(&x[0], -1));
        bench(&mut group, &name("cumsum"), bytes(2), f32, &[shape], |x| ops::cumsum(&x[0], -1, false, false));
        bench(&mut group, &name("transpose"), bytes(2), f32, &[shape], |x| ops::transpose(&x[0], 0, 1));
        bench(&mut group, &name("top_8"), bytes(1), f32, &[shape], |x| Ok(ops::top_k(&x[0], 8, -1)?.0));
    }
}
