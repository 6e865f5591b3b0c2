//! Random small graphs on the CPU and on a simulated GPU, which have to give the same.
//!
//! The numbers are chosen so that most results are equal to the bit: sums and products of few binary digits are exact in
//! any order, and what has been rounded is compared with a tolerance and goes into nothing that would show a rounding.

#![cfg(target_os = "linux")]

#[macro_use]
#[path = "support/fake_gpu.rs"]
mod fake_gpu;

use max::dispatch;
use max::dtype::Element;
use max::graph::GraphError;
use max::prelude::*;

use DType::*;

const GRAPHS: u64 = 1000;
/// Dtypes of inputs; those of results are all.
const INPUTS: [DType; 9] = [F32, F64, F16, BF16, I8, U8, I32, I64, Bool];
/// Digits of numbers whose sums are exact in `f32`, and below `f16`'s largest.
const DIGITS: u32 = 20;
const LARGEST: u32 = 14;

/// Numbers that are the same for a seed, everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// What is known of a value's numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Numbers {
    /// Multiples of 2^-`digits`, below 2^`bits`: few enough digits that sums are exact.
    Short { bits: u32, digits: u32 },
    /// The same to the bit on every device.
    Equal,
    /// Rounded in another order, or by a math function, on another device.
    Rounded,
}

impl Numbers {
    /// Of `bits` before and `digits` behind the point.
    fn short(bits: u32, digits: u32) -> Numbers {
        if bits <= LARGEST && bits + digits <= DIGITS { Numbers::Short { bits, digits } } else { Numbers::Equal }
    }

    /// Of an exact op on both, of which the result of short ones has these digits. None where numbers of any size would
    /// meet such that are rounded: how much of those is left then could differ.
    fn with(self, other: Numbers, short: impl Fn([u32; 2], [u32; 2]) -> [u32; 2]) -> Option<Numbers> {
        match (self, other) {
            (Numbers::Short { bits, digits }, Numbers::Short { bits: b, digits: d }) => {
                let [bits, digits] = short([bits, digits], [b, d]);
                Some(Numbers::short(bits, digits))
            }
            (Numbers::Rounded, Numbers::Equal) | (Numbers::Equal, Numbers::Rounded) => None,
            (Numbers::Rounded, _) | (_, Numbers::Rounded) => Some(Numbers::Rounded),
            _ => Some(Numbers::Equal),
        }
    }

    /// Of sums of `count` such numbers. None where they are of any size, since one may then be lost in another.
    fn summed(self, count: usize, dtype: DType) -> Option<Numbers> {
        match self {
            Numbers::Short { bits, digits } => match Numbers::short(bits + count.ilog2() + 1, digits) {
                Numbers::Equal if dtype.is_float() => Some(Numbers::Rounded),
                short => Some(short.wrapped(dtype)),
            },
            Numbers::Equal => (!dtype.is_float()).then_some(Numbers::Equal),
            Numbers::Rounded => Some(Numbers::Rounded),
        }
    }

    /// Of what integers that wrap make of them.
    fn wrapped(self, dtype: DType) -> Numbers {
        if dtype.is_float() || dtype.is_signed_integral() && dtype.size_in_bytes() > 1 { self } else { any(dtype) }
    }
}

#[derive(Clone)]
struct Known {
    value: TensorValue,
    numbers: Numbers,
}

impl Known {
    fn shape(&self) -> Vec<usize> {
        self.value.shape().iter().map(|dim| dim.as_static().expect("a static dim") as usize).collect()
    }

    fn dtype(&self) -> DType {
        self.value.dtype()
    }

    /// Whether a rounding does not show in what is computed of it.
    fn is_equal(&self) -> bool {
        self.numbers != Numbers::Rounded
    }
}

type Step = Result<Option<Known>, GraphError>;

fn known(value: TensorValue, numbers: impl Into<Option<Numbers>>) -> Step {
    Ok(numbers.into().map(|numbers| Known { value, numbers }))
}

/// Of any numbers of a dtype.
fn any(dtype: DType) -> Numbers {
    match dtype {
        Bool => Numbers::short(1, 0),
        I8 | U8 => Numbers::short(8, 0),
        _ => Numbers::Equal,
    }
}

fn has_arithmetic(dtype: DType) -> bool {
    dtype != Bool && (!dtype.is_float() || dtype.size_in_bytes() > 1)
}

