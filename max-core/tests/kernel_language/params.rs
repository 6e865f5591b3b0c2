//! Parameters of each kind.

use max::kernel::abi::hash_str;
use max::kernel::prelude::*;
use max::kernel::{Form, Kernel, KernelError, ParamArg};

use crate::support::{blank, check, forms, vector};

/// Scales, shifts, then maybe clamps.
#[kernel(op = "p_all")]
fn all(
    x: f32,
    #[param] scale: f64,
    #[param(default = -3)] shift: i32,
    #[param(default = false)] negate: bool,
    #[param(default = "none", choices("none", "relu", "abs"))] mode: &str,
) -> f32 {
    let y = x * scale as f32 + shift as f32;
    let y = if negate { -y } else { y };
    if mode == "relu" {
        y.max(0.0)
    } else if "abs" == mode {
        y.abs()
    } else {
        y
    }
}

#[test]
fn parameters_of_each_kind_arrive() {
    let x = [1.0_f32, -2.0, 4.0];
    let operands = [vector(&x), blank(&[3], 0.0_f32)];
    let scale = ("scale", ParamArg::Float(2.0));
    check::<all, f32>(&operands, &[scale], &x.map(|x| x * 2.0 - 3.0));
    check::<all, f32>(&operands, &[scale, ("negate", ParamArg::Bool(true))], &x.map(|x| -(x * 2.0 - 3.0)));
    let mode = |mode| [scale, ("shift", ParamArg::Int(1)), ("mode", ParamArg::String(mode))];
    check::<all, f32>(&operands, &mode("relu"), &x.map(|x| (x * 2.0 + 1.0).max(0.0)));
    check::<all, f32>(&operands, &mode("abs"), &x.map(|x| (x * 2.0 + 1.0).abs()));
    check::<all, f32>(&operands, &mode("none"), &x.map(|x| x * 2.0 + 1.0));
}

#[test]
fn the_table_describes_parameters() {
    let params = all::def().params.as_slice();
    let names: Vec<&str> = params.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["scale", "shift", "negate", "mode"]);
    assert_eq!(params.iter().map(|p| p.has_default).collect::<Vec<_>>(), [false, true, true, true]);
    assert_eq!(params[1].default as i64, -3);
    assert_eq!(params[1].default_text.as_str(), "-3");
    assert_eq!(params[3].default, hash_str("none"));
    assert_eq!(params[3].choices.as_slice().iter().map(|c| c.as_str()).collect::<Vec<_>>(), ["none", "relu", "abs"]);
    let signature = all::def().signature.as_str();
    assert!(signature.contains("#[param] scale: f64, #[param(default = -3)] shift: i32"), "{signature}");
    let mode = "#[param(default = \"none\", choices(\"none\", \"relu\", \"abs\"))] mode: &str";
    assert!(signature.contains(mode), "{signature}");
    assert_eq!(all::def().doc.as_str(), "Scales, shifts, then maybe clamps.");
}

#[test]
fn wrong_parameters_are_refused() {
    use max::dtype::DType::F32;
    for form in forms() {
        let bind = |params: &[(&str, ParamArg<'static>)]| {
            all::def().bind(&[F32, F32], |name| params.iter().find(|(n, _)| *n == name).map(|(_, v)| *v), form).err()
        };
        assert!(matches!(bind(&[]), Some(KernelError::Binding { .. })));
        assert!(matches!(bind(&[("scale", ParamArg::String("2"))]), Some(KernelError::Binding { .. })));
        let mode = [("scale", ParamArg::Int(2)), ("mode", ParamArg::String("gelu"))];
        assert!(matches!(bind(&mode), Some(KernelError::Binding { .. })));
        assert!(bind(&mode[..1]).is_none());
    }
}

#[kernel]
fn activated(x: f32, mode: &str) -> f32 {
    if mode != "none" { x.max(0.0) } else { x }
}

/// Parameters alone: no element is read.
#[kernel(op = "p_fill")]
fn fill<T: Number>(#[param] value: f32, #[param(default = "none")] mode: &str) -> T {
    activated(value, mode) as T
}

#[test]
fn a_kernel_needs_no_inputs() {
    let value = ("value", ParamArg::Float(-2.5));
    check::<fill, f32>(&[blank(&[5], 0.0_f32)], &[value], &[-2.5; 5]);
    check::<fill, i16>(&[blank(&[5], 9_i16)], &[value], &[-2; 5]);
    check::<fill, f32>(&[blank(&[2], 1.0_f32)], &[value, ("mode", ParamArg::String("relu"))], &[0.0; 2]);
}

/// A parameter of each type of numbers.
#[kernel(op = "p_numbers")]
fn numbers(
    x: f64,
    #[param(default = 0)] a: u8,
    #[param(default = 0)] b: i32,
    #[param(default = 0)] c: u64,
    #[param(default = 0)] d: i64,
    #[param(default = 0)] e: f32,
) -> f64 {
    x + a as f64 + b as f64 + c as f64 + d as f64 + e as f64
}

#[test]
fn a_number_beyond_its_type_is_refused() {
    use max::dtype::DType::F64;
    let bind = |name: &str, value: ParamArg<'static>| {
        numbers::def().bind(&[F64, F64], |n| (n == name).then_some(value), Form::Reference).err().map(|e| e.to_string())
    };
    let beyond = [
        ("a", ParamArg::Int(300), "parameter `a` is 300, not one of 0 to 255"),
        ("a", ParamArg::Int(-1), "parameter `a` is -1, not one of 0 to 255"),
        ("b", ParamArg::Int(5_000_000_000), "parameter `b` is 5000000000, not one of -2147483648 to 2147483647"),
        ("c", ParamArg::Int(-1), "parameter `c` is -1, not one of 0 to 18446744073709551615"),
        ("e", ParamArg::Float(1e300), "parameter `e` is 1e300, not one of -3.4028235e38 to 3.4028235e38"),
    ];
    for (name, value, text) in beyond {
        assert!(bind(name, value).is_some_and(|error| error.contains(text)), "{value:?}: {:?}", bind(name, value));
    }
    let within = [
        ("a", ParamArg::Int(255)),
        ("b", ParamArg::Int(i32::MIN.into())),
        ("c", ParamArg::Int(i64::MAX)),
        ("d", ParamArg::Int(i64::MIN)),
        ("e", ParamArg::Float(f64::NAN)),
        ("e", ParamArg::Float(f64::NEG_INFINITY)),
        ("e", ParamArg::Int(1 << 40)),
    ];
    for (name, value) in within {
        assert_eq!(bind(name, value), None);
    }
}
