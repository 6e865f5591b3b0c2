//! The code of `docs/guide/11-numerics.md`.

use max::prelude::*;

use crate::{f32s, run};

/// Whether x² - y² is the same with one rounding less.
#[kernel(op = "guide_exact", dtypes(T = [f32, f64]))]
fn exact<T: Float>(x: T, y: T) -> bool {
    x * x - y * y == x.mul_add(x, -(y * y))
}

#[test]
fn products_are_fused_only_on_request() {
    // x² is exact only before it is rounded: the fused form sees the difference.
    let x = 1.0 + f32::EPSILON;
    let fused = x.mul_add(x, -(x * x));
    assert_ne!(fused, 0.0);
    let y = &run("guide_exact", &[f32s(&[3.0, x]), f32s(&[2.0, x])], &[DType::Bool], ())[0];
    let fma = !matches!(max::kernel::form(), Ok(max::kernel::Form::Compiled(level)) if level.name() == "v2" || level.name() == "portable");
    assert_eq!(y.to_vec::<bool>().unwrap(), [true, !fma]);
}
