//! Bandwidth of an accelerator's memory: copying within it.

use std::time::Instant;

use max::driver::{Device, DriverError, SliceIndex};
use max::dtype::DType;

use super::Bandwidth;
use crate::data;

/// The bytes that are worked on, read and written ones together: from what a cache holds to far beyond.
const SIZES: [usize; 5] = [1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28];
/// Bytes that a try moves, at least some copies, after which the host waits; and tries, of which the best one counts.
const MOVED: usize = 1 << 28;
const TRIES: usize = 3;

/// Bytes read and written a second when copying.
pub fn copy(device: &Device) -> Result<Bandwidth, DriverError> {
    let elements = |bytes: usize| bytes / 2 / DType::F32.size_in_bytes();
    let most = SIZES.into_iter().max().unwrap_or(0);
    let all = data::normal(DType::F32, &[elements(most)], 1)?.to(device)?;
    let mut rates = Vec::new();
    for bytes in SIZES {
        let from = all.slice(&[SliceIndex::from(0..elements(bytes) as isize)])?;
        let mut to = from.copy()?;
        device.synchronize()?;
        let copies = (MOVED / bytes).clamp(4, 20);
        let mut best = f64::INFINITY;
        for _ in 0..TRIES {
            let start = Instant::now();
            for _ in 0..copies {
                to.inplace_copy_from(&from)?;
            }
            device.synchronize()?;
            best = best.min(start.elapsed().as_secs_f64() / copies as f64);
        }
        rates.push((bytes as f64, bytes as f64 / best));
    }
    Ok(Bandwidth(rates))
}
