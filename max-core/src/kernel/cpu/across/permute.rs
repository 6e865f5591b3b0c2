//! Rows of few elements that lie one after the other, to and from vectors over programs: a fixed permutation of as many registers as
//! a row has elements.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::super::isa::unrolled;
use super::launch::LANES;

/// The longest rows: each vector of the target takes lanes of each of the source.
pub(super) const LONGEST: usize = 8;

/// Where the words of vectors come from, of which `WORD` are an element: from rows to vectors over programs if
/// `READ`, and back.
struct Steps<V, const N: usize, const WORD: usize, const READ: bool>(PhantomData<V>);

impl<V: Register, const N: usize, const WORD: usize, const READ: bool> Steps<V, N, WORD, READ> {
    /// By vector `t` of the target and vector `s` of the source, as the instructions of [`Register::join`] take it.
    const ALL: [[[u32; 16]; N]; N] = {
        let mut all = [[[0; 16]; N]; N];
        let mut at = 0;
        while at < N * N * V::WORDS {
            let (t, s, word) = (at / (N * V::WORDS), at / V::WORDS % N, at % V::WORDS);
            let (from, source) = Self::source(t, word);
            all[t][s][word] = match from {
                _ if from == s => FROM_SOURCE + source as u32,
                // The first vector comes with the second.
                0 if s == 1 => source as u32,
                _ => word as u32,
            };
            at += 1;
        }
        all
    };

    /// The vector of the source that has a target vector's word, and which of its words that is.
    const fn source(vector: usize, word: usize) -> (usize, usize) {
        let per_vector = V::WORDS / WORD;
        let (from, element) = if READ {
            let flat = word / WORD * N + vector;
            (flat / per_vector, flat % per_vector)
        } else {
            let flat = vector * per_vector + word / WORD;
            (flat % N, flat / N)
        };
        (from, element * WORD + word % WORD)
    }
}

/// Added to the place of a word that comes from the source vector; others are places in the target's.
const FROM_SOURCE: u32 = 16;

/// A vector register, and how lanes of one join those of another.
///
/// # Safety
/// A machine that runs the functions must have their instructions, and functions that they are inlined into its features.
unsafe trait Register: Copy {
    /// Words of a register.
    const WORDS: usize;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// Of each word what `step` says: of `source`, or of itself.
    unsafe fn join(self, source: Self, step: &[u32; 16]) -> Self;
}