/// One op more on values chosen at random; none where the op does not fit them.
fn step(random: &mut Random, values: &[Known]) -> Step {
    // Later values more often, so that graphs are deep.
    let last = values.len() - 1;
    let choose =
        |random: &mut Random| values[last - random.below(values.len()).min(random.below(values.len()))].clone();
    let x = choose(random);
    let like: Vec<&Known> = values.iter().filter(|y| y.dtype() == x.dtype() && y.shape() == x.shape()).collect();
    let y = like[random.below(like.len())];
    let (shape, dtype, rank) = (x.shape(), x.dtype(), x.shape().len());
    let float = dtype.is_float() && has_arithmetic(dtype);
    let axis = random.below(rank.max(1));
    let size = shape.get(axis).copied().unwrap_or(1);
    let larger = |a: [u32; 2], b: [u32; 2]| [a[0].max(b[0]), a[1].max(b[1])];
    Ok(match random.below(31) {
        // Arithmetic.
        0 | 1 if has_arithmetic(dtype) => {
            let numbers = x.numbers.with(y.numbers, |a, b| [a[0].max(b[0]) + 1, a[1].max(b[1])]);
            let sum = if random.below(2) == 0 { ops::add } else { ops::sub };
            return known(sum(&x.value, &y.value)?, numbers.map(|numbers| numbers.wrapped(dtype)));
        }
        2 if has_arithmetic(dtype) && (x.is_equal() && y.is_equal()) => {
            let numbers = x.numbers.with(y.numbers, |a, b| [a[0] + b[0], a[1] + b[1]]);
            return known(ops::mul(&x.value, &y.value)?, numbers.map(|numbers| numbers.wrapped(dtype)));
        }
        3 if has_arithmetic(dtype) => {
            let choose = if random.below(2) == 0 { ops::minimum } else { ops::maximum };
            return known(choose(&x.value, &y.value)?, x.numbers.with(y.numbers, larger));
        }
        4 if x.is_equal() && y.is_equal() && has_arithmetic(dtype) => {
            let divide = if random.below(2) == 0 { ops::div } else { ops::mod_ };
            return known(divide(&x.value, &y.value)?, Numbers::Equal);
        }
        5 if has_arithmetic(dtype) => {
            let change = random.of(&[ops::negate, ops::abs, ops::relu]);
            return known(change(&x.value)?, x.numbers.wrapped(dtype));
        }
        6 if float && x.is_equal() => {
            let exact = random.of(&[ops::floor, ops::ceil, ops::round, ops::trunc]);
            return known(exact(&x.value)?, x.numbers.with(x.numbers, |a, _| [a[0] + 1, 0]));
        }
        7 if float && x.is_equal() => {
            let smooth = random.of(&[ops::tanh, ops::sigmoid, ops::sin, ops::erf]);
            return known(smooth(&x.value)?, Numbers::Rounded);
        }
        // Comparisons and logic.
        8 | 9 if x.is_equal() && y.is_equal() && has_arithmetic(dtype) => {
            let compare = random.of(&[ops::greater, ops::greater_equal, ops::equal, ops::not_equal]);
            return known(compare(&x.value, &y.value)?, Numbers::short(1, 0));
        }
        10 if dtype == Bool => {
            let logic = random.of(&[ops::logical_and, ops::logical_or, ops::logical_xor]);
            return known(logic(&x.value, &y.value)?, Numbers::short(1, 0));
        }
        11 => {
            let conditions: Vec<&Known> = values.iter().filter(|c| c.dtype() == Bool && c.shape() == shape).collect();
            match conditions.len() {
                0 => None,
                count => {
                    let condition = &conditions[random.below(count)].value;
                    let numbers = x.numbers.with(y.numbers, larger);
                    return known(ops::where_(condition, &x.value, &y.value)?, numbers);
                }
            }
        }
        12..=16 => {
            let to = random.of(&DType::ALL);
            let numbers = match x.numbers {
                // Another dtype would show the rounding.
                Numbers::Rounded if !matches!(to, F32 | F64) || !dtype.is_float() => return Ok(None),
                Numbers::Rounded => Numbers::Rounded,
                // Wide dtypes hold them all.
                Numbers::Short { bits, digits } if to.is_float() && to.size_in_bytes() > 1 => {
                    Numbers::short(bits, digits)
                }
                Numbers::Short { bits, .. }
                    if dtype.is_signed_integral() == to.is_signed_integral() && to.size_in_bytes() > 2 =>
                {
                    Numbers::short(bits, 0)
                }
                Numbers::Short { .. } | Numbers::Equal => any(to),
            };
            return known(ops::cast(&x.value, to)?, numbers);
        }
        // Reductions and scans.
        17 if rank > 0 && has_arithmetic(dtype) => {
            return known(ops::sum(&x.value, axis as i64)?, x.numbers.summed(size, dtype));
        }
        18 if rank > 0 && has_arithmetic(dtype) => {
            let reduce = random.below(2);
            let value = if reduce == 0 { ops::max(&x.value, axis as i64) } else { ops::min(&x.value, axis as i64) };
            return known(value?, x.numbers);
        }
        19 if rank > 0 && has_arithmetic(dtype) && x.is_equal() => {
            let place = if random.below(2) == 0 {
                ops::argmax(&x.value, axis as i64)
            } else {
                ops::argmin(&x.value, axis as i64)
            };
            return known(place?, Numbers::short(size.ilog2() + 1, 0));
        }
        20 if rank > 0 && has_arithmetic(dtype) => {
            let (exclusive, reverse) = (random.below(2) == 0, random.below(2) == 0);
            let sums = ops::cumsum(&x.value, axis as i64, exclusive, reverse)?;
            return known(sums, x.numbers.summed(size, dtype));
        }
        21 if rank > 0 && float && x.is_equal() => {
            return known(ops::softmax(&x.value, axis as i64)?, Numbers::Rounded);
        }
        22 if rank == 2 && float && x.is_equal() && y.is_equal() => {
            let product = ops::matmul(&x.value, y.value.t()?)?;
            let products = x.numbers.with(y.numbers, |a, b| [a[0] + b[0], a[1] + b[1]]);
            return known(product, products.and_then(|numbers| numbers.summed(shape[1], dtype)));
        }
        // Orders and places.
        23 if rank > 0 && has_arithmetic(dtype) && x.is_equal() => {
            return known(ops::argsort(&x.value, random.below(2) == 0)?, Numbers::short(shape[0].ilog2() + 1, 0));
        }
        24 if rank > 0 && has_arithmetic(dtype) && x.is_equal() => {
            let (best, places) = ops::top_k(&x.value, 1 + random.below(size), axis as i64)?;
            match random.below(2) {
                0 => return known(best, x.numbers),
                _ => return known(places, Numbers::short(size.ilog2() + 1, 0)),
            }
        }
        25 if rank > 0 => {
            let indices: Vec<&Known> =
                values.iter().filter(|i| i.dtype().is_integral() && i.shape().len() == 1).collect();
            match indices.len() {
                0 => None,
                count => {
                    let indices = &indices[random.below(count)].value;
                    return known(ops::gather(&x.value, indices, axis as i64)?, x.numbers);
                }
            }
        }
        // Views and copies.
        26 if rank > 0 => {
            let joined = ops::concat([&x.value, &y.value], axis as i64)?;
            return known(joined, x.numbers.with(y.numbers, larger));
        }
        27 if rank > 1 => return known(ops::transpose(&x.value, axis as i64, random.below(rank) as i64)?, x.numbers),
        28 if rank > 0 => {
            let start = random.below(size);
            let stop = start + 1 + random.below(size - start);
            let part = match random.below(3) {
                0 => DimSlice::from(..).step_by(-1),
                1 => DimSlice::range(start, stop),
                _ => DimSlice::from(..).step_by(2),
            };
            let indices = (0..rank).map(|i| if i == axis { part.clone() } else { DimSlice::from(..) });
            return known(ops::slice_tensor(&x.value, indices)?, x.numbers);
        }
        29 if rank > 1 => return known(ops::flatten(&x.value, 0, 1)?, x.numbers),
        29 if rank == 1 => {
            return known(ops::broadcast_to(&x.value, [2 + random.below(3), size])?, x.numbers);
        }
        // Random numbers, of a seed that is known on the device.
        30 if x.is_equal() => {
            let integers = ops::reshape(ops::cast(&x.value, I64)?, (-1,))?;
            let seed = ops::sum(integers, 0)?.reshape(())?;
            let ty = TensorType::new(random.of(&[F16, BF16, F32, F64]), x.value.shape().clone(), x.value.device());
            return match random.below(2) {
                0 => known(ops::random::uniform(seed, ty, -2.0..3.0)?, Numbers::Equal),
                _ => known(ops::random::gaussian(seed, ty, 0.0, 1.0)?, Numbers::Rounded),
            };
        }
        _ => None,
    })
}

