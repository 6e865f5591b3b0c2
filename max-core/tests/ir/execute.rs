//! Runs the PTX of kernels in the simulator, and compares with the same computed here.

use max_core::dtype::{DType, Element, F8E4M3, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, bf16, f16, float8};
use max_core::kernel::abi::KernelKind;
use max_core::kernel::ir::{Kernel, compute_dtype, parse};
use max_core::kernel::ptx::{self, Module, Options, Slot, Target};
use ptx_sim::{Arg, DevicePtr, Launch, Memory, Stats, run};

/// A contiguous tensor, as bytes.
#[derive(Clone)]
pub struct Tensor {
    pub bytes: Vec<u8>,
    pub dims: Vec<i64>,
    pub strides: Vec<i64>,
    /// The first element.
    pub start: usize,
}

/// A type of a tensor's elements.
pub trait Item: Copy {
    fn append(self, bytes: &mut Vec<u8>);
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! item {
    ($($ty:ty)*) => {$(
        impl Item for $ty {
            fn append(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }
            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("the size"))
            }
        }
    )*};
}
item!(i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 f16 bf16);

macro_rules! float8 {
    ($($ty:ty)*) => {$(
        impl Item for $ty {
            fn append(self, bytes: &mut Vec<u8>) {
                bytes.push(self.to_bits());
            }
            fn read(bytes: &[u8]) -> Self {
                <$ty>::from_bits(bytes[0])
            }
        }
    )*};
}
float8!(F8E4M3 F8E5M2 F8E4M3FNUZ F8E5M2FNUZ);

impl Item for bool {
    fn append(self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self));
    }
    fn read(bytes: &[u8]) -> Self {
        assert!(bytes[0] < 2, "a bool is 0 or 1");
        bytes[0] == 1
    }
}

impl Tensor {
    pub fn new<T: Item>(values: &[T], dims: &[i64]) -> Self {
        let mut bytes = Vec::new();
        values.iter().for_each(|v| v.append(&mut bytes));
        let strides = (0..dims.len()).map(|i| dims[i + 1..].iter().product()).collect();
        Tensor { bytes, dims: dims.to_vec(), strides, start: 0 }
    }

    pub fn values<T: Item>(&self) -> Vec<T> {
        self.bytes.chunks_exact(size_of::<T>()).map(T::read).collect()
    }
}

/// The tensor map of an operand, by its address, the bytes of its elements, dims and strides; `None` if it lies otherwise
/// than a map says.
pub fn tensor_map(slot: Slot, first: DevicePtr, size: usize, dims: &[i64], strides: &[i64]) -> Option<Vec<u8>> {
    let Slot::TensorMap { columns, rows, swizzle, .. } = slot else { return None };
    let map = ptx_sim::TensorMap::of_tensor(first, size as u32, [dims, strides], [columns, rows], swizzle)?;
    map.encode().ok().map(Vec::from)
}

/// Runs a kernel on tensors, which it changes, and gives what the simulator counted. Elementwise kernels take all elements
/// of the first.
#[track_caller]
pub fn execute(source: &str, tensors: &mut [Tensor], params: &[u64], grid: &[i64], blocks: u32) -> Stats {
    execute_as(Options::new(Target { sm: 80, arch_specific: false }), source, tensors, params, grid, blocks)
}

