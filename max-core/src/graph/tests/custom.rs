//! Custom ops against kernel signatures.

use super::*;
use crate::graph::ops::Mismatch;
use crate::kernel::abi::*;
use crate::kernel::{Kernel, KernelLibrary};

unsafe extern "C" fn no_record(
    _: *const Binding,
    _: *mut std::ffi::c_void,
    _: unsafe extern "C" fn(*mut std::ffi::c_void, *const u8, usize),
) {
}

unsafe extern "C" fn no_reference(_: *const Binding, _: *const LaunchArgs, _: i64, _: i64) {}

const fn operand(name: &'static str, access: Access, dtype: DTypeRef, rank: i32) -> OperandDef {
    OperandDef {
        name: Str::new(name),
        access,
        dtype,
        rank,
        zero_init: false,
        written: List::new(&[]),
        part: List::new(&[]),
    }
}

const fn param(name: &'static str, kind: ParamKind, has_default: bool, choices: &'static [Str]) -> ParamDef {
    let (choices, default_text) = (List::new(choices), Str::new(""));
    let dtype = if let ParamKind::Int = kind { DType::U8.code() } else { DType::F32.code() };
    ParamDef { name: Str::new(name), kind, dtype, has_default, default: 0, default_text, choices }
}

const fn kernel(
    name: &'static str,
    signature: &'static str,
    kind: KernelKind,
    operands: &'static [OperandDef],
    generics: &'static [GenericDef],
    params: &'static [ParamDef],
) -> KernelDef {
    KernelDef {
        version: TABLE_VERSION,
        kind,
        name: Str::new(name),
        krate: Str::new("my_ops"),
        file: Str::new("lib.rs"),
        line: 1,
        doc: Str::new(""),
        signature: Str::new(signature),
        optimized: true,
        operands: List::new(operands),
        generics: List::new(generics),
        params: List::new(params),
        may_hold_tiles: false,
        tile_names: List::new(&[]),
        gpu_tile: List::new(&[]),
        gpu_tiles: List::new(&[]),
        variants: List::new(&[]),
        grid: List::new(&[]),
        grid_terms: List::new(&[]),
        nondeterministic: false,
        columns: None,
        transposed: None,
        instances: List::new(&[]),
        record: no_record,
        reference: no_reference,
        // SAFETY: nothing runs it.
        contract: unsafe { Contract::upheld() },
    }
}

static FLOATS: [GenericDef; 1] =
    [GenericDef { name: Str::new("T"), dtypes: List::new(&[DType::F32 as u8, DType::F16 as u8]), by_size: false }];

struct Shift;

impl Kernel for Shift {
    fn def() -> &'static KernelDef {
        const T: DTypeRef = DTypeRef::generic(0);
        static OPERANDS: [OperandDef; 3] =
            [operand("x", Access::In, T, -1), operand("y", Access::In, T, -1), operand("out", Access::Out, T, -1)];
        static PARAMS: [ParamDef; 3] = [
            param("by", ParamKind::Float, false, &[]),
            param("mode", ParamKind::String, true, &[Str::new("left"), Str::new("right")]),
            param("times", ParamKind::Int, true, &[]),
        ];
        const SIGNATURE: &str = "fn shift<T: Float>(x: T, y: T, #[param] by: f64) -> T";
        static DEF: KernelDef = kernel("shift", SIGNATURE, KernelKind::Elementwise, &OPERANDS, &FLOATS, &PARAMS);
        &DEF
    }
}

struct Count;

impl Kernel for Count {
    fn def() -> &'static KernelDef {
        static OPERANDS: [OperandDef; 3] = [
            operand("total", Access::InOut, DTypeRef::fixed(DType::I64), 1),
            operand("x", Access::In, DTypeRef::generic(0), 2),
            operand("mean", Access::Out, DTypeRef::generic(0), 1),
        ];
        const SIGNATURE: &str = "fn count<T: Float>(total: &mut InOut<i64, 1>, x: In<T, 2>, mean: Out<T, 1>)";
        static DEF: KernelDef = kernel("count", SIGNATURE, KernelKind::Program, &OPERANDS, &FLOATS, &[]);
        &DEF
    }
}

struct Fill;

impl Kernel for Fill {
    fn def() -> &'static KernelDef {
        static OPERANDS: [OperandDef; 1] = [operand("out", Access::Out, DTypeRef::fixed(DType::F32), 1)];
        const SIGNATURE: &str = "fn fill<T: Float>(out: Out<f32, 1>)";
        static DEF: KernelDef = kernel("fill", SIGNATURE, KernelKind::Program, &OPERANDS, &FLOATS, &[]);
        &DEF
    }
}

fn graph(types: impl IntoTypes) -> Graph {
    let graph = Graph::new("custom", types);
    let library = KernelLibrary::empty().with::<Shift>().and_then(|l| l.with::<Count>()).and_then(|l| l.with::<Fill>());
    graph.set_kernel_library(library.unwrap());
    graph
}