/// Small numbers with two binary digits behind the point.
fn input(random: &mut Random, dtype: DType, shape: &[usize]) -> Tensor {
    let count = shape.iter().product();
    dispatch!(dtype, T => {
        let number = |random: &mut Random| {
            let quarters = random.below(33) as f64 / 4.0;
            T::from_f64(if dtype.is_float() || dtype.is_signed_integral() { quarters - 4.0 } else { quarters })
        };
        let numbers: Vec<T> = (0..count).map(|_| number(random)).collect();
        Tensor::from_vec(numbers, shape)
    })
    .expect("an input")
}

/// The graph of a seed on a device, and its inputs; of each result whether it may be rounded.
fn build(seed: u64, device: DeviceRef) -> (Graph, Vec<Tensor>, Vec<Numbers>) {
    let mut random = Random(seed);
    let rank = 1 + random.below(3);
    let shape: Vec<usize> = (0..rank).map(|_| 1 + random.below(6)).collect();
    let count = 2 + random.below(2);
    let dtypes: Vec<DType> = (0..count).map(|_| random.of(&INPUTS)).collect();
    let inputs: Vec<Tensor> = dtypes.iter().map(|dtype| input(&mut random, *dtype, &shape)).collect();
    let types: Vec<TensorType> = dtypes.iter().map(|dtype| TensorType::new(*dtype, shape.as_slice(), device)).collect();
    let mut numbers = Vec::new();
    let graph = Graph::build(format!("seed_{seed}"), types, |_, inputs| {
        let start = |value: &Value| {
            let value = value.tensor()?.clone();
            let digits = if value.dtype().is_float() { 2 } else { 0 };
            Ok(Known { value, numbers: Numbers::short(4, digits) })
        };
        let mut values = inputs.iter().map(start).collect::<Result<Vec<_>, GraphError>>()?;
        let steps = 6 + random.below(8);
        while values.len() < count + steps {
            let next = step(&mut random, &values)?;
            values.extend(next.filter(|next| next.shape().iter().product::<usize>() <= 300));
        }
        // What is not returned makes room for what follows.
        let results = values.split_off(values.len() - 2);
        numbers = results.iter().map(|result| result.numbers).collect();
        Ok(results.into_iter().map(|result| result.value).collect::<Vec<_>>())
    });
    (graph.unwrap_or_else(|error| panic!("seed {seed}: {error}")), inputs, numbers)
}

