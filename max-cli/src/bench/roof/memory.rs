//! Bandwidth of memory and caches: copying, and reading.

use std::hint::black_box;

use super::{Bandwidth, best_seconds};

/// The bytes that are worked on, all threads together: from the first cache to far beyond the second.
const SIZES: [usize; 7] = [1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28];
/// Bytes that one try moves at least: little, so that on a busy machine some try goes undisturbed.
const MOVED: usize = 1 << 24;
/// Bytes that all tries of one size move.
const ALL_MOVED: usize = 1 << 30;

/// A cache line, which is what copies and sums are made of.
#[derive(Clone, Copy, PartialEq)]
#[repr(align(64))]
struct Line([u64; 8]);

/// Bytes read and written a second when copying.
pub fn copy(threads: usize) -> Bandwidth {
    measure(threads, |lines, repeats| {
        let source = vec![Line([1; 8]); lines / 2];
        let mut target = vec![Line([0; 8]); lines / 2];
        move || {
            for _ in 0..repeats {
                copy_lines(black_box(&mut target), black_box(&source));
            }
        }
    })
}

/// Bytes read a second.
pub fn read(threads: usize) -> Bandwidth {
    measure(threads, |lines, repeats| {
        let source = vec![Line([1; 8]); lines];
        move || {
            for _ in 0..repeats {
                black_box(read_lines(black_box(&source)));
            }
        }
    })
}

fn measure<W: FnMut()>(threads: usize, prepare: impl Fn(usize, usize) -> W + Sync) -> Bandwidth {
    let rate = |size: usize| {
        let lines = (size / threads / size_of::<Line>()).max(2);
        let repeats = (MOVED / size).max(1);
        let bytes = lines * size_of::<Line>() * threads * repeats;
        let tries = (ALL_MOVED / bytes.max(1)).clamp(4, 40);
        bytes as f64 / best_seconds(threads, tries, |_| prepare(lines, repeats))
    };
    Bandwidth(SIZES.iter().map(|&size| (size as f64, rate(size))).collect())
}

/// Targets of this size and more are written by non-temporal stores, as kernels do it.
#[cfg(any(target_arch = "x86_64", test))]
const STREAM_BYTES: usize = 4 << 20;

fn copy_lines(target: &mut [Line], source: &[Line]) {
    #[cfg(target_arch = "x86_64")]
    if size_of_val(target) >= STREAM_BYTES && is_x86_feature_detected!("avx") {
        // SAFETY: the processor has AVX.
        return unsafe { stream_lines(target, source) };
    }
    target.copy_from_slice(source);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
fn stream_lines(target: &mut [Line], source: &[Line]) {
    use std::arch::x86_64::*;
    for (to, from) in target.iter_mut().zip(source) {
        let (to, from) = (to.0.as_mut_ptr(), from.0.as_ptr());
        // SAFETY: both halves lie within the lines, which are aligned.
        unsafe {
            _mm256_stream_si256(to.cast(), _mm256_loadu_si256(from.cast()));
            _mm256_stream_si256(to.add(4).cast(), _mm256_loadu_si256(from.add(4).cast()));
        }
    }
    _mm_sfence();
}

fn read_lines(source: &[Line]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512.
            return unsafe { read_avx512(source) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { read_avx2(source) };
        }
    }
    combine(source)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn read_avx512(source: &[Line]) -> u64 {
    use std::arch::x86_64::*;
    let mut sums = [_mm512_setzero_si512(); 8];
    let (blocks, rest) = source.as_chunks::<8>();
    for block in blocks {
        for (sum, line) in sums.iter_mut().zip(block) {
            // SAFETY: a line has 64 bytes.
            *sum = _mm512_xor_si512(*sum, unsafe { _mm512_loadu_si512(line.0.as_ptr().cast()) });
        }
    }
    let all = sums.into_iter().fold(_mm512_setzero_si512(), |all, sum| _mm512_xor_si512(all, sum));
    let mut line = Line([0; 8]);
    // SAFETY: a line has 64 bytes.
    unsafe { _mm512_storeu_si512(line.0.as_mut_ptr().cast(), all) };
    combine(&[line]) ^ combine(rest)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn read_avx2(source: &[Line]) -> u64 {
    combine(source)
}

#[inline(always)]
fn combine(source: &[Line]) -> u64 {
    let mut sums = [0; 8];
    for line in source {
        for (sum, x) in sums.iter_mut().zip(line.0) {
            *sum ^= x;
        }
    }
    sums.into_iter().fold(0, |all, sum| all ^ sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_copied_and_read_whole() {
        for lines in [0, 1, 7, 8, 9, 1000, STREAM_BYTES / size_of::<Line>() + 1] {
            let source: Vec<Line> =
                (0..lines as u64).map(|i| Line(std::array::from_fn(|j| i.wrapping_mul(0x9e37) + j as u64))).collect();
            let mut target = vec![Line([0; 8]); lines];
            copy_lines(&mut target, &source);
            assert!(target == source, "{lines} lines");
            let one_changed = lines.checked_sub(1).map(|last| {
                target[last].0[3] ^= 1;
                read_lines(&target) ^ read_lines(&source)
            });
            assert_eq!(one_changed.unwrap_or(1), 1, "{lines} lines");
        }
    }
}
