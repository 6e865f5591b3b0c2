//! Runs a kernel in each of its forms, on operands between guards.

use max::dtype::{DType, Element};
use max::kernel::abi::KernelDef;
use max::kernel::ptx::{self, Options, Slot, Target};
use max::kernel::{Form, Kernel, KernelLibrary, TensorArg, form, ir};
use proptest::prelude::*;
use ptx_sim::{Arg, DevicePtr, Launch, Memory, Module};

/// Elements on both sides of an operand that are none of it: more than any tile or block of lanes has.
const GUARD: usize = 128;

/// A contiguous operand between guards.
#[derive(Clone)]
pub struct Operand {
    /// Storage, aligned for every dtype.
    words: Vec<u64>,
    dims: Vec<i64>,
    dtype: DType,
}

impl Operand {
    fn bytes(&self) -> &[u8] {
        // SAFETY: every byte of the words is one.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.words.len() * 8) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.words.len() * 8) }
    }

    /// Where its elements begin and end, in bytes.
    fn place(&self) -> std::ops::Range<usize> {
        let size = self.dtype.size_in_bytes();
        let len = self.dims.iter().product::<i64>() as usize;
        GUARD * size..(GUARD + len) * size
    }

    fn strides(&self) -> Vec<i64> {
        (0..self.dims.len()).map(|d| self.dims[d + 1..].iter().product()).collect()
    }

    /// The elements in row-major order.
    pub fn values<T: Element>(&self) -> Vec<T> {
        assert_eq!(self.dtype, T::DTYPE);
        let of = |bytes: &[u8]| {
            // SAFETY: the bytes are those of an element, which needs no alignment to be read so.
            unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
        };
        self.bytes()[self.place()].chunks_exact(size_of::<T>()).map(of).collect()
    }
}

/// An operand of these dims and values; `guard` stands on both sides.
pub fn tensor<T: Element>(dims: &[i64], values: &[T], guard: T) -> Operand {
    assert_eq!(dims.iter().product::<i64>() as usize, values.len());
    let all: Vec<T> = [&[guard; GUARD], values, &[guard; GUARD]].into_iter().flatten().copied().collect();
    let mut words = vec![0_u64; size_of_val(&all[..]).div_ceil(8)];
    // SAFETY: the storage is at least as large as the values.
    unsafe {
        std::ptr::copy_nonoverlapping(all.as_ptr().cast::<u8>(), words.as_mut_ptr().cast(), size_of_val(&all[..]))
    };
    Operand { words, dims: dims.to_vec(), dtype: T::DTYPE }
}

/// What no result may have anything of: sums of it are not exact, and far from all that is expected.
pub const POISON: f32 = -1e9;

/// An operand of floats.
pub fn floats(dims: &[i64], values: &[f32]) -> Operand {
    tensor(dims, values, POISON)
}

/// A result of floats.
pub fn results(dims: &[i64]) -> Operand {
    floats(dims, &vec![0.5; dims.iter().product::<i64>() as usize])
}

/// A vector of indices.
pub fn indices(values: &[i64]) -> Operand {
    tensor(&[values.len() as i64], values, 1)
}

/// A form of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum How {
    Host(Form),
    /// PTX in the simulator.
    Ptx,
}

/// So many cases, or those of `PROPTEST_CASES`.
pub fn config(cases: u32) -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { config } else { ProptestConfig { cases, ..config } }
}

/// The forms that are compiled and that this machine runs, or that of `MAX_CPU_LEVEL` and the reference form.
pub fn hosts() -> Vec<How> {
    if std::env::var_os("MAX_CPU_LEVEL").is_some() {
        return [form().expect("a level of this machine"), Form::Reference].map(How::Host).to_vec();
    }
    KernelLibrary::linked().levels().into_iter().map(Form::Compiled).chain([Form::Reference]).map(How::Host).collect()
}

/// All forms: these, and the simulator, unless `MAX_CPU_LEVEL` names what runs.
pub fn everywhere() -> Vec<How> {
    let simulator = std::env::var_os("MAX_CPU_LEVEL").is_none().then_some(How::Ptx);
    hosts().into_iter().chain(simulator).collect()
}

/// Those of this machine, and every so-manieth time all.
pub fn forms(times: &std::sync::atomic::AtomicUsize, every: usize) -> Vec<How> {
    let is_turn = times.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(every);
    if is_turn { everywhere() } else { hosts() }
}

/// The operands after `K` ran over a grid in one form, with their guards as they were; or why it did not.
pub fn run<K: Kernel>(how: How, operands: &[Operand], grid: &[i64]) -> Result<Vec<Operand>, String> {
    let mut after = operands.to_vec();
    match how {
        How::Host(form) => on_host(K::def(), form, &mut after)?,
        How::Ptx => on_simulator(K::def(), &mut after, grid)?,
    }
    for (before, after) in operands.iter().zip(&after) {
        let place = before.place();
        let guards = |o: &Operand| [o.bytes()[..place.start].to_vec(), o.bytes()[place.end..].to_vec()];
        assert!(guards(before) == guards(after), "{how:?} writes outside of an operand");
    }
    Ok(after)
}

