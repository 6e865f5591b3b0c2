//! Products of `f32` that are large enough for AMX to multiply the factors' parts: as near to the exact sums as a chain of fused
//! multiply-adds, but for products near the smallest numbers. Where there is no AMX, the same holds of vectors.

use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::{InferenceSession, Model};
use max::graph::{Graph, TensorType, ops};

/// How the right operand comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    Input,
    /// The transpose of an input.
    Transposed,
    Constant,
}

fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    // Of several magnitudes.
    (0..len).map(|i| next() * [1.0, 0.01, 3.0, 100.0][i % 4]).collect()
}

/// `a · b` of matrices, of which there may be several.
fn product(batch: Option<usize>, [m, k, n]: [usize; 3], a: &[f32], b: &[f32], right: Right) -> Vec<f32> {
    let shape = |rows: usize, columns: usize| -> Vec<usize> { batch.into_iter().chain([rows, columns]).collect() };
    let ty = |shape: Vec<usize>| TensorType::new(DType::F32, shape, DeviceRef::CPU);
    let tensor = |values: &[f32], shape: Vec<usize>| Tensor::from_vec(values.to_vec(), shape).unwrap();
    let (left, there) = (shape(m, k), if right == Right::Transposed { shape(n, k) } else { shape(k, n) });
    let at = |i: usize, j: usize, [rows, columns]: [usize; 2]| b[i * rows * columns + j % rows * columns + j / rows];
    let b = match right {
        Right::Transposed => {
            tensor(&(0..b.len()).map(|i| at(i / (k * n), i % (k * n), [k, n])).collect::<Vec<f32>>(), there.clone())
        }
        _ => tensor(b, there.clone()),
    };
    let inputs = [ty(left.clone()), ty(there)];
    let inputs = if right == Right::Constant { &inputs[..1] } else { &inputs[..] };
    let graph = Graph::build("product", inputs.to_vec(), |graph, inputs| {
        let b = match right {
            Right::Input => inputs[1].tensor()?.clone(),
            Right::Transposed => ops::transpose(&inputs[1], -1, -2)?,
            Right::Constant => ops::constant(graph, b.clone(), DType::F32, DeviceRef::CPU)?,
        };
        ops::matmul(&inputs[0], b)
    });
    let model: Model = InferenceSession::new().load(&graph.unwrap()).unwrap();
    let a = tensor(a, left);
    let outputs = if right == Right::Constant { model.execute([&a]) } else { model.execute([&a, &b]) };
    outputs.unwrap()[0].to_vec().unwrap()
}

/// The exact sum of an element, that of the factors' sizes, and a chain of fused multiply-adds.
fn sums([k, n]: [usize; 2], a: &[f32], b: &[f32], [i, j]: [usize; 2]) -> (f64, f64, f32) {
    (0..k).fold((0.0, 0.0, 0.0), |(exact, size, chain), s| {
        let (x, y) = (a[i * k + s], b[s * n + j]);
        let both = f64::from(x) * f64::from(y);
        (exact + both, size + both.abs(), x.mul_add(y, chain))
    })
}

/// What a sum of so many products, which have that size together, may be off by. Of each of the six products of parts, what is below
/// the normal numbers may be lost.
fn bound(k: usize, size: f64) -> f64 {
    k as f64 * (f64::from(f32::EPSILON) * size + 6.0 * f64::from(f32::MIN_POSITIVE))
}

#[test]
fn sums_are_as_near_as_chains_of_fused_multiply_adds() {
    for (batch, shape) in
        [(None, [400, 300, 500]), (None, [389, 1100, 397]), (None, [130, 1027, 2050]), (Some(3), [130, 257, 390])]
    {
        let [m, k, n] = shape;
        let matrices = batch.unwrap_or(1);
        let (a, b) = (random(matrices * m * k, 1), random(matrices * k * n, 2));
        for right in [Right::Input, Right::Transposed, Right::Constant] {
            let found = product(batch, shape, &a, &b, right);
            let (mut squares, mut chains) = (0.0, 0.0);
            for at in (0..found.len()).step_by(61) {
                let (matrix, i, j) = (at / (m * n), at / n % m, at % n);
                let (a, b) = (&a[matrix * m * k..], &b[matrix * k * n..]);
                let (exact, size, chain) = sums([k, n], a, b, [i, j]);
                let error = (f64::from(found[at]) - exact) / size;
                squares += error * error;
                chains += ((f64::from(chain) - exact) / size).powi(2);
                assert!(error.abs() <= k as f64 * f64::from(f32::EPSILON), "{shape:?} {right:?} {at}: {error}");
            }
            // A level without AMX adds in the order of the chain, but for where it begins.
            assert!(squares <= 1.05 * chains, "{shape:?} {right:?}: {squares} of {chains}");
        }
    }
}

#[test]
fn factors_that_are_no_sums_of_their_parts_are_multiplied_as_they_are() {
    let [m, k, n] = [300, 1100, 400];
    let (i, s, j) = (137, 700, 391);
    for x in [
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        -1e30,
        1e-31,
        f32::MIN_POSITIVE,
        -1e-42,
        f32::from_bits(1),
    ] {
        for is_left in [true, false] {
            let (mut a, mut b) = (random(m * k, 3), random(k * n, 4));
            // Nothing else is added there, so that what small factors come to is seen.
            let (across, other) = if is_left { (&mut a[i * k..][..k], &mut b) } else { (&mut b[..], &mut a) };
            if is_left {
                across.fill(0.0);
                across[s] = x;
                other[s * n..][..n].iter_mut().for_each(|y| *y *= 1e7);
            } else {
                (0..k).for_each(|s| across[s * n + j] = 0.0);
                across[s * n + j] = x;
                (0..m).for_each(|i| other[i * k + s] *= 1e7);
            }
            for right in [Right::Input, Right::Constant] {
                let found = product(None, [m, k, n], &a, &b, right);
                for at in (0..m * n).filter(|at| at / n == i || at % n == j || at % 61 == 0) {
                    let (exact, size, chain) = sums([k, n], &a, &b, [at / n, at % n]);
                    let bound = bound(k, size);
                    let is_near = match chain.is_finite() {
                        true => (f64::from(found[at]) - exact).abs() <= bound,
                        false => found[at] == chain || found[at].is_nan() && chain.is_nan(),
                    };
                    assert!(is_near, "{x} {is_left} {right:?} {at}: {} for {exact}", found[at]);
                }
            }
        }
    }
}

#[test]
fn products_near_the_smallest_numbers_lose_little() {
    let [m, k, n] = [300, 1100, 400];
    for (left, right) in [(1e-17, 1e-17), (1e-28, 1e-7), (3e-19, 2e-18), (1e-29, 1e12)] {
        let scaled =
            |len: usize, seed: u64, by: f32| random(len, seed).into_iter().map(|x| x * by).collect::<Vec<f32>>();
        let (a, b) = (scaled(m * k, 5, left), scaled(k * n, 6, right));
        let found = product(None, [m, k, n], &a, &b, Right::Input);
        for at in (0..m * n).step_by(61) {
            let (exact, size, _) = sums([k, n], &a, &b, [at / n, at % n]);
            let error = (f64::from(found[at]) - exact).abs();
            assert!(error <= bound(k, size), "{left} {right} {at}: {} for {exact}", found[at]);
        }
    }
}
