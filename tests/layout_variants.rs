//! Kernels that are found beside others by their names (`sum_columns` for `sum`), and a user's kernels of such names.

use max::graph::ops;
use max::kernel::abi::KernelDef;
use max::kernel::{KernelLibrary, LayoutVariant};
use max::prelude::*;

/// A name that the library has, and no sum.
#[kernel(op = "sum_columns", dtypes(T = [f32]))]
fn sum_columns<T: Number>(y: Out<T, 2>, x: In<T, 3>) {
    let [outer, part] = program_id();
    y.select(outer).block::<64>(part).write(x.select(outer).columns::<64>(part).max());
}

/// For a kernel of another crate.
#[kernel(op = "layer_norm_transposed", dtypes(T = [f32]))]
fn layer_norm_transposed<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).write(x.row(row));
}

macro_rules! of_two_operands {
    ($($op:literal $name:ident($($more:tt)*))+) => { $(
        #[kernel(op = $op, dtypes(T = [f32]))]
        fn $name<T: Float>(y: Out<T, 2>, a: In<T, 2>, b: In<T, 2>, $($more)*) {
            let row = program_id(0);
            y.row(row).write(a.row(row).zip(b.row(row)).map(|(a, b)| a * b));
        }
    )+ };
}
of_two_operands! {
    "twin_a" a()
    "twin_a_transposed" a_transposed()
    "twin_b" b(#[param(default = 1)] _times: i64)
    "twin_b_transposed" b_transposed(#[param(default = 2)] _times: i64)
    "twin_c" c()
    "twin_c_transposed" c_transposed(#[param] _times: i64)
}

fn layout_variant(name: &str, kind: LayoutVariant) -> Option<&'static KernelDef> {
    let library = KernelLibrary::linked();
    library.layout_variant(library.get(name).unwrap(), kind)
}

#[test]
fn the_library_s_kernels_have_their_layout_variants() {
    let mut found = 0;
    for def in KernelLibrary::linked().iter().filter(|def| def.krate.as_str() == "max-kernels") {
        let name = def.name.as_str();
        for (suffix, kind) in [("_columns", LayoutVariant::Columns), ("_transposed", LayoutVariant::Transposed)] {
            if let Some(own) = name.strip_suffix(suffix) {
                let layout_variant =
                    layout_variant(own, kind).unwrap_or_else(|| panic!("`{name}` is no layout_variant of `{own}`"));
                assert_eq!((layout_variant.name.as_str(), layout_variant.krate.as_str()), (name, "max-kernels"));
                found += 1;
            }
        }
    }
    assert!(found >= 12, "{found}");
    assert!(
        layout_variant("sum", LayoutVariant::Transposed).is_none()
            && layout_variant("matmul", LayoutVariant::Columns).is_none()
    );
}

/// A layout_variant is of the same crate, with the same operands and parameters.
#[test]
fn a_name_alone_makes_no_layout_variant() {
    let names = ["twin_a", "twin_b", "twin_c", "layer_norm"];
    let found = names.map(|name| layout_variant(name, LayoutVariant::Transposed).map(|def| def.name.as_str()));
    assert_eq!(found, [Some("twin_a_transposed"), None, None, None]);
}

/// A kernel of the library finds its layout_variant whoever else has the name, which is an error for those who ask for it.
#[test]
fn a_user_s_kernel_takes_no_op_s_place() {
    let x = TensorType::new(DType::F32, (3, 100), DeviceRef::CPU);
    let graph = Graph::build("sums", [&x], |_, x| ops::sum(x[0].tensor()?, 0)).unwrap();
    let values: Vec<f32> = (0..300).map(|i| i as f32).collect();
    let outputs =
        InferenceSession::new().load(&graph).unwrap().execute(&Tensor::from_slice(&values, [3, 100]).unwrap());
    let expected: Vec<f32> = (0..100).map(|j| (3 * j + 300) as f32).collect();
    assert_eq!(outputs.unwrap()[0].to_vec::<f32>().unwrap(), expected);
    let shown = TensorType::new(DType::F32, (1, 100), DeviceRef::CPU);
    let custom = Graph::build("custom", [TensorType::new(DType::F32, (1, 3, 100), DeviceRef::CPU)], |_, x| {
        Ok(ops::custom("sum_columns", DeviceRef::CPU, [&x[0]], &shown, ())?[0].clone())
    });
    let text = custom.unwrap_err().to_string();
    assert!(text.contains("two kernels are named `sum_columns`: one in crate"), "{text}");
    assert!(text.contains("crate `max-tests` (tests/layout_variants.rs:"), "{text}");
}