/// The same with PTX that is written in some way.
#[track_caller]
pub fn execute_as(
    options: Options,
    source: &str,
    tensors: &mut [Tensor],
    params: &[u64],
    grid: &[i64],
    blocks: u32,
) -> Stats {
    let kernel = parse(source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    let module = ptx::write(&kernel, options).unwrap_or_else(|e| panic!("{e}"));
    let ran = execute_module(&kernel, &module, tensors, params, grid, blocks);
    ran.unwrap_or_else(|e| panic!("{e}\n{}", module.text))
}

/// The same with the PTX of a kernel, or what the simulator says.
pub fn execute_module(
    kernel: &Kernel,
    module: &Module,
    tensors: &mut [Tensor],
    params: &[u64],
    grid: &[i64],
    blocks: u32,
) -> Result<Stats, String> {
    let mut memory = Memory::new();
    let pointers: Vec<_> = tensors
        .iter()
        .map(|t| {
            // The 8-bit atomics touch whole words.
            let mut bytes = t.bytes.clone();
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            memory.alloc_from(&bytes)
        })
        .collect();
    let elementwise = kernel.kind == KernelKind::Elementwise;
    let map_of = |slot: Slot| {
        let Slot::TensorMap { operand, .. } = slot else { return None };
        let (tensor, size) = (&tensors[operand as usize], kernel.operands[operand as usize].dtype.size_in_bytes());
        let first = DevicePtr(pointers[operand as usize].0 + (tensor.start * size) as u64);
        tensor_map(slot, first, size, &tensor.dims, &tensor.strides)
    };
    let is_map = |slot: &&Slot| matches!(slot, Slot::TensorMap { .. });
    let mapped = module.params.iter().filter(is_map).all(|&slot| map_of(slot).is_some());
    let args: Vec<Arg> = module
        .params
        .iter()
        .map(|slot| match *slot {
            Slot::Pointer { operand: o } => {
                let size = kernel.operands[o as usize].dtype.size_in_bytes();
                Arg::Ptr(DevicePtr(pointers[o as usize].0 + (tensors[o as usize].start * size) as u64))
            }
            Slot::Dim { operand, axis } => Arg::I64(tensors[operand as usize].dims[axis as usize]),
            Slot::Stride { .. } if elementwise => Arg::I64(1),
            Slot::Stride { operand, axis } => Arg::I64(tensors[operand as usize].strides[axis as usize]),
            Slot::Param { index } => Arg::U64(params[index as usize]),
            Slot::Count => Arg::I64(tensors[0].dims.iter().product()),
            Slot::Mapped => Arg::I64(mapped.into()),
            Slot::TensorMap { .. } => Arg::Bytes(map_of(*slot).unwrap_or_else(|| vec![0; 128])),
            Slot::Grid { axis } => Arg::I64(grid.get(axis as usize).copied().unwrap_or(1)),
        })
        .collect();
    let parsed = ptx_sim::Module::parse(&module.text).map_err(|e| e.to_string())?;
    let mut launch = Launch::new(&module.entry, blocks, module.block_size, &args);
    let row_bytes = |o: u32| {
        let row = tensors[o as usize].dims.last().copied().unwrap_or(1);
        row as u64 * kernel.operands[o as usize].dtype.size_in_bytes() as u64
    };
    launch.dynamic_shared = module.dynamic_shared_bytes(row_bytes, 160 << 10);
    let stats = run(&parsed, launch, &mut memory).map_err(|e| e.to_string())?;
    for (tensor, pointer) in tensors.iter_mut().zip(pointers) {
        let len = tensor.bytes.len();
        tensor.bytes.copy_from_slice(&memory.bytes(pointer)[..len]);
    }
    Ok(stats)
}

/// Every pair of two lists.
fn pairs<T: Copy>(values: &[T]) -> (Vec<T>, Vec<T>) {
    values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b))).unzip()
}

/// The result of an elementwise kernel of one operation on each pair of values.
fn map2<T: Item + Element, R: Item + Element>(op: &str, a: &[T], b: &[T]) -> Vec<R> {
    let (t, r) = (T::DTYPE.short_name(), R::DTYPE.short_name());
    let source = format!(
        "kernel \"k\" elementwise (in x: {t}, in y: {t}, out z: {r}) |%0: {t}, %1: {t}| {{ %2: {r} = {op} yield %2 }}"
    );
    let n = [a.len() as i64];
    let zero = vec![0_u8; a.len() * size_of::<R>()];
    let z = Tensor { bytes: zero, dims: n.to_vec(), strides: vec![1], start: 0 };
    let mut tensors = [Tensor::new(a, &n), Tensor::new(b, &n), z];
    execute(&source, &mut tensors, &[], &[], 2);
    tensors[2].values()
}

/// The same value, with all NaNs alike.
fn same(a: f64, b: f64) -> bool {
    (a.is_nan() && b.is_nan()) || a.to_bits() == b.to_bits()
}

macro_rules! integer_test {
    ($($name:ident $ty:ident)*) => {$(
        #[test]
        fn $name() {
            type T = $ty;
            let values = [0, 1, 2, 3, 7, 31, 33, 100, T::MIN, T::MIN.wrapping_add(1), T::MAX, T::MAX - 1, T::MAX / 2];
            let negatives = values.map(|v| (0 as T).wrapping_sub(v));
            let (a, b) = pairs(&[values, negatives].concat());
            let check = |op: &str, f: fn(T, T) -> T| {
                let found: Vec<T> = map2(&format!("{op} %0, %1"), &a, &b);
                for ((&x, &y), r) in a.iter().zip(&b).zip(found) {
                    assert_eq!(r, f(x, y), "{x} {op} {y}");
                }
            };
            check("add", T::wrapping_add);
            check("sub", T::wrapping_sub);
            check("mul", T::wrapping_mul);
            check("div", |x, y| if y == 0 { 0 } else { x.wrapping_div(y) });
            check("rem", |x, y| if y == 0 { 0 } else { x.wrapping_rem(y) });
            check("min", T::min);
            check("max", T::max);
            check("and", |x, y| x & y);
            check("or", |x, y| x | y);
            check("xor", |x, y| x ^ y);
            check("shl", |x, y| x.wrapping_shl(y as u32));
            check("shr", |x, y| x.wrapping_shr(y as u32));
            let less: Vec<bool> = map2("lt %0, %1", &a, &b);
            let not_less: Vec<bool> = map2("ge %0, %1", &a, &b);
            let same: Vec<bool> = map2("eq %0, %1", &a, &b);
            for (i, (x, y)) in a.iter().zip(&b).enumerate() {
                assert_eq!((less[i], not_less[i], same[i]), (x < y, x >= y, x == y), "{x} {y}");
            }
            let neg: Vec<T> = map2("neg %0", &a, &b);
            let not: Vec<T> = map2("not %0", &a, &b);
            let abs: Vec<T> = map2("abs %0", &a, &b);
            for (i, &x) in a.iter().enumerate() {
                let positive = if x > 0 { x } else { (0 as T).wrapping_sub(x) };
                let positive = if T::MIN == 0 { x } else { positive };
                assert_eq!((neg[i], not[i], abs[i]), ((0 as T).wrapping_sub(x), !x, positive), "{x}");
            }
        }
    )*};
}
integer_test!(i8_arithmetic i8 i16_arithmetic i16 i32_arithmetic i32 i64_arithmetic i64);
integer_test!(u8_arithmetic u8 u16_arithmetic u16 u32_arithmetic u32 u64_arithmetic u64);

