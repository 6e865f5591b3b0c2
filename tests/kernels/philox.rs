//! Random numbers: the generator against its authors' vectors, and what graphs draw with it.

use max::graph::{GraphError, ops};
use max::kernel::abi::Access;
use max::prelude::*;
use max_kernels::random::philox;

use crate::case::Problem;
use crate::engine::engines;
use crate::number::Num;
use crate::random::Rng;
use crate::table::random::philox as reference;
use crate::tensor::{Layout, Tensor as Operand};

/// The generator alone.
#[kernel(op = "philox_block")]
fn philox_block(a: u32, b: u32, c: u32, d: u32, k: u32, l: u32) -> (u32, u32, u32, u32) {
    philox((a, b, c, d), (k, l))
}

/// Counter, key and result, from the file `kat_vectors` of Random123, the authors' library.
const KNOWN: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
    ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
    ([u32::MAX; 4], [u32::MAX; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
    (
        [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
        [0xa4093822, 0x299f31d0],
        [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
    ),
];

#[test]
fn the_generator_gives_its_authors_numbers_everywhere() {
    for (counter, key, want) in KNOWN {
        assert_eq!(reference(counter, key), want);
    }
    let def = KernelLibrary::linked().get("philox_block").unwrap();
    let mut rng = Rng(1);
    let mut operands: Vec<Operand> = Vec::new();
    let mut inputs = (0..6).map(|word| KNOWN.map(|(counter, key, _)| [&counter[..], &key].concat()[word]));
    for operand in def.operands.as_slice() {
        let mut tensor = Operand::new(DType::U32, &[KNOWN.len() as i64], Layout::default(), &mut rng);
        if operand.access == Access::In {
            let mut words = inputs.next().unwrap().into_iter().map(u64::from);
            tensor.fill(|| words.next().unwrap().to_le_bytes());
        }
        operands.push(tensor);
    }
    let values = operands.iter().map(Operand::values).collect();
    let problem = Problem { def, dtypes: Vec::new(), params: Vec::new(), operands, values, descending_warps: false };
    let mut forms = Vec::new();
    for engine in engines().iter().filter(|engine| engine.has(&problem)) {
        let mut operands = problem.operands.clone();
        engine.run(&problem, &mut operands).unwrap();
        let written = operands.iter().zip(def.operands.as_slice()).filter(|(_, def)| def.access == Access::Out);
        let results: Vec<Vec<Num>> = written.map(|(tensor, _)| tensor.values()).collect();
        for (i, (_, _, want)) in KNOWN.iter().enumerate() {
            let got: Vec<Num> = results.iter().map(|words| words[i]).collect();
            assert_eq!(got, want.map(|word| Num::Int(word.into())), "{}", engine.name());
        }
        forms.push(engine.name());
    }
    // The reference form, one compiled for this machine at least, and PTX.
    assert!(forms.len() >= 3 && forms[0] == "reference" && forms[forms.len() - 1].starts_with("PTX"), "{forms:?}");
}

/// A graph that draws with a seed that is its input.
fn model(draw: impl FnOnce(&TensorValue) -> Result<TensorValue, GraphError>) -> Model {
    let seed = TensorType::new(DType::I64, (), DeviceRef::CPU);
    let graph = Graph::build("draw", [seed], |_, x| draw(x[0].tensor()?)).unwrap();
    InferenceSession::new().load(&graph).unwrap()
}

/// What is drawn with a seed, as `f64`.
fn drawn(model: &Model, seed: i64) -> Vec<f64> {
    let numbers = model.execute(&Tensor::scalar(seed).unwrap()).unwrap().swap_remove(0);
    match numbers.dtype() {
        DType::F16 => numbers.to_vec::<f16>().unwrap().into_iter().map(f64::from).collect(),
        DType::BF16 => numbers.to_vec::<bf16>().unwrap().into_iter().map(f64::from).collect(),
        DType::F32 => numbers.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect(),
        _ => numbers.to_vec::<f64>().unwrap(),
    }
}

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

fn vector(dtype: DType, n: i64) -> TensorType {
    TensorType::new(dtype, (n,), DeviceRef::CPU)
}

#[test]
fn no_number_is_outside_of_its_range() {
    for dtype in FLOATS {
        for range in [0.0..1.0, -1.0..1.0, 0.1..0.7, -0.3..0.0, 100.0..101.0, -3e4..6e4, 0.99..1.01, 1e-6..3e-6] {
            let model = model(|seed| ops::random::uniform(seed, vector(dtype, 1 << 20), range.clone()));
            // Neither the end nor what it is in the dtype.
            let end = match dtype {
                DType::F16 => f16::from_f64(range.end).to_f64(),
                DType::BF16 => bf16::from_f64(range.end).to_f64(),
                DType::F32 => f64::from(range.end as f32),
                _ => range.end,
            };
            for seed in [0, -1] {
                let numbers = drawn(&model, seed);
                let outside = numbers.iter().find(|v| !range.contains(v) || **v >= end);
                assert_eq!(outside, None, "{dtype} in {range:?}");
            }
        }
    }
}

/// How far the distribution of numbers is from another: the statistic of Kolmogorov and Smirnov.
fn distance(mut numbers: Vec<f64>, below: impl Fn(f64) -> f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let n = numbers.len() as f64;
    let apart = |(i, v): (usize, &f64)| (below(*v) - i as f64 / n).abs().max((below(*v) - (i + 1) as f64 / n).abs());
    numbers.iter().enumerate().map(apart).fold(0.0, f64::max)
}

fn moments(numbers: &[f64]) -> (f64, f64) {
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    (mean, numbers.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / numbers.len() as f64)
}

/// Numbers of a draw, and four times by how much the mean of so many deviates for a standard deviation of 1.
const COUNT: i64 = 1 << 21;
const FOUR_SIGMA: f64 = 4.0 / 1448.0;

/// Half of the widest step between numbers of a dtype around 1.
fn half_step(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 0.5f64.powi(11),
        DType::BF16 => 0.5f64.powi(8),
        _ => 0.0,
    }
}

#[test]
fn uniform_numbers_are_uniform() {
    for dtype in FLOATS {
        let model = model(|seed| ops::random::uniform(seed, vector(dtype, COUNT), -2.0..3.0));
        for seed in [1, i64::MIN] {
            let numbers = drawn(&model, seed);
            let (mean, variance) = moments(&numbers);
            assert!((mean - 0.5).abs() < FOUR_SIGMA * 1.4434 + half_step(dtype) / 16.0, "{dtype}: mean {mean}");
            assert!((variance - 25.0 / 12.0).abs() < 0.01, "{dtype}: variance {variance}");
            // The statistic exceeds this with a probability of 0.001; steps around 2 are twice those around 1.
            let bound = 1.95 / (COUNT as f64).sqrt() + 3.0 * half_step(dtype) / 5.0;
            let apart = distance(numbers, |v| (v + 2.0) / 5.0);
            assert!(apart < bound, "{dtype}: {apart}, not below {bound}");
        }
    }
}

#[test]
fn gaussian_numbers_are_normal() {
    for dtype in FLOATS {
        let model = model(|seed| ops::random::gaussian(seed, vector(dtype, COUNT), 0.5, 2.0));
        for seed in [1, 1 << 32] {
            let numbers = drawn(&model, seed);
            assert!(numbers.iter().all(|v| v.is_finite()), "{dtype}");
            let (mean, variance) = moments(&numbers);
            assert!((mean - 0.5).abs() < FOUR_SIGMA * 2.0, "{dtype}: mean {mean}");
            assert!((variance - 4.0).abs() < FOUR_SIGMA * 4.0 * 2f64.sqrt(), "{dtype}: variance {variance}");
            // The density is 0.2 at most, and smaller where steps are wider.
            let bound = 1.95 / (COUNT as f64).sqrt() + 0.4 * half_step(dtype);
            let below = |v: f64| (1.0 + libm::erf((v - 0.5) / 8f64.sqrt())) / 2.0;
            let apart = distance(numbers.clone(), below);
            assert!(apart < bound, "{dtype}: {apart}, not below {bound}");
            let far = numbers.iter().filter(|v| (**v - 0.5).abs() > 8.0).count() as f64 / COUNT as f64;
            assert!((far - 6.33e-5).abs() < 4.0 * (6.33e-5 / COUNT as f64).sqrt(), "{dtype}: {far} beyond four sigma");
        }
    }
}

#[test]
fn neighbours_and_seeds_have_nothing_in_common() {
    let uniform = model(|seed| ops::random::uniform(seed, vector(DType::F64, COUNT), -1.0..1.0));
    let gaussian = model(|seed| ops::random::gaussian(seed, vector(DType::F32, COUNT), 0.0, 1.0));
    for (model, variance) in [(uniform, 1.0 / 3.0), (gaussian, 1.0)] {
        let [a, b, c] = [5, 6, 5 | 1 << 32].map(|seed| drawn(&model, seed));
        let correlation = |x: &[f64], y: &[f64]| {
            x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>() / (variance * x.len().min(y.len()) as f64)
        };
        for (what, other) in [("a neighbour", &a[1..]), ("the next seed", &b), ("another seed", &c)] {
            let correlation = correlation(&a, other);
            assert!(correlation.abs() < FOUR_SIGMA, "{correlation} with {what}");
        }
    }
}

#[test]
fn numbers_depend_on_seed_and_index_alone() {
    let shaped = |shape: &[i64]| {
        let ty = TensorType::new(DType::F32, shape, DeviceRef::CPU);
        model(|seed| ops::random::uniform(seed, &ty, 0.0..1.0))
    };
    let all = drawn(&shaped(&[3, 5000]), 9);
    assert_eq!(drawn(&shaped(&[3, 5000]), 9), all);
    assert_eq!(drawn(&shaped(&[100, 2, 75]), 9), all);
    assert_eq!(drawn(&shaped(&[70]), 9), all[..70]);
    assert_eq!(drawn(&shaped(&[]), 9), all[..1]);
    assert_eq!(drawn(&shaped(&[3, 0]), 9), [0.0; 0]);
    assert_ne!(drawn(&shaped(&[]), 10), all[..1]);
    // The first number, from its authors' generator.
    assert_eq!(drawn(&shaped(&[]), 0), [f64::from(KNOWN[0].2[0] >> 8) / f64::from(1 << 24)]);
    let same = |session: InferenceSession| {
        let seed = TensorType::new(DType::I64, (), DeviceRef::CPU);
        let ty = TensorType::new(DType::F32, (3, 5000), DeviceRef::CPU);
        let graph = Graph::build("draw", [seed], |_, x| ops::random::uniform(&x[0], &ty, 0.0..1.0)).unwrap();
        assert_eq!(drawn(&session.load(&graph).unwrap(), 9), all);
    };
    same(InferenceSession::new().reference(true));
    same(InferenceSession::new().num_threads(1).unwrap());
}

#[test]
fn a_draw_takes_symbolic_dims_and_the_type_of_another() {
    let seed = TensorType::new(DType::I64, (), DeviceRef::CPU);
    let x = TensorType::new(DType::F64, ("n", 3), DeviceRef::CPU);
    let graph = Graph::build("noisy", [seed, x], |_, x| {
        let (seed, x) = (x[0].tensor()?, x[1].tensor()?);
        let noise = ops::random::normal_like(seed, x, 0.0, 1.0)?;
        let keep = ops::random::uniform_like(ops::add(seed, 1)?, x, 0.0..1.0)?;
        assert_eq!(noise.ty(), x.ty());
        Ok::<_, GraphError>([ops::add(x, noise)?, keep])
    });
    let model = InferenceSession::new().load(&graph.unwrap()).unwrap();
    for n in [0, 1, 400] {
        let x = Tensor::from_vec(vec![10.0f64; 3 * n], [n, 3]).unwrap();
        let results = model.execute([&Tensor::scalar(7i64).unwrap(), &x]).unwrap();
        let ty = TensorType::new(DType::F64, (3 * n as i64,), DeviceRef::CPU);
        let noise = drawn(&self::model(|seed| ops::random::gaussian(seed, &ty, 0.0, 1.0)), 7);
        let noisy: Vec<f64> = noise.iter().map(|v| v + 10.0).collect();
        assert_eq!(results[0].to_vec::<f64>().unwrap(), noisy);
        let keep = drawn(&self::model(|seed| ops::random::uniform(seed, &ty, 0.0..1.0)), 8);
        assert_eq!(results[1].to_vec::<f64>().unwrap(), keep);
        assert_eq!(results[1].shape(), [n, 3]);
    }
}

/// A draw of a constant seed is one of the same numbers, computed when the graph is loaded or later.
#[test]
fn a_seed_may_be_a_constant() {
    for n in [10, 100_000] {
        let graph = Graph::build("constant", (), |graph, _| {
            let seed = ops::constant(graph, 3i64, DType::I64, DeviceRef::CPU)?;
            ops::random::gaussian(&seed, vector(DType::F32, n), 0.0, 1.0)
        });
        let results = InferenceSession::new().load(&graph.unwrap()).unwrap().execute(()).unwrap();
        let want = drawn(&model(|seed| ops::random::gaussian(seed, vector(DType::F32, n), 0.0, 1.0)), 3);
        let got: Vec<f64> = results[0].to_vec::<f32>().unwrap().into_iter().map(f64::from).collect();
        assert_eq!(got, want);
    }
}
