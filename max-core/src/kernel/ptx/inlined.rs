//! Tests of kernels that others were put into: they are valid, do what is expected, and have PTX.

use super::{Options, Target, write};
use crate::dtype::DType;
use crate::kernel::abi::Access;
use crate::kernel::ir::Place::{self, Memory, Program, Scratch};
use crate::kernel::ir::{Chain, Kernel, Operand, Side, fuse, parse, verify};

fn kernel(text: &str) -> Kernel {
    parse(text).unwrap_or_else(|error| panic!("{error}"))
}

/// `y = op(x, x)` for two operands, of a dtype that computes in `f32`.
fn binary(op: &str, dtype: &str) -> Kernel {
    let header = format!("kernel \"{op}\" elementwise (in x: {dtype}, in y: {dtype}, out z: {dtype})");
    kernel(&format!("{header} |%0: f32, %1: f32| {{\n  %2: f32 = {op} %0, %1\n  yield %2\n}}\n"))
}

fn memory(name: &str, access: Access, dtype: DType) -> Operand {
    Operand { name: name.to_owned(), access, dtype, rank: 0 }
}

/// The names of the instructions of a kernel that is valid and has PTX.
#[track_caller]
fn names(kernel: &Kernel) -> Vec<String> {
    verify(kernel).unwrap_or_else(|errors| panic!("{errors}\n{kernel}"));
    let target = Target { sm: 80, arch_specific: false };
    write(kernel, Options::new(target)).unwrap_or_else(|error| panic!("{error}\n{kernel}"));
    let text = kernel.to_string();
    assert_eq!(parse(&text).unwrap().to_string(), text);
    let line = |line: &str| {
        let line = line.trim();
        let op = line.strip_prefix('%').and_then(|line| line.split_once(" = ")).map_or(line, |(_, op)| op);
        op.split([' ', '{']).next().unwrap_or_default().to_owned()
    };
    let code = text.lines().skip(1).map(line);
    code.filter(|name| !["const", "dim", "ge", "lt", "and", "}", "yield", ""].contains(&&name[..])).collect()
}

#[test]
fn a_chain_is_one_kernel_that_rounds_between_its_kernels() {
    for (dtype, name, round) in [(DType::BF16, "bf16", true), (DType::F32, "f32", false)] {
        let chain = Chain {
            kernels: vec![
                (binary("mul", name), vec![Memory(0), Memory(1), Scratch(0)]),
                (binary("add", name), vec![Scratch(0), Memory(0), Memory(2)]),
                (binary("sub", name), vec![Memory(2), Scratch(0), Memory(3)]),
            ],
            operands: [("a", Access::In), ("b", Access::In), ("c", Access::Out), ("d", Access::Out)]
                .map(|(name, access)| memory(name, access, dtype))
                .into(),
        };
        let expected = ["mul", "round", "add", "round", "sub", "round"];
        let expected: Vec<&str> = expected.into_iter().filter(|op| round || *op != "round").collect();
        let kernel = chain.alone("chain");
        assert_eq!(names(&kernel), expected, "{kernel}");
        assert_eq!((kernel.elements.len(), kernel.body.yields.len()), (2, 2));
    }
}

fn scale(operand: u32, place: [Place; 3], written: bool) -> Side {
    let mut operands = vec![memory("a", Access::In, DType::F32)];
    operands.extend(written.then(|| memory("b", Access::Out, DType::F32)));
    Side { chain: Chain { kernels: vec![(binary("mul", "f32"), place.into())], operands }, operand }
}

