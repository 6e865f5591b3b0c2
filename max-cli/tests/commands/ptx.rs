//! `max ptx` and `max ir`.

use std::collections::HashSet;
use std::fs;

use crate::max;

#[test]
fn ptx_is_for_the_target_and_the_dtype() {
    let ptx = max(&["ptx", "relu"]).success();
    assert!(ptx.contains(".target sm_80") && ptx.contains(".visible .entry"), "{ptx}");
    assert!(ptx.contains(".f32"), "{ptx}");
    let ptx = max(&["ptx", "relu", "--sm", "90a", "--dtype", "i32"]).success();
    assert!(ptx.contains(".target sm_90a") && ptx.contains(".s32") && !ptx.contains(".f32"), "{ptx}");
}

#[test]
fn ptx_is_the_same_every_time() {
    let print = || max(&["ptx", "softmax", "--dtype", "bf16"]).success();
    assert_eq!(print(), print());
}

#[test]
fn annotations_name_source_lines() {
    let plain = max(&["ptx", "softmax"]).success();
    let annotated = max(&["ptx", "softmax", "--annotate"]).success();
    assert!(annotated.contains(".file 1 \"max-kernels/src/reduction/softmax.rs\""), "{annotated}");
    assert!(annotated.contains("    .loc 1 ") && annotated.contains(" // softmax.rs:"), "{annotated}");
    assert!(!plain.contains("softmax.rs") && !plain.contains(".loc"), "{plain}");
}

#[test]
fn products_of_tf32_are_asked_for() {
    assert!(max(&["ptx", "matmul", "--dtype", "f32", "--tf32"]).success().contains(".tf32.tf32."));
    assert!(!max(&["ptx", "matmul", "--dtype", "f32"]).success().contains("tf32"));
}

#[test]
fn a_parameter_that_is_given_is_folded() {
    let open = max(&["ir", "cumsum"]).success();
    assert!(open.contains("param exclusive"), "{open}");
    let folded = max(&["ir", "cumsum", "--param", "exclusive=true"]).success();
    assert!(folded.starts_with("kernel \"cumsum\""), "{folded}");
    assert_ne!(open, folded);
    assert!(
        max(&["ptx", "cumsum", "--param", "exclusive=true", "--param", "reverse=true"]).success().contains(".entry")
    );
}

#[test]
fn dtypes_are_chosen_by_name() {
    let ir = max(&["ir", "cast", "--dtypes", "T=f32,U=i64"]).success();
    assert!(ir.contains("f32") && ir.contains("i64"), "{ir}");
    // A dtype goes to every generic that can be it, and to no other.
    let ir = max(&["ir", "gather", "--dtype", "f64"]).success();
    assert!(ir.contains("u64") && ir.contains("i64"), "{ir}");
}

#[test]
fn what_a_kernel_does_not_have_is_an_error_that_lists_what_it_has() {
    let dtype = max(&["ptx", "softmax", "--dtype", "i8"]).failure(2);
    assert!(dtype.contains("`T` cannot be int8; it is one of: f16, bf16, f32, f64"), "{dtype}");
    assert!(dtype.contains("kernel: softmax<T: Float>"), "{dtype}");
    let generic = max(&["ptx", "softmax", "--dtypes", "U=f32"]).failure(2);
    assert!(generic.contains("`softmax` has no dtype generic `U`"), "{generic}");
    let param = max(&["ptx", "cumsum", "--param", "inclusive=true"]).failure(2);
    assert!(param.contains("no parameter `inclusive`; it has `exclusive`, `reverse`"), "{param}");
    let value = max(&["ptx", "cumsum", "--param", "reverse=7"]).failure(2);
    assert!(value.contains("parameter `reverse` is \"7\", but must be bool"), "{value}");
    let missing = max(&["ptx", "attention", "--param", "causal=true"]).failure(2);
    assert!(missing.contains("parameter `scale` has no default; give it a value: `--param scale=VALUE`"), "{missing}");
    let old = max(&["ptx", "relu", "--sm", "70"]).failure(1);
    assert!(old.contains("for sm_70") && old.contains("the oldest is sm_80"), "{old}");
    assert!(max(&["ir", "rellu"]).failure(2).contains("nearest: `relu`"));
}

#[test]
fn one_kernel_or_all_of_them() {
    assert!(max(&["ptx"]).failure(2).contains("say which kernel"));
    assert!(max(&["ptx", "--all"]).failure(2).contains("--out"));
    assert!(max(&["ptx", "relu", "--all", "--out", "x"]).failure(2).contains("--all"));
}

#[test]
fn all_kernels_are_written_in_all_their_dtypes() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("new").join("ptx");
    let text = path.to_str().expect("a UTF-8 path");
    let summary = max(&["ptx", "--all", "--out", text, "--sm", "80,90a"]).success();
    let names: HashSet<String> = fs::read_dir(&path)
        .expect("it was made")
        .map(|entry| entry.expect("it can be read").file_name().into_string().expect("UTF-8"))
        .collect();
    assert!(summary.starts_with(&format!("wrote {n} of {n} modules", n = names.len())), "{summary}");
    for name in ["relu.f32.sm_80.ptx", "relu.i64.sm_90a.ptx", "cast.f32-i64.sm_80.ptx", "matmul.bf16.sm_90a.ptx"] {
        assert!(names.contains(name), "no {name}");
    }
    let relu = fs::read_to_string(path.join("relu.f32.sm_80.ptx")).expect("it was written");
    assert_eq!(relu.trim_end(), max(&["ptx", "relu"]).success().trim_end());
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let inside = file.path().join("ptx");
    let error = max(&["ptx", "--all", "--out", inside.to_str().expect("a UTF-8 path")]).failure(1);
    assert!(error.contains(inside.to_str().expect("UTF-8")), "{error}");
}