fn on_host(def: &'static KernelDef, form: Form, operands: &mut [Operand]) -> Result<(), String> {
    let dtypes: Vec<DType> = operands.iter().map(|o| o.dtype).collect();
    let bound = def.bind(&dtypes, |_| None, form).map_err(|e| e.to_string())?;
    let strides: Vec<Vec<i64>> = operands.iter().map(Operand::strides).collect();
    let arg = |(o, strides): (&mut Operand, _)| {
        let first = o.place().start;
        (o.bytes_mut()[first..].as_mut_ptr(), o.dims.clone(), strides)
    };
    let places: Vec<_> = operands.iter_mut().zip(&strides).map(arg).collect();
    let args: Vec<TensorArg> =
        places.iter().map(|(ptr, dims, strides)| TensorArg { ptr: *ptr, dims, strides }).collect();
    // SAFETY: each operand is its own, contiguous memory, of the dtype that was bound.
    unsafe { bound.launch(&args) }.map_err(|e| e.to_string())
}

fn on_simulator(def: &KernelDef, operands: &mut [Operand], grid: &[i64]) -> Result<(), String> {
    let dtypes: Vec<DType> = operands.iter().map(|o| o.dtype).collect();
    let text = def.ir_text(&dtypes[..def.generics.as_slice().len()], Some(&[]));
    let kernel = ir::parse(&text).map_err(|e| format!("{e}\n{text}"))?;
    let options = Options::new(Target { sm: 80, arch_specific: false });
    let module = ptx::write(&kernel, options).map_err(|e| e.to_string())?;
    let mut memory = Memory::new();
    let pointers: Vec<DevicePtr> = operands
        .iter_mut()
        .zip(def.operands.as_slice())
        .map(|(o, def)| {
            // As a launch does it: what programs leave out is 0.
            let place = o.place();
            if def.access == max::kernel::abi::Access::Out {
                o.bytes_mut()[place].fill(0);
            }
            memory.alloc_from(o.bytes())
        })
        .collect();
    let args: Vec<Arg> = module
        .params
        .iter()
        .map(|slot| match *slot {
            Slot::Pointer { operand: o } => {
                Arg::Ptr(DevicePtr(pointers[o as usize].0 + operands[o as usize].place().start as u64))
            }
            Slot::Dim { operand, axis } => Arg::I64(operands[operand as usize].dims[axis as usize]),
            Slot::Stride { operand, axis } => Arg::I64(operands[operand as usize].strides()[axis as usize]),
            Slot::Grid { axis } => Arg::I64(grid.get(axis as usize).copied().unwrap_or(1)),
            Slot::Param { .. } | Slot::Count | Slot::Mapped => Arg::I64(0),
            Slot::TensorMap { .. } => Arg::Bytes(vec![0; 128]),
        })
        .collect();
    let parsed = Module::parse(&module.text).map_err(|e| e.to_string())?;
    let mut launch = Launch::new(&module.entry, 1, module.block_size, &args);
    launch.dynamic_shared = module.dynamic_shared_bytes(|_| 1 << 10, 160 << 10);
    launch.step_limit = 1 << 24;
    ptx_sim::run(&parsed, launch, &mut memory).map_err(|e| format!("{e}\n{}", module.text))?;
    for (o, pointer) in operands.iter_mut().zip(pointers) {
        let bytes = memory.bytes(pointer).to_vec();
        o.bytes_mut().copy_from_slice(&bytes);
    }
    Ok(())
}

/// What is far from nothing, from sizes, and from both ends.
pub fn index() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => -4..8_i64,
        2 => 60..160_i64,
        2 => -160..-60_i64,
        2 => (0..160_i64).prop_map(|i| i64::MIN + i),
        2 => (0..160_i64).prop_map(|i| i64::MAX - i),
        // What makes a multiple of a tile's or a block's size come to an end.
        2 => (1..8_u32, -3..4_i64).prop_map(|(bits, i)| (1_i64 << (63 - bits)) + i),
        2 => (1..8_u32, -3..4_i64).prop_map(|(bits, i)| (i64::MIN >> bits) + i),
        1 => any::<i64>(),
    ]
}

/// A length of which all elements are visited.
pub fn length() -> impl Strategy<Value = i64> {
    prop_oneof![4 => 0..200_i64, 1 => -3..1_i64, 1 => (0..3_i64).prop_map(|i| i64::MIN + i)]
}

/// A length of a row that is kept, of which either all elements are visited or no address space holds a row. What lies between
/// depends on the machine's memory.
pub fn kept_length() -> impl Strategy<Value = i64> {
    const BEYOND: i64 = 1 << 48;
    prop_oneof![
        4 => 0..200_i64,
        1 => (0..160_i64).prop_map(|i| i64::MIN + i),
        1 => i64::MIN..0,
        2 => (0..160_i64).prop_map(|i| i64::MAX - i),
        // What wraps to few bytes, with the block behind the row or without.
        2 => (1..8_u32, -160..160_i64).prop_map(|(bits, i)| (1_i64 << (63 - bits)) + i),
        1 => BEYOND..=i64::MAX,
    ]
}