macro_rules! float_test {
    ($($name:ident $ty:ident)*) => {$(
        #[test]
        fn $name() {
            type T = $ty;
            let positive = [
                0.0, 1.0, 0.5, 1.5, 2.5, 3.1, 7.0, 1e10, 1e-10, T::MAX, T::MIN_POSITIVE, T::MIN_POSITIVE / 8.0,
                T::from_bits(1), T::from_bits(7), T::INFINITY, T::NAN, 123456.79, T::EPSILON, 0.49999997,
            ];
            let values = [positive, positive.map(|v| -v)].concat();
            let (a, b) = pairs(&values);
            let check = |op: &str, f: fn(T, T) -> T| {
                let found: Vec<T> = map2(&format!("{op} %0, %1"), &a, &b);
                for ((&x, &y), r) in a.iter().zip(&b).zip(found) {
                    assert!(same(r.into(), f(x, y).into()), "{x:e} {op} {y:e}: {r:e}, not {:e}", f(x, y));
                }
            };
            check("add", |x, y| x + y);
            check("sub", |x, y| x - y);
            check("mul", |x, y| x * y);
            check("div", |x, y| x / y);
            check("rem", |x, y| x % y);
            check("min", |x, y| {
                let less = x < y || (x == y && x.is_sign_negative());
                if x.is_nan() || y.is_nan() { T::NAN } else if less { x } else { y }
            });
            check("max", |x, y| {
                let more = x > y || (x == y && y.is_sign_negative());
                if x.is_nan() || y.is_nan() { T::NAN } else if more { x } else { y }
            });
            let unary = |op: &str, f: fn(T) -> T| {
                let found: Vec<T> = map2(&format!("{op} %0"), &values, &values);
                for (&x, r) in values.iter().zip(found) {
                    assert!(same(r.into(), f(x).into()), "{op} {x:e}: {r:e}");
                }
            };
            unary("neg", |x| -x);
            unary("abs", T::abs);
            unary("sqrt", T::sqrt);
            unary("floor", T::floor);
            unary("ceil", T::ceil);
            unary("trunc", T::trunc);
            unary("round_even", T::round_ties_even);
            let fused: Vec<T> = map2("fma %0, %1, %0", &a, &b);
            for (op, f) in [
                ("lt", (|x, y| x < y) as fn(T, T) -> bool), ("le", |x, y| x <= y), ("gt", |x, y| x > y),
                ("ge", |x, y| x >= y), ("eq", |x, y| x == y), ("ne", |x, y| x != y),
            ] {
                let found: Vec<bool> = map2(&format!("{op} %0, %1"), &a, &b);
                for (i, (&x, &y)) in a.iter().zip(&b).enumerate() {
                    assert_eq!(found[i], f(x, y), "{x} {op} {y}");
                }
            }
            for (i, (&x, &y)) in a.iter().zip(&b).enumerate() {
                assert!(same(fused[i].into(), x.mul_add(y, x).into()), "{x:e} * {y:e} + {x:e}");
            }
        }
    )*};
}
float_test!(f32_arithmetic f32 f64_arithmetic f64);