macro_rules! register {
    ($(#[$doc:meta])* $name:ident($vector:ty, $words:literal, $load:ident, $store:ident), |$own:ident, $source:ident, $step:ident| $join:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name($vector);
        // SAFETY: whoever calls has the instructions.
        unsafe impl Register for $name {
            const WORDS: usize = $words;
            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self {
                // SAFETY: the caller's promise.
                $name(unsafe { $load(from.cast()) })
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { $store(to.cast(), self.0) };
            }
            #[inline(always)]
            unsafe fn join(self, source: Self, step: &[u32; 16]) -> Self {
                let ($own, $source) = (self.0, source.0);
                let $step = step.as_ptr();
                // SAFETY: the caller's promise; a step is as long as the longest vector.
                $name(unsafe { $join })
            }
        }
    };
}
register!(
    /// 16 words of 4 bytes, of AVX-512.
    Words16(__m512i, 16, _mm512_loadu_si512, _mm512_storeu_si512),
    |own, source, step| _mm512_permutex2var_epi32(own, _mm512_loadu_si512(step.cast()), source)
);
register!(
    /// 16 words of 2 bytes, of AVX-512.
    Halves16(__m256i, 16, _mm256_loadu_si256, _mm256_storeu_si256),
    |own, source, step| {
        _mm256_permutex2var_epi16(own, _mm512_cvtepi32_epi16(_mm512_loadu_si512(step.cast())), source)
    }
);
register!(
    /// 8 words of 4 bytes, of AVX2.
    Words8(__m256i, 8, _mm256_loadu_si256, _mm256_storeu_si256),
    |own, source, step| {
        let step = _mm256_loadu_si256(step.cast());
        let from_source = _mm256_cmpgt_epi32(step, _mm256_set1_epi32(FROM_SOURCE as i32 - 1));
        let (own, source) = (_mm256_permutevar8x32_epi32(own, step), _mm256_permutevar8x32_epi32(source, step));
        _mm256_blendv_epi8(own, source, from_source)
    }
);

/// Permutes a group's rows of `N` elements, of `WORD` words each: to vectors over programs if `READ`, else from them.
///
/// # Safety
/// `N * LANES` elements must be readable and writable; the machine must have the register's instructions, and the function that this is
/// inlined into its features.
#[inline(always)]
unsafe fn permute<V: Register, E, const N: usize, const WORD: usize, const READ: bool>(to: *mut E, from: *const E) {
    let per_vector = V::WORDS / WORD;
    let steps = const { &Steps::<V, N, WORD, READ>::ALL };
    // A vector holds elements of so many of the group's programs.
    let mut program = 0;
    while program < LANES {
        let across = |v: usize| v * LANES + program;
        let along = |v: usize| program * N + v * per_vector;
        // SAFETY: by the contract: vectors of `per_vector` elements among `N * LANES`.
        unsafe {
            let mut sources = [V::load(from.cast()); N];
            unrolled!(s in N, 8, {
                sources[s] = V::load(from.add(if READ { along(s) } else { across(s) }).cast());
            });
            unrolled!(t in N, 8, {
                let mut joined = sources[0];
                unrolled!(s in N, 8, {
                    if s > 0 {
                        joined = joined.join(sources[s], &steps[t][s]);
                    }
                });
                joined.store(to.add(if READ { across(t) } else { along(t) }).cast());
            });
        }
        program += per_vector;
    }
}

/// Permutes a group's rows of `n` elements of the register's words, and says whether it has: not those longer than [`LONGEST`].
///
/// # Safety
/// As for [`permute`].
#[inline(always)]
unsafe fn permute_rows<V: Register, E, const WORD: usize, const READ: bool>(
    to: *mut E,
    from: *const E,
    n: usize,
) -> bool {
    // SAFETY: by the contract.
    unsafe {
        match n {
            1 => permute::<V, E, 1, WORD, READ>(to, from),
            2 => permute::<V, E, 2, WORD, READ>(to, from),
            3 => permute::<V, E, 3, WORD, READ>(to, from),
            4 => permute::<V, E, 4, WORD, READ>(to, from),
            5 => permute::<V, E, 5, WORD, READ>(to, from),
            6 => permute::<V, E, 6, WORD, READ>(to, from),
            7 => permute::<V, E, 7, WORD, READ>(to, from),
            LONGEST => permute::<V, E, LONGEST, WORD, READ>(to, from),
            _ => return false,
        }
    }
    true
}

/// Permutes the rows of a group of [`LANES`] programs, of `n` elements each, and says whether it has.
///
/// # Safety
/// `n * LANES` elements must be readable and writable; the machine must have AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline(never)]
pub(super) unsafe fn permute_avx512<E, const READ: bool>(to: *mut E, from: *const E, n: usize) -> bool {
    // SAFETY: by the contract.
    unsafe {
        match size_of::<E>() {
            2 => permute_rows::<Halves16, E, 1, READ>(to, from, n),
            4 => permute_rows::<Words16, E, 1, READ>(to, from, n),
            8 => permute_rows::<Words16, E, 2, READ>(to, from, n),
            _ => false,
        }
    }
}

/// As [`permute_avx512`], with AVX2.
///
/// # Safety
/// As there; the machine must have AVX2.
#[target_feature(enable = "avx2")]
#[inline(never)]
pub(super) unsafe fn permute_avx2<E, const READ: bool>(to: *mut E, from: *const E, n: usize) -> bool {
    // SAFETY: by the contract.
    unsafe {
        match size_of::<E>() {
            4 => permute_rows::<Words8, E, 1, READ>(to, from, n),
            8 => permute_rows::<Words8, E, 2, READ>(to, from, n),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<E: Copy + PartialEq + std::fmt::Debug>(make: impl Fn(usize) -> E) {
        let mut permutes = vec![];
        if is_x86_feature_detected!("avx2") {
            permutes.push((
                permute_avx2::<E, true> as unsafe fn(_, _, _) -> _,
                permute_avx2::<E, false> as unsafe fn(_, _, _) -> _,
            ));
        }
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            permutes.push((permute_avx512::<E, true>, permute_avx512::<E, false>));
        }
        for (read, write) in permutes {
            for n in 1..LONGEST + 2 {
                let rows: Vec<E> = (0..n * LANES).map(&make).collect();
                let (mut across, mut back) = (vec![make(999); n * LANES], vec![make(999); n * LANES]);
                // SAFETY: so many elements are there, and the machine has the features.
                let (permuted, returned) = unsafe {
                    (read(across.as_mut_ptr(), rows.as_ptr(), n), write(back.as_mut_ptr(), across.as_ptr(), n))
                };
                if !permuted || !returned {
                    assert!(n > LONGEST || size_of::<E>() <= 2, "{n} elements of {} bytes", size_of::<E>());
                    continue;
                }
                for (i, element) in across.iter().enumerate() {
                    assert_eq!(*element, rows[i % LANES * n + i / LANES], "{i} of {n}");
                }
                assert_eq!(back, rows, "{n}");
            }
        }
    }

    #[test]
    fn rows_of_all_lengths_and_sizes() {
        check(|i| i as u8);
        check(|i| i as u16);
        check(|i| i as u32);
        check(|i| i as u64);
    }
}
