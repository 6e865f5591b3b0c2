//! One body, several machines: the IR of every function is valid, and its PTX, executed, gives the bits of the
//! reference form.

use bytemuck::Pod;
use max::dtype::DType;
use max::kernel::Form;
use max::kernel::abi::KernelDef;
use max::kernel::ir::{parse, verify};
use max::kernel::ptx::{self, Options, Slot, Target};
use ptx_sim::{Arg, Launch, Memory, run};

use crate::{compute, kernels};

/// The result of an elementwise kernel's PTX in the simulator.
pub(crate) fn simulate<T: Pod>(def: &'static KernelDef, dtype: DType, args: &[&[T]]) -> Vec<T> {
    let kernel = parse(&def.ir_text(&[dtype], None)).unwrap_or_else(|e| panic!("{e}"));
    let target = Target { sm: 80, arch_specific: false };
    let module = ptx::write(&kernel, Options::new(target)).unwrap_or_else(|e| panic!("{e}"));
    let mut memory = Memory::new();
    let mut pointers: Vec<_> = args.iter().map(|a| memory.alloc_from(bytemuck::cast_slice(a))).collect();
    let out = memory.alloc_from(&vec![0; size_of_val(args[0])]);
    pointers.push(out);
    let count = args[0].len() as i64;
    let values: Vec<Arg> = module
        .params
        .iter()
        .map(|slot| match *slot {
            Slot::Pointer { operand } => Arg::Ptr(pointers[operand as usize]),
            Slot::Stride { .. } | Slot::Grid { .. } => Arg::I64(1),
            Slot::Dim { .. } | Slot::Count => Arg::I64(count),
            Slot::Param { .. } | Slot::TensorMap { .. } | Slot::Mapped => panic!("these kernels have no parameters"),
        })
        .collect();
    let parsed = ptx_sim::Module::parse(&module.text).unwrap_or_else(|e| panic!("{e}\n{}", module.text));
    let launch = Launch::new(&module.entry, 2, module.block_size, &values);
    run(&parsed, launch, &mut memory).unwrap_or_else(|e| panic!("{e}\n{}", module.text));
    memory.bytes(out)[..size_of_val(args[0])].chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Bit patterns all over the range, the special values, and numbers as they occur.
fn arguments() -> Vec<f64> {
    let mut x = vec![0.0, -0.0, 0.5, 1.0, -1.0, 2.0, 3.0, -3.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    x.extend((0..250).map(|i| f32::from_bits(u32::wrapping_mul(i, 17_179_853)) as f64));
    x.extend((0..120).map(|i| (i as f64 - 60.0) * 0.173));
    x
}

#[test]
fn ptx_gives_the_bits_of_the_reference_form() {
    let wide = arguments();
    let narrow: Vec<f32> = wide.iter().map(|&x| x as f32).collect();
    // The second argument of functions of two: the same, in another order.
    let (wide_2, narrow_2): (Vec<f64>, Vec<f32>) =
        (0..wide.len()).map(|i| i * 7 % wide.len()).map(|i| (wide[i], narrow[i])).unzip();
    for (name, def) in kernels::all() {
        let arity = def.operands.as_slice().len() - 1;
        let (args, args_wide) = (&[&narrow[..], &narrow_2][..arity], &[&wide[..], &wide_2][..arity]);
        let want = compute(def, DType::F32, Form::Reference, args);
        let got = simulate(def, DType::F32, args);
        let same = |i: &usize| want[*i].to_bits() == got[*i].to_bits() || want[*i].is_nan() && got[*i].is_nan();
        assert_eq!((0..want.len()).find(|i| !same(i)).map(|i| (narrow[i], want[i], got[i])), None, "{name} in f32");

        let want = compute(def, DType::F64, Form::Reference, args_wide);
        let got = simulate(def, DType::F64, args_wide);
        let same = |i: &usize| want[*i].to_bits() == got[*i].to_bits() || want[*i].is_nan() && got[*i].is_nan();
        assert_eq!((0..want.len()).find(|i| !same(i)).map(|i| (wide[i], want[i], got[i])), None, "{name} in f64");
    }
}

#[test]
fn half_types_are_recorded_in_f32() {
    for (name, def) in kernels::all() {
        for dtype in [DType::F16, DType::BF16] {
            let text = def.ir_text(&[dtype], None);
            let kernel = parse(&text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
            verify(&kernel).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
            assert!(text.contains("f32"), "{name} of {dtype:?} computes in f32:\n{text}");
        }
    }
}