/// What is wrong with `shift` on these types, with these parameters.
#[track_caller]
fn mismatch(types: impl IntoTypes, out: impl IntoTypes, parameters: Parameters) -> Mismatch {
    let graph = graph(types);
    let error = ops::custom("shift", DeviceRef::CPU, graph.inputs(), out, parameters).unwrap_err();
    match error.kind() {
        GraphErrorKind::Kernel { source: ops::SignatureError::Mismatch { mismatch, .. } } => mismatch.clone(),
        _ => panic!("{error}"),
    }
}

#[test]
fn values_are_broadcast_and_parameters_take_the_declared_kind() {
    let out = f32_type(("n", 4));
    let graph = graph([&out, &f32_type((4,))]);
    let parameters = Parameters::new().with("by", 2).with("mode", "left");
    let [y] = ops::custom("shift", DeviceRef::CPU, graph.inputs(), &out, parameters).unwrap().try_into().unwrap();
    graph.output(y).unwrap();
    assert_eq!(
        graph.to_string(),
        "graph custom(%0: float32[n, 4], %1: float32[4]) {
  %2 = broadcast_to(%1) : float32[n, 4]
  %3 = shift(%0, %2) {by = 2.0, mode = \"left\"} : float32[n, 4]
  return %3
}
"
    );
}

#[test]
fn the_error_names_the_line_the_types_and_the_signature() {
    let graph = graph([f32_type((4,))]);
    let line = line!() + 1;
    let error = ops::custom("shift", DeviceRef::CPU, graph.inputs(), f32_type((4,)), ()).unwrap_err();
    let location = format!("{}:{line}:", file!());
    assert!(error.to_string().starts_with(&format!("`custom(\"shift\")` at {location}")), "{error}");
    let rest = " in graph `custom`: the kernel takes 2 values, got 1\n  kernel: fn shift<T: Float>(x: T, y: T, #[param] \
                by: f64) -> T (crate `my_ops`)\n  operands: float32[4]";
    assert!(error.to_string().ends_with(rest), "{error}");
}