macro_rules! cast_test {
    ($($name:ident $from:ident [$($value:expr),*])*) => {$(
        #[test]
        fn $name() {
            type T = $from;
            let values: &[T] = &[$($value),*];
            cast_test!(@to values T; i8 i16 i32 i64 u8 u16 u32 u64 f32 f64);
            let truth: Vec<bool> = map2("cast %0", values, values);
            assert_eq!(truth, values.iter().map(|&v| v != 0 as T).collect::<Vec<_>>());
        }
    )*};
    (@to $values:ident $from:ident; $($to:ident)*) => {$(
        let found: Vec<$to> = map2("cast %0", $values, $values);
        for (&x, r) in $values.iter().zip(found) {
            assert!(same(r as f64, (x as $to) as f64), "{x:?} as {}: {r:?}, not {:?}", stringify!($to), x as $to);
        }
    )*};
}
cast_test! {
    casts_from_i8 i8 [0, 1, -1, i8::MIN, i8::MAX]
    casts_from_i16 i16 [0, 1, -1, i16::MIN, i16::MAX, 200, -200]
    casts_from_i32 i32 [0, 1, -1, i32::MIN, i32::MAX, 16_777_217, 70_000]
    casts_from_i64 i64 [0, 1, -1, i64::MIN, i64::MAX, 1 << 40, (1 << 53) + 1]
    casts_from_u8 u8 [0, 1, u8::MAX, 128]
    casts_from_u16 u16 [0, 1, u16::MAX, 1 << 15]
    casts_from_u32 u32 [0, 1, u32::MAX, 1 << 31, 16_777_217]
    casts_from_u64 u64 [0, 1, u64::MAX, 1 << 63, (1 << 53) + 1]
    casts_from_f32 f32 [0.0, -0.0, 1.9, -1.9, 127.9, 128.0, -129.0, 255.9, 256.0, -1.0, 70000.0, 3e9, -3e9, 5e9, 1e19,
        2e19, -1e19, f32::INFINITY, -f32::INFINITY, f32::NAN, 1e-45]
    casts_from_f64 f64 [0.0, -0.0, 1.9, -1.9, 127.9, 128.0, -129.0, 255.9, 256.0, -1.0, 70000.0, 3e9, -3e9, 5e9, 1e19,
        2e19, -1e19, f64::INFINITY, -f64::INFINITY, f64::NAN, 1e-320, 1e300, 16777217.0, 0.1]
}

#[test]
fn bools() {
    let (a, b) = pairs(&[false, true]);
    for (op, f) in [
        ("and", (|x, y| x && y) as fn(bool, bool) -> bool),
        ("or", |x, y| x || y),
        ("xor", |x, y| x != y),
        ("lt", |x, y| !x & y),
        ("le", |x, y| x <= y),
        ("gt", |x, y| x & !y),
        ("ge", |x, y| x >= y),
        ("eq", |x, y| x == y),
        ("ne", |x, y| x != y),
    ] {
        let found: Vec<bool> = map2(&format!("{op} %0, %1"), &a, &b);
        let expected: Vec<bool> = a.iter().zip(&b).map(|(&x, &y)| f(x, y)).collect();
        assert_eq!(found, expected, "{op}");
    }
    let not: Vec<bool> = map2("not %0", &a, &b);
    assert_eq!(not, a.iter().map(|x| !x).collect::<Vec<_>>());
    let chosen: Vec<bool> = map2("select %0, %1, %0", &a, &b);
    assert_eq!(chosen, a.iter().zip(&b).map(|(&x, &y)| if x { y } else { x }).collect::<Vec<_>>());
    let number: Vec<f64> = map2("cast %0", &a, &b);
    assert_eq!(number, a.iter().map(|&x| f64::from(u8::from(x))).collect::<Vec<_>>());
}

/// Values around every rounding boundary of an 8- or 16-bit float: each code's value, the middles, and next to these.
fn boundaries(codes: impl Iterator<Item = f32>) -> Vec<f32> {
    let mut finite: Vec<f32> = codes.filter(|v| v.is_finite()).collect();
    finite.sort_by(f32::total_cmp);
    let mut values =
        vec![f32::INFINITY, -f32::INFINITY, f32::NAN, -f32::NAN, f32::MAX, 1e-40, -1e-45, 464.0, 465.0, 1e5];
    for pair in finite.windows(2) {
        let middle = ((f64::from(pair[0]) + f64::from(pair[1])) / 2.0) as f32;
        values.extend([pair[0], middle, middle.next_up(), middle.next_down()]);
    }
    values
}

#[test]
fn eight_bit_floats() {
    let codes: Vec<u8> = (0..=255).collect();
    let check = |d: &str, decode: &dyn Fn(u8) -> f32, encode: &dyn Fn(f32) -> u8| {
        let source = format!("kernel \"k\" elementwise (in x: {d}, out y: f32) |%0: f32| {{ yield %0 }}");
        let mut tensors = [Tensor::new(&codes, &[256]), Tensor::new(&[0.0_f32; 256], &[256])];
        execute(&source, &mut tensors, &[], &[], 1);
        for (&code, found) in codes.iter().zip(tensors[1].values::<f32>()) {
            assert!(same(found.into(), decode(code).into()), "{d} {code:#x}: {found}, not {}", decode(code));
        }
        let values = boundaries(codes.iter().map(|&c| decode(c)));
        let n = values.len() as i64;
        let source = format!("kernel \"k\" elementwise (in x: f32, out y: {d}) |%0: f32| {{ yield %0 }}");
        let mut tensors = [Tensor::new(&values, &[n]), Tensor::new(&vec![0_u8; values.len()], &[n])];
        execute(&source, &mut tensors, &[], &[], 3);
        for (&x, found) in values.iter().zip(tensors[1].values::<u8>()) {
            assert_eq!(found, encode(x), "{x:e} as {d}");
        }
    };
    check("f8_e4m3fn", &|c| float8::e4m3fn_to_f32(F8E4M3::from_bits(c)), &|x| float8::e4m3fn_from_f32(x).to_bits());
    check("f8_e5m2", &|c| float8::e5m2_to_f32(F8E5M2::from_bits(c)), &|x| float8::e5m2_from_f32(x).to_bits());
    check("f8_e4m3fnuz", &|c| F8E4M3FNUZ::from_bits(c).to_f32(), &|x| F8E4M3FNUZ::from_f32(x).to_bits());
    check("f8_e5m2fnuz", &|c| F8E5M2FNUZ::from_bits(c).to_f32(), &|x| F8E5M2FNUZ::from_f32(x).to_bits());
}

