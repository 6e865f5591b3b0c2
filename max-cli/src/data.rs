//! Operands of works: normally distributed numbers, the same in every run.

use max::driver::{DriverError, Tensor};
use max::dtype::{DType, Element};
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

/// Numbers that are made from one seed.
const CHUNK: usize = 1 << 14;

/// A tensor of numbers with mean 0 and deviation 1; integers have a deviation of 40 (unsigned: their magnitudes), and
/// of truth values half are true.
///
/// # Errors
/// When there is no memory for it.
pub fn normal(dtype: DType, shape: &[usize], seed: u64) -> Result<Tensor, DriverError> {
    max::dispatch!(dtype, T => fill(shape, normal_numbers::<T>, seed))
}

/// A tensor of `int64` numbers from 0 to below `end`, each equally likely.
///
/// # Errors
/// When there is no memory for it.
pub fn indices(shape: &[usize], end: usize, seed: u64) -> Result<Tensor, DriverError> {
    let end = end.max(1) as u64;
    fill(shape, || move |random: &mut Random| (random.next() % end) as i64, seed)
}

/// Fills a tensor by a function that is made once for each chunk, so that results do not depend on threads.
fn fill<T: Element, F: FnMut(&mut Random) -> T>(
    shape: &[usize],
    make: impl Fn() -> F + Sync,
    seed: u64,
) -> Result<Tensor, DriverError> {
    let mut tensor = Tensor::zeros(T::DTYPE, shape, &max::driver::Device::cpu())?;
    tensor.as_mut_slice::<T>()?.par_chunks_mut(CHUNK).enumerate().for_each(|(i, chunk)| {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9).wrapping_add(i as u64) << 20);
        let mut next = make();
        chunk.fill_with(|| next(&mut random));
    });
    Ok(tensor)
}

fn normal_numbers<T: Element>() -> impl FnMut(&mut Random) -> T {
    let mut spare = None;
    move |random| {
        // Each step gives two independent numbers (Box and Muller, 1958).
        let x = spare.take().unwrap_or_else(|| {
            let radius = (-2.0 * random.unit().ln()).sqrt();
            let (sin, cos) = (std::f32::consts::TAU * random.unit()).sin_cos();
            spare = Some(radius * sin);
            radius * cos
        });
        let x = match T::DTYPE {
            DType::Bool => f32::from(x > 0.0),
            dtype if dtype.is_unsigned_integral() => (x * 40.0).abs(),
            dtype if dtype.is_integral() => x * 40.0,
            _ => x,
        };
        T::from_f64(x.into())
    }
}

/// The generator SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number above 0, at most 1.
    fn unit(&mut self) -> f32 {
        ((self.next() >> 40) + 1) as f32 / (1u32 << 24) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_normal() {
        let values = normal(DType::F32, &[300, 100], 7).unwrap().to_vec::<f32>().unwrap();
        let n = values.len() as f32;
        let mean = values.iter().sum::<f32>() / n;
        let deviation = (values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n).sqrt();
        assert!(mean.abs() < 0.03 && (deviation - 1.0).abs() < 0.03, "mean {mean}, deviation {deviation}");
        assert!(values.iter().all(|x| x.is_finite() && *x != 0.0));
        // Chunks differ.
        assert_ne!(values[..8], values[CHUNK..][..8]);
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let make = |seed| normal(DType::F64, &[10], seed).unwrap().to_vec::<f64>().unwrap();
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
    }

    #[test]
    fn every_dtype_can_be_filled() {
        for dtype in DType::ALL {
            assert_eq!(normal(dtype, &[3, 5], 1).unwrap().dtype(), dtype);
        }
        assert_eq!(normal(DType::F32, &[0, 5], 1).unwrap().num_elements(), 0);
    }

    #[test]
    fn indices_are_in_range() {
        let values = indices(&[1000], 7, 3).unwrap().to_vec::<i64>().unwrap();
        assert!((0..7).all(|i| values.contains(&i)) && values.iter().all(|i| (0..7).contains(i)));
    }
}