#[test]
fn what_a_row_program_reads_and_writes_is_computed_there() {
    let program = || {
        kernel(
            "kernel \"rows\" program grid(y.0) (out y: f32[2], in x: f32[2]) {
               %0: i64 = program_id 0
               %1: i64 = dim x.1
               lanes %1 |%2: i64| {
                 %3: f32 = load x[%0, %2]
                 %4: f32 = neg %3
                 store y[%0, %2] = %4
               }
             }",
        )
    };
    let before = || Some(scale(1, [Memory(0), Memory(0), Program], false));
    let after = || Some(scale(0, [Program, Memory(0), Memory(1)], true));
    let both = fuse(program(), before(), after(), false);
    let expected = ["program_id", "lanes", "load", "mul", "select", "neg", "load", "mul", "store"];
    assert_eq!(names(&both), expected, "{both}");
    let written: Vec<&str> = both.operands.iter().map(|operand| operand.name.as_str()).collect();
    assert_eq!(written, ["y", "x", "a2", "a3", "b4"]);
    let cached = fuse(program(), None, after(), true);
    let expected = ["program_id", "lanes", "load", "neg", "load", "mul", "store", "store"];
    assert_eq!(names(&cached), expected, "{cached}");
}

#[test]
fn tensor_cores_multiply_what_is_computed() {
    let program = kernel(
        "kernel \"dot\" program grid(c.0 / 64, c.1 / 64) (out c: bf16[2], in a: bf16[2], in b: bf16[2]) {
           %0: i64 = program_id 0 %1: i64 = program_id 1
           %2: i64 = const 64 %3: i64 = mul %0, %2 %4: i64 = mul %1, %2
           %5: f32 = const 0.0
           %6: tile<f32, 64x64> = tile_full %5
           %7: var<f32, 64x64> = var %6
           %8: i64 = const 0 %9: i64 = dim a.1
           for %8 to %9 step %2 |%10: i64| {
             %11: tile<f32, 64x64> = tile_load a[%3, %10]
             %12: tile<f32, 64x64> = tile_load b[%10, %4]
             %13: tile<f32, 64x64> = get %7
             %14: tile<f32, 64x64> = dot %11, %12, %13
             set %7 = %14
           }
           %15: tile<f32, 64x64> = get %7
           tile_store c[%3, %4] = %15
         }",
    );
    let cast = kernel("kernel \"cast\" elementwise (in x: f32, out y: bf16) |%0: f32| {\n  yield %0\n}\n");
    let operands = vec![memory("w", Access::In, DType::F32)];
    let side = Side { chain: Chain { kernels: vec![(cast, vec![Memory(0), Program])], operands }, operand: 2 };
    let cast = fuse(program, Some(side), None, false);
    verify(&cast).unwrap_or_else(|errors| panic!("{errors}\n{cast}"));
    for (sm, dot) in [(80, "mma.sync"), (90, "wgmma.mma_async")] {
        let target = Target { sm, arch_specific: sm == 90 };
        let text = write(&cast, Options::new(target)).unwrap_or_else(|error| panic!("{error}")).text;
        assert!(text.contains(dot) && !text.contains("fma.rn.f32"), "{target}: {text}");
    }
}

#[test]
fn tiles_are_computed_where_they_are_loaded_and_stored() {
    let program = |transpose: &str| {
        kernel(&format!(
            "kernel \"tiles\" program grid(y.0 / 16) (out y: f32[2], in x: f32[2]) {{
               %0: i64 = program_id 0
               %1: i64 = const 16
               %2: i64 = mul %0, %1
               %3: i64 = const 0
               %4: tile<f32, 16x16> = tile_load x[%2, %3]{transpose}
               tile_store y[%2, %3] = %4
             }}"
        ))
    };
    for transpose in ["", " transposed"] {
        let before = Some(scale(1, [Memory(0), Memory(0), Program], false));
        let after = Some(scale(0, [Program, Memory(0), Memory(1)], true));
        let both = fuse(program(transpose), before, after, false);
        let expected = ["program_id", "mul", "tile_load", "tile_map", "add", "add", "mul", "select"];
        let expected = [&expected[..], &["tile_load", "tile_map", "mul", "tile_store"]].concat();
        assert_eq!(names(&both), expected, "{both}");
    }
}