#[test]
fn sixteen_bit_floats() {
    let codes = || (0..=u16::MAX).step_by(37);
    for (d, values) in [
        (DType::F16, boundaries(codes().map(|c| f16::from_bits(c).to_f32()))),
        (DType::BF16, boundaries(codes().map(|c| bf16::from_bits(c).to_f32()))),
    ] {
        let round = |x: f32| if d == DType::F16 { f16::from_f32(x).to_f32() } else { bf16::from_f32(x).to_f32() };
        let (n, name) = (values.len() as i64, d.short_name());
        let source = format!(
            "kernel \"k\" elementwise (in x: f32, out y: f32, out z: {name}) |%0: f32| {{
                %1: f32 = round {name} %0
                yield %1, %0
            }}"
        );
        let zeros = Tensor::new(&vec![0.0_f32; values.len()], &[n]);
        let halves = Tensor::new(&vec![0_u16; values.len()], &[n]);
        let mut tensors = [Tensor::new(&values, &[n]), zeros, halves];
        execute(&source, &mut tensors, &[], &[], 2);
        let stored: Vec<f32> = match d == DType::F16 {
            true => tensors[2].values::<f16>().into_iter().map(f16::to_f32).collect(),
            false => tensors[2].values::<bf16>().into_iter().map(bf16::to_f32).collect(),
        };
        for ((&x, y), z) in values.iter().zip(tensors[1].values::<f32>()).zip(stored) {
            assert!(same(y.into(), round(x).into()) && same(z.into(), round(x).into()), "{x:e} as {name}: {y:e} {z:e}");
        }
    }
}

/// Lengths around the sizes of a warp and of a block.
const LENGTHS: [usize; 11] = [0, 1, 2, 31, 32, 33, 255, 256, 257, 512, 1000];

fn numbers(count: usize) -> Vec<i32> {
    (0..count).map(|i| ((i * 7919 + 13) % 1009) as i32 - 500).collect()
}

#[test]
fn scans_of_every_length() {
    let source = include_str!("cumsum.ir");
    for len in LENGTHS {
        for exclusive in [0, 1] {
            let x = numbers(3 * len);
            let mut tensors = [Tensor::new(&vec![0; 3 * len], &[3, len as i64]), Tensor::new(&x, &[3, len as i64])];
            execute(source, &mut tensors, &[exclusive], &[3], 2);
            let expected: Vec<i32> = (0..3 * len)
                .map(|i| {
                    let row = &x[i / len * len..=i];
                    row.iter().sum::<i32>() - if exclusive == 1 { x[i] } else { 0 }
                })
                .collect();
            assert_eq!(tensors[0].values::<i32>(), expected, "length {len}");
        }
    }
}

#[test]
fn a_scan_keeps_the_order_of_its_sides() {
    // The last of two is associative and has no other order.
    let source = "kernel \"k\" program grid(1) (out y: i64[1], in x: i64[1]) {
        %0: i64 = dim x.0
        %1: i64 = const -1
        scan %0 (%1) |%2: i64| { %3: i64 = load x[%2] yield %3 }
        combine |%4: i64; %5: i64| { %6: bool = eq %5, %1 %7: i64 = select %6, %4, %5 yield %7 }
        emit |%8: i64| { store y[%2] = %8 }
    }";
    let x: Vec<i64> = (0..700).map(|i| if i % 3 == 0 { -1 } else { i }).collect();
    let mut tensors = [Tensor::new(&vec![0_i64; 700], &[700]), Tensor::new(&x, &[700])];
    execute(source, &mut tensors, &[], &[1], 1);
    let mut last = -1;
    let expected: Vec<i64> = x
        .iter()
        .map(|&v| {
            if v != -1 {
                last = v
            }
            last
        })
        .collect();
    assert_eq!(tensors[0].values::<i64>(), expected);
}

