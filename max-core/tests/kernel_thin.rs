//! The three kernels that every change to the kernel language must keep working: an elementwise one with a parameter,
//! a row reduction, and a matmul on tiles.

extern crate max_core as max;

use max::dtype::DType;
use max::kernel;
use max::kernel::{Kernel, KernelLibrary};

#[kernel(op = "t_add_constant")]
fn add_constant<T: Number>(x: T, #[param] value: i64) -> T {
    x + T::from_i64(value)
}

#[kernel(op = "t_softmax")]
fn softmax<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let m = x.fold(T::NEG_INFINITY, |m, v| m.max(v)).max();
    let s = x.fold(0.0, |s, v| s + (v - m).exp()).sum();
    y.row(row).write(x.map(|v| (v - m).exp() / s));
}

#[kernel(op = "t_matmul", tile(BM = 8, BN = 48, BK = 256), tile(gpu(BM = 64, BN = 64, BK = 32)))]
fn matmul<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc.cast());
}

#[test]
fn kernels_are_registered_with_their_signatures() {
    let signature = |name: &str| KernelLibrary::linked().get(name).map(|def| def.signature.as_str());
    assert_eq!(signature("t_add_constant"), Ok("add_constant<T: Number>(x: T, #[param] value: i64) -> T"));
    assert_eq!(signature("t_softmax"), Ok("softmax<T: Float>(y: Out<T, 2>, x: In<T, 2>)"));
    assert_eq!(softmax::def().grid.as_slice().len(), 1);
    assert_eq!(matmul::def().grid.as_slice().len(), 2);
}

#[test]
fn recorded_ir_names_the_authors_lines() {
    let text = add_constant::def().ir_text(&[DType::F32], None);
    let line = add_constant::def().line;
    assert!(text.contains(&format!("cast %1 @{}:", line + 1)), "{text}");
    assert!(text.contains(&format!("param value @{line}:")), "{text}");
}