/// The first element that differs: its place, and both numbers.
fn difference(a: &Tensor, b: &Tensor, numbers: Numbers) -> Option<String> {
    dispatch!(a.dtype(), T => {
        let (a, b) = (a.to_vec::<T>().expect("elements"), b.to_vec::<T>().expect("elements"));
        // A step of what was rounded to halves on the way, against the largest.
        let largest = b.iter().map(|v| v.to_f64().abs()).filter(|v| v.is_finite()).fold(16.0, f64::max);
        let tolerance = if numbers == Numbers::Rounded { largest / 64.0 } else { 0.0 };
        let same = |x: T, y: T| {
            let (u, v) = (x.to_f64(), y.to_f64());
            x == y || u.is_nan() && v.is_nan() || (u - v).abs() <= tolerance && numbers == Numbers::Rounded
        };
        (0..a.len()).find(|i| !same(a[*i], b[*i])).map(|i| format!("element {i}: {} and {}", a[i], b[i]))
    })
}

gpu_test! {
    fn random_graphs_give_the_same_on_the_cpu_and_on_a_gpu() {
        let gpu = Device::accelerator(0).unwrap();
        let sessions = [Device::cpu(), gpu].map(|device| (device, InferenceSession::with_devices([device])));
        let mut exact = 0;
        for seed in 0..GRAPHS {
            let [cpu, gpu] = sessions.each_ref().map(|(device, session)| {
                let (graph, inputs, numbers) = build(seed, device.into());
                let fail = |error: &dyn std::fmt::Display| -> ! { panic!("seed {seed} on {device}: {error}\n{graph}") };
                let model = session.load(&graph).unwrap_or_else(|error| fail(&error));
                let inputs: Vec<Tensor> = inputs.iter().map(|x| x.to(device).unwrap()).collect();
                let results = model.execute(&inputs).unwrap_or_else(|error| fail(&error));
                let results: Vec<Tensor> = results.iter().map(|x| x.to(&Device::cpu()).unwrap()).collect();
                (graph, results, numbers)
            });
            for (i, (a, b)) in gpu.1.iter().zip(&cpu.1).enumerate() {
                let numbers = cpu.2[i];
                exact += usize::from(numbers != Numbers::Rounded);
                if let Some(text) = difference(a, b, numbers) {
                    panic!("seed {seed}, result {i} ({numbers:?}) on the GPU and the CPU, {text}\n{}", cpu.0);
                }
            }
        }
        assert!(exact as u64 > GRAPHS, "{exact} results of {GRAPHS} graphs are compared exactly");
    }
}