#[test]
fn folds_of_every_length_and_several_values() {
    let source = include_str!("argmax_rows.ir");
    for len in LENGTHS {
        let x: Vec<f16> = numbers(2 * len).into_iter().map(|v| f16::from_f32(v as f32)).collect();
        let mut tensors = [Tensor::new(&[0_i64; 2], &[2]), Tensor::new(&x, &[2, len as i64])];
        execute(source, &mut tensors, &[], &[2], 1);
        let expected: Vec<i64> = (0..2)
            .map(|row| {
                let row = &x[row * len..(row + 1) * len];
                let best = row.iter().copied().fold(f16::NEG_INFINITY, f16::max);
                row.iter().position(|&v| v == best).map_or(i64::MAX, |i| i as i64)
            })
            .collect();
        assert_eq!(tensors[0].values::<i64>(), expected, "length {len}");
    }
}

#[test]
fn rows_of_strided_operands() {
    let source = "kernel \"k\" program grid(y.0) (out y: f32[2], in x: f32[2]) {
        %0: i64 = program_id 0
        %1: i64 = dim y.1
        %2: f32 = const -1.0
        lanes %1 |%3: i64| { %4: f32 = load x[%0, %3] pad %2 store y[%0, %3] = %4 }
    }";
    // x is a 3x2 view of a transposed 2x3 matrix; y has a column more.
    let mut x = Tensor::new(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]);
    x.strides = vec![1, 3];
    let mut tensors = [Tensor::new(&[0.0_f32; 12], &[4, 3]), x];
    execute(source, &mut tensors, &[], &[4], 3);
    let expected = [1.0, 4.0, -1.0, 2.0, 5.0, -1.0, 3.0, 6.0, -1.0, -1.0, -1.0, -1.0];
    assert_eq!(tensors[0].values::<f32>(), expected);
}

#[test]
fn grids_of_three_axes_and_control_flow() {
    let source = "kernel \"k\" program grid(y.0, y.1, y.2) (out y: i64[3]) params(n: int) {
        %0: i64 = program_id 0 %1: i64 = program_id 1 %2: i64 = program_id 2
        %3: i64 = num_programs 1 %4: i64 = param n
        %5: i64 = const 0 %6: i64 = const 1 %7: i64 = const 2
        %8: var<i64> = var %5
        for %5 to %4 step %7 |%9: i64| {
            %10: i64 = get %8
            %11: i64 = add %10, %9
            set %8 = %11
        }
        while { %12: i64 = get %8 %13: bool = lt %12, %4 yield %13 } do {
            %14: i64 = get %8 %15: i64 = add %14, %6 set %8 = %15
        }
        %16: bool = lt %1, %2
        %17: i64 = if %16 { yield %3 } else { %18: i64 = mul %0, %7 yield %18 }
        %19: i64 = get %8
        %20: i64 = add %17, %19
        store y[%0, %1, %2] = %20
    }";
    let mut tensors = [Tensor::new(&[0_i64; 24], &[2, 3, 4])];
    execute(source, &mut tensors, &[7], &[2, 3, 4], 5);
    let expected: Vec<i64> = (0..24)
        .map(|i| {
            let (a, b, c) = (i / 12, i / 4 % 3, i % 4);
            12 + if b < c { 3 } else { 2 * a }
        })
        .collect();
    assert_eq!(tensors[0].values::<i64>(), expected);
}

#[test]
fn what_lanes_write_later_lanes_read() {
    let source = "kernel \"k\" program grid(1) (inout y: i32[1]) {
        %0: i64 = dim y.0 %1: i64 = const 1 %2: i64 = const 0 %3: i64 = const 5
        for %2 to %3 step %1 |%4: i64| {
            %5: i64 = const 0
            %6: i64 = fold %0 (%5) |%7: i64; %8: i64| {
                %9: i32 = load y[%7] %10: i64 = cast %9 %11: i64 = add %8, %10 yield %11
            } combine |%12: i64; %13: i64| { %14: i64 = add %12, %13 yield %14 }
            lanes %0 |%15: i64| {
                %16: i64 = sub %0, %15 %17: i64 = sub %16, %1
                %18: i32 = load y[%17] %19: i32 = cast %6 %20: i32 = add %18, %19
                scatter y[%17] = %20
            }
            %21: i32 = load y[%2]
            store y[%1] = %21
        }
    }";
    let mut y = numbers(600);
    let mut tensors = [Tensor::new(&y, &[600])];
    execute(source, &mut tensors, &[], &[1], 1);
    for _ in 0..5 {
        let sum = y.iter().map(|&v| i64::from(v)).sum::<i64>() as i32;
        y.iter_mut().for_each(|v| *v = v.wrapping_add(sum));
        y[1] = y[0];
    }
    assert_eq!(tensors[0].values::<i32>(), y);
}

