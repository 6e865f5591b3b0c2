//! Peak arithmetic: fused multiply-adds of `f32`, and products of `bf16`, as fast as the widest instructions go.

use std::hint::black_box;

use super::best_seconds;

/// Many short tries, so that on a busy machine some go undisturbed.
const TRIES: usize = 60;
/// Sums that are computed side by side, enough to hide the latency of the instructions.
const SUMS: usize = 12;
/// Steps of one try, each of [`SUMS`] instructions.
const STEPS: usize = 1 << 17;

/// Operations on `f32` a second, all threads together.
pub fn f32_peak(threads: usize) -> f64 {
    let (lanes, run) = widest_f32();
    rate(threads, lanes * 2 * SUMS, STEPS, run)
}

/// Operations on `bf16` with sums in `f32` a second, all threads together, where there are instructions for them: which may be slower than
/// those of [`f32_peak`] on what was widened.
pub fn bf16_peak(threads: usize) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    {
        let vector = is_x86_feature_detected!("avx512bf16").then(|| {
            // SAFETY: the processor has the instructions.
            rate(threads, 32 * 2 * SUMS, STEPS, |steps| unsafe { bf16_avx512(steps) })
        });
        let tiles = amx_peak(threads);
        vector.into_iter().chain(tiles).reduce(f64::max)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = threads;
        None
    }
}

fn rate(threads: usize, flops: usize, steps: usize, run: impl Fn(usize) + Copy + Sync) -> f64 {
    let seconds = best_seconds(threads, TRIES, |_| move || run(black_box(steps)));
    (flops * steps * threads) as f64 / seconds
}

fn widest_f32() -> (usize, fn(usize)) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the instructions.
            return (16, |steps| unsafe { f32_avx512(steps) });
        }
        if is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx") {
            // SAFETY: as above.
            return (8, |steps| unsafe { f32_avx(steps) });
        }
    }
    (4, f32_portable)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn f32_avx512(steps: usize) {
    use std::arch::x86_64::*;
    let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.001)));
    let mut sums = [_mm512_setzero_ps(); SUMS];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, a, b);
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,fma")]
fn f32_avx(steps: usize) {
    use std::arch::x86_64::*;
    let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
    let mut sums = [_mm256_setzero_ps(); SUMS];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, a, b);
        }
    }
    black_box(sums);
}

fn f32_portable(steps: usize) {
    let (a, b) = (black_box(0.999f32), black_box(0.001f32));
    let mut sums = [[0f32; 4]; SUMS];
    for _ in 0..steps {
        for x in sums.as_flattened_mut() {
            // A call of a library where the processor has no such instruction.
            *x = if cfg!(target_arch = "aarch64") { x.mul_add(a, b) } else { *x * a + b };
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_avx512(steps: usize) {
    use std::arch::x86_64::*;
    let ones = _mm512_cvtne2ps_pbh(_mm512_set1_ps(black_box(1.0)), _mm512_set1_ps(black_box(1.0)));
    let mut sums = [_mm512_setzero_ps(); SUMS];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, ones, ones);
        }
    }
    black_box(sums);
}

/// The peak of AMX, where this process may use it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx_peak(threads: usize) -> Option<f64> {
    use crate::info::cpu::{Amx, amx, request_amx};
    const TILE_FLOPS: usize = 16 * 16 * 32 * 2;
    const TILE_STEPS: usize = 1 << 13;
    let Amx::Present { products, .. } = amx() else { return None };
    if !products.contains(&"bf16") || !request_amx() {
        return None;
    }
    // SAFETY: the processor has AMX and the system has permitted its use.
    Some(rate(threads, 4 * TILE_FLOPS, TILE_STEPS, |steps| unsafe { bf16_amx(steps) }))
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn amx_peak(_threads: usize) -> Option<f64> {
    None
}

/// What `ldtilecfg` loads: eight tiles of 16 rows of 64 bytes.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Adds four products of tiles in each step.
///
/// # Safety
/// The processor must have AMX with `bf16`, and the process the permission to use it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
unsafe fn bf16_amx(steps: usize) {
    let each = |i: usize| i < 8;
    let config = TileConfig {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: std::array::from_fn(|i| if each(i) { 64 } else { 0 }),
        rows: std::array::from_fn(|i| if each(i) { 16 } else { 0 }),
    };
    // SAFETY: by the contract above. All tiles are configured before they are used and released at the end; nothing but
    // the configuration is read from memory.
    unsafe {
        std::arch::asm!(
            "ldtilecfg [{config}]",
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {steps}",
            "jnz 2b",
            "tilerelease",
            config = in(reg) &raw const config,
            steps = inout(reg) steps.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_about_as_fast_as_singles() {
        let singles = f32_peak(1);
        if let Some(halves) = bf16_peak(1) {
            // `vdpbf16ps` is half as fast on some processors; and half of that, for a machine that is busy with something else.
            assert!(halves > 0.25 * singles, "{halves} {singles}");
        }
    }
}