#[test]
fn an_unknown_kernel_has_its_nearest_names() {
    let graph = graph([f32_type((4,))]);
    let error = ops::custom("shfit", DeviceRef::CPU, graph.inputs(), f32_type((4,)), ()).unwrap_err();
    let text =
        "no kernel is named `shfit` (nearest: `shift`); if a crate defines it, link that crate: `use my_ops as _;`";
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn operands_that_do_not_fit_the_signature() {
    let x = f32_type((4,));
    let by = || Parameters::from([("by", 1.0)]);
    let of = |dtype| TensorType::new(dtype, (4,), DeviceRef::CPU);
    assert_eq!(mismatch([&x, &x], (), by()), Mismatch::Results { expected: 1, actual: 0 });
    assert_eq!(
        mismatch([&x, &of(DType::F16)], &x, by()),
        Mismatch::Conflict { generic: "T", bound: DType::F32, first: "x", operand: "y", actual: DType::F16 }
    );
    let i32 = of(DType::I32);
    assert_eq!(
        mismatch([&i32, &i32], &i32, by()),
        Mismatch::Instance { generic: "T", dtype: DType::I32, compiled: vec![DType::F32, DType::F16] }
    );
    let parameter = by().with("T", DType::F16);
    let conflict = mismatch([&x, &x], &x, parameter);
    assert!(matches!(conflict, Mismatch::Conflict { first: "the parameter", operand: "x", .. }), "{conflict}");
}

#[test]
fn parameters_that_do_not_fit_the_signature() {
    let x = f32_type((4,));
    let check = |parameters: Parameters, text: &str| assert_eq!(mismatch([&x, &x], &x, parameters).to_string(), text);
    check(Parameters::new(), "parameter `by` is missing");
    let by = Parameters::from([("by", 1.0)]);
    check(by.clone().with("bye", 1), "the kernel has no parameter `bye`; it has `by`, `mode`, `times`");
    check(by.clone().with("times", 1.5), "parameter `times` must be an integer, got 1.5");
    check(by.clone().with("mode", "up"), "parameter `mode` must be one of \"left\", \"right\", got \"up\"");
    check(by.clone().with("T", 3), "parameter `T` must be a dtype, got 3");
    // It would be another number in the kernel.
    for times in [-1, 256, i64::MIN] {
        let text = format!("parameter `times` is uint8, from 0 to 255, got {times}");
        check(by.clone().with("times", times), &text);
    }
    check(by.clone().with("by", 1.0), "parameter `by` is given twice");
    check(Parameters::from([("times", 1), ("by", 2), ("times", 1)]), "parameter `times` is given twice");
    check([("by", -1e300)].into(), "parameter `by` is float32, from -3.4028235e38 to 3.4028235e38, got -1e300");
    let graph = graph([&x, &x]);
    for (by, times) in [(f64::NAN, 0), (f64::NEG_INFINITY, 255), (3.4028235e38, 1)] {
        let parameters = Parameters::from([("by", by)]).with("times", times);
        assert!(ops::custom("shift", DeviceRef::CPU, graph.inputs(), &x, parameters).is_ok(), "{by}");
    }
}

#[test]
fn a_value_changed_in_place_is_a_buffer_of_inplace_custom() {
    let (x, mean) = (f32_type((3, 4)), f32_type((3,)));
    let total = BufferType::new(DType::I64, (8,), DeviceRef::CPU);
    let good = graph((&total, &x));
    for _ in 0..2 {
        ops::inplace_custom("count", DeviceRef::CPU, good.inputs(), &mean, ()).unwrap();
    }
    good.output(()).unwrap();
    let text = good.to_string();
    assert!(text.contains("%2 = count(%0, %1) : float32[3] effect n2\n"), "{text}");
    assert!(text.contains("%3 = count(%0, %1) : float32[3] effect n3 after n2\n"), "{text}");

    let pure = ops::custom("count", DeviceRef::CPU, good.inputs(), &mean, ()).unwrap_err();
    let tensor = graph((total.as_tensor(), &x));
    let tensor = ops::inplace_custom("count", DeviceRef::CPU, tensor.inputs(), &mean, ()).unwrap_err();
    for error in [pure, tensor] {
        assert!(
            error.to_string().contains("changes `total` in place; pass a buffer, and add the op with `inplace_custom`")
        );
    }
    let buffer = graph([x.as_buffer(), x.as_buffer()]);
    let nothing = ops::inplace_custom("shift", DeviceRef::CPU, buffer.inputs(), &x, [("by", 1.0)]).unwrap_err();
    let text = nothing.to_string();
    assert!(
        text.contains(": the kernel changes none of its operands in place; add the op with `custom`\n  kernel: "),
        "{text}"
    );
    let flat = graph((&total, &mean));
    let rank = ops::inplace_custom("count", DeviceRef::CPU, flat.inputs(), &mean, ()).unwrap_err();
    assert!(rank.to_string().contains("`x` must have rank 2, got 1; reshape it with `reshape`"), "{rank}");
    let small = graph((BufferType::new(DType::I32, (8,), DeviceRef::CPU), &x));
    let dtype = ops::inplace_custom("count", DeviceRef::CPU, small.inputs(), &mean, ()).unwrap_err();
    assert!(dtype.to_string().contains("`total` must be int64, got int32; cast it with `cast`"), "{dtype}");
}

#[test]
fn devices_result_types_and_empty_values_are_checked() {
    let x = f32_type((4,));
    let by = || Parameters::from([("by", 1.0)]);
    let g = graph([&x, &x]);
    let error = |device, out: &TensorType| ops::custom("shift", device, g.inputs(), out, by()).unwrap_err().to_string();
    let text = error(DeviceRef::gpu(0), &x);
    let advice = "move it there with `transfer_to`, or give the op that device";
    assert!(text.contains(&format!("the op runs on gpu:0, but an operand is on cpu:0; {advice}")), "{text}");
    let text = error(DeviceRef::CPU, &TensorType::new(DType::F32, (4,), DeviceRef::gpu(1)));
    assert!(text.contains("the op runs on cpu:0, but a result is on gpu:1; declare its type on cpu:0"), "{text}");
    assert!(error(DeviceRef::CPU, &f32_type(("m",))).contains("dim `m` needs the size of `m`"));
    assert!(error(DeviceRef::CPU, &f32_type((-1,))).contains("dim 0 of [-1] is negative"));
    assert!(error(DeviceRef::CPU, &f32_type((5,))).contains("[4] does not broadcast to [5]"));
    let none = ops::custom("fill", DeviceRef::CPU, (), &x, ()).unwrap_err();
    assert!(none.to_string().contains("without any, use `Graph::custom`"), "{none}");
    let unbound = g.custom("fill", DeviceRef::CPU, (), &x, ()).unwrap_err();
    assert!(unbound.to_string().contains("nothing says what `T` is"), "{unbound}");
    assert!(g.custom("fill", DeviceRef::CPU, (), &x, [("T", DType::F16)]).is_ok());
}

struct Relu;

impl Kernel for Relu {
    fn def() -> &'static KernelDef {
        const T: DTypeRef = DTypeRef::generic(0);
        static OPERANDS: [OperandDef; 2] = [operand("x", Access::In, T, -1), operand("out", Access::Out, T, -1)];
        static DEF: KernelDef =
            kernel("relu", "fn relu<T: Float>(x: T) -> T", KernelKind::Elementwise, &OPERANDS, &FLOATS, &[]);
        &DEF
    }
}

#[test]
fn a_built_in_op_without_a_kernel_for_its_dtype_is_an_error_when_it_is_added() {
    let graph = Graph::new("custom", [f32_type((4,)), TensorType::new(DType::I32, (4,), DeviceRef::CPU)]);
    graph.set_kernel_library(KernelLibrary::empty().with::<Relu>().unwrap());
    assert!(ops::relu(&graph.inputs()[0]).is_ok());
    let error = ops::relu(&graph.inputs()[1]).unwrap_err().to_string();
    let text = "the kernel was not compiled for `T` = int32; it was for float32, float16; cast with `cast`\n  kernel: fn relu<T: Float>(x: T) \
                -> T (crate `my_ops`)\n  operands: int32[4]";
    assert!(error.ends_with(text), "{error}");
}