macro_rules! atomic_test {
    ($($name:ident $ty:ident)*) => {$(
        #[test]
        fn $name() {
            type T = $ty;
            let source = format!(
                "kernel \"k\" program grid(4) (inout sum: {0}[1], inout low: {0}[1], inout high: {0}[1], in x: {0}[1]) {{
                    %0: i64 = dim x.0 %1: i64 = const 7 %2: i64 = program_id 0
                    lanes %0 |%3: i64| {{
                        %4: {1} = load x[%3] %5: i64 = rem %3, %1
                        atomic add sum[%5] = %4 atomic min low[%5] = %4 atomic max high[%5] = %4
                    }}
                    %6: {1} = load x[%2]
                    atomic add sum[%1] = %6
                }}",
                <T as Element>::DTYPE.short_name(),
                compute_dtype(<T as Element>::DTYPE).short_name()
            );
            // Small integers, so that sums are exact in every dtype and order.
            let x: Vec<T> = (0..300).map(|i| T::from_f32((i % 11) as f32)).collect();
            let zero = [T::from_f32(0.0); 8];
            let mut tensors = [
                Tensor::new(&zero, &[8]), Tensor::new(&[T::from_f32(100.0); 8], &[8]), Tensor::new(&zero, &[8]),
                Tensor::new(&x, &[300]),
            ];
            execute(&source, &mut tensors, &[], &[4], 2);
            let of = |k: usize| x.iter().skip(k).step_by(7).map(|v| v.to_wide());
            let sums: Vec<f64> = (0..8)
                .map(|k| if k < 7 { 4.0 * of(k).sum::<f64>() } else { (0..4).map(|i| x[i].to_wide()).sum() })
                .map(|sum| T::wrap(sum).to_wide())
                .collect();
            assert_eq!(tensors[0].values::<T>().iter().map(|v| v.to_wide()).collect::<Vec<_>>(), sums);
            for k in 0..7 {
                let (low, high) = (tensors[1].values::<T>()[k].to_wide(), tensors[2].values::<T>()[k].to_wide());
                assert_eq!((low, high), (of(k).fold(100.0, f64::min), of(k).fold(0.0, f64::max)));
            }
        }
    )*};
}

trait Number: Item {
    fn from_f32(x: f32) -> Self;
    fn to_wide(self) -> f64;
    /// The sum as it wraps or rounds.
    fn wrap(sum: f64) -> Self;
}

macro_rules! number {
    ($($ty:ident)*) => {$(
        impl Number for $ty {
            fn from_f32(x: f32) -> Self { x as $ty }
            fn to_wide(self) -> f64 { self as f64 }
            fn wrap(sum: f64) -> Self { sum as i64 as $ty }
        }
    )*};
}
number!(i8 i16 i32 i64 u8 u16 u32 u64 f32 f64);
impl Number for f16 {
    fn from_f32(x: f32) -> Self {
        f16::from_f32(x)
    }
    fn to_wide(self) -> f64 {
        self.to_f64()
    }
    fn wrap(sum: f64) -> Self {
        f16::from_f64(sum)
    }
}
atomic_test!(atomics_of_i8 i8 atomics_of_i16 i16 atomics_of_i32 i32 atomics_of_i64 i64);
atomic_test!(atomics_of_u8 u8 atomics_of_u16 u16 atomics_of_u32 u32 atomics_of_u64 u64);
atomic_test!(atomics_of_f16 f16 atomics_of_f32 f32 atomics_of_f64 f64);

#[test]
fn matmul_of_tiles_that_do_not_divide_the_matrices() {
    let source = include_str!("matmul.ir").replace("bf16", "f32");
    for (m, k, n) in [(1, 1, 1), (64, 32, 64), (65, 33, 70), (3, 100, 130), (5, 0, 6)] {
        let at = |i: usize, len: usize| numbers(len)[i] as f32;
        let a: Vec<f32> = (0..m * k).map(|i| at(i, m * k)).collect();
        let b: Vec<f32> = (0..k * n).map(|i| at(i, k * n)).collect();
        let dims = |r: usize, c: usize| [r as i64, c as i64];
        let mut tensors = [
            Tensor::new(&vec![f32::NAN; m * n], &dims(m, n)),
            Tensor::new(&a, &dims(m, k)),
            Tensor::new(&b, &dims(k, n)),
        ];
        let grid = [m.div_ceil(64) as i64, n.div_ceil(64) as i64];
        execute(&source, &mut tensors, &[], &grid, 2);
        let expected: Vec<f32> =
            (0..m * n).map(|i| (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum()).collect();
        assert_eq!(tensors[0].values::<f32>(), expected, "{m}x{k}x{n}");
    }
}

#[test]
fn tiles_of_every_shape() {
    for (r, k, c) in [(1, 1, 1), (16, 16, 16), (17, 5, 33), (1, 7, 300), (300, 3, 1), (7, 9, 5), (40, 4, 24)] {
        let source = format!(
            "kernel \"k\" program grid(1) (out y: i32[2], out p: bool[2], in a: i8[3], in b: i8[2], in f: bool[1]) {{
                %0: i64 = const 0 %1: i64 = const 1
                %2: tile<i8, {r}x{k}> = tile_load a[%1, %0, %0]
                %3: tile<i8, {k}x{c}> = tile_load b[%0, %0] transposed
                %4: i32 = const 5
                %5: tile<i32, {r}x{c}> = tile_full %4
                %6: var<i32, {r}x{c}> = var %5
                %7: tile<i32, {r}x{c}> = get %6
                %8: tile<i32, {r}x{c}> = dot %2, %3, %7
                set %6 = %8
                %9: tile<i32, {r}x1> = tile_reduce max %8
                %10: tile<i32, {r}x{c}> = get %6
                %11: tile<i32, {r}x1> = tile_reduce sum %10
                %12: tile<bool, {r}x1> = tile_map (%9, %11) |%13: i64, %14: i64; %15: i32, %16: i32| {{
                    %17: bool = lt %15, %16 yield %17
                }}
                %18: tile<i32, {r}x{c}> = tile_map (%10, %9, %11, %12) |%19: i64, %20: i64; %21: i32, %22: i32, %23: i32, %24: bool| {{
                    store p[%19, %20] = %24
                    %25: i32 = mul %21, %22 %26: i32 = sub %25, %23 %27: i32 = cast %20 %28: i32 = add %26, %27
                    yield %28
                }}
                %29: bool = load f[%0]
                %30: tile<i32, {r}x{c}> = if %29 {{ yield %18 }} else {{ yield %5 }}
                tile_store y[%0, %0] = %30
            }}"
        );
        let byte = |v: i32| v as i8;
        let a: Vec<i8> = numbers(2 * r * k).into_iter().map(byte).collect();
        let b: Vec<i8> = numbers(c * k).into_iter().map(byte).collect();
        let (rows, inner, columns) = (r as i64, k as i64, c as i64);
        let mut tensors = [
            Tensor::new(&vec![0_i32; r * c], &[rows, columns]),
            Tensor::new(&vec![false; r * c], &[rows, columns]),
            Tensor::new(&a, &[2, rows, inner]),
            Tensor::new(&b, &[columns, inner]),
            Tensor::new(&[true], &[1]),
        ];
        execute(&source, &mut tensors, &[], &[1], 1);
        let product = |i: usize, j: usize| -> i32 {
            5 + (0..k).map(|l| i32::from(a[r * k + i * k + l]) * i32::from(b[j * k + l])).sum::<i32>()
        };
        for i in 0..r {
            let row: Vec<i32> = (0..c).map(|j| product(i, j)).collect();
            let (most, sum) = (*row.iter().max().expect("a column"), row.iter().sum::<i32>());
            for (j, value) in row.iter().enumerate() {
                let y = value.wrapping_mul(most).wrapping_sub(sum).wrapping_add(j as i32);
                assert_eq!(tensors[0].values::<i32>()[i * c + j], y, "{r}x{k}x{c} at {i}, {j}");
                assert_eq!(tensors[1].values::<bool>()[i * c + j], most < sum, "{r}x{k}x{c} at {i}, {j}");
            }
        }
    }
}

#[test]
fn accesses_outside_are_reported_when_asked() {
    let source = "kernel \"k\" program grid(1) (in x: f32[2], inout y: i32[1]) files(\"k.rs\") {
        %0: i64 = const 2
        %1: i64 = const 5
        %2: f32 = load x[%0, %1] @7:3
        %3: f32 = load x[%0, %0] pad %2 @8:3
        lanes %1 |%4: i64| @9:1 { %5: i32 = load y[%4] @9:5 store y[%4] = %5 @9:5 }
        %6: i32 = const 1
        atomic add y[%1] = %6 @10:3
    }";
    let lines = |bounds| {
        let mut tensors = [Tensor::new(&[1.0_f32; 6], &[2, 3]), Tensor::new(&[1_i32, 2, 3], &[3])];
        let options = Options { bounds, ..Options::new(Target { sm: 80, arch_specific: false }) };
        let printed = execute_as(options, source, &mut tensors, &[], &[1], 1).printed;
        assert_eq!(tensors[1].values::<i32>(), [1, 2, 3]);
        let mut lines: Vec<String> = printed.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let expected = [
        "k.rs:10 (0, 0, 0): outside of `y`: [5] of [3] is written",
        "k.rs:7 (0, 0, 0): outside of `x`: [2, 5] of [2, 3] is read",
        "k.rs:9 (0, 0, 0): outside of `y`: [3] of [3] is read",
        "k.rs:9 (0, 0, 0): outside of `y`: [3] of [3] is written",
        "k.rs:9 (0, 0, 0): outside of `y`: [4] of [3] is read",
        "k.rs:9 (0, 0, 0): outside of `y`: [4] of [3] is written",
    ];
    assert_eq!(lines(true), expected);
    assert!(lines(false).is_empty());
}
