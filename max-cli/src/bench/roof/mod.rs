//! The roof of this machine: how fast its memory is, by the bytes that are worked on, and how fast it multiplies and
//! adds. Both are measured with as many threads as the works have.

mod arithmetic;
mod device;
mod memory;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use max::driver::{Device, DriverError};
use max::dtype::DType;

/// The least that a work needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Arithmetic operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Whether next to nothing of that is written.
    pub reads_only: bool,
    /// What is multiplied: half types may have instructions of their own.
    pub dtype: DType,
}

/// What this machine can do, as far as it was measured.
pub struct Roof {
    /// Copying.
    pub copy: Bandwidth,
    /// Reading, if that is not as copying.
    pub read: Option<Bandwidth>,
    /// Fused multiply-adds of `f32`, in operations (two each) a second.
    pub f32_flops: Option<f64>,
    /// Products of `bf16` added in `f32`, in operations a second, where the machine has instructions for them.
    pub bf16_flops: Option<f64>,
}

/// Bytes a second that go through memory, by the number of bytes that are worked on.
pub struct Bandwidth(pub Vec<(f64, f64)>);

impl Roof {
    /// Measures this machine; takes about a second.
    pub fn measure(threads: usize) -> Roof {
        let f32_flops = arithmetic::f32_peak(threads);
        Roof {
            copy: memory::copy(threads),
            read: Some(memory::read(threads)),
            f32_flops: Some(f32_flops),
            bf16_flops: arithmetic::bf16_peak(threads).map(|flops| flops.max(f32_flops)),
        }
    }

    /// Measures an accelerator: its memory.
    ///
    /// # Errors
    /// When it has not the memory, or fails.
    pub fn of(device: &Device) -> Result<Roof, DriverError> {
        Ok(Roof { copy: device::copy(device)?, read: None, f32_flops: None, bf16_flops: None })
    }

    /// The time that a work takes at least, in nanoseconds.
    pub fn floor_ns(&self, cost: Cost) -> f64 {
        let bandwidth = self.read.as_ref().filter(|_| cost.reads_only).unwrap_or(&self.copy);
        let f32_flops = self.f32_flops.unwrap_or(f64::INFINITY);
        let peak = match self.bf16_flops {
            Some(bf16) if cost.dtype == DType::BF16 => bf16.max(f32_flops),
            // The same instructions take twice as many bytes.
            Some(bf16) if cost.dtype == DType::I8 => 2.0 * bf16.max(f32_flops),
            // Vectors of half as many.
            _ if cost.dtype == DType::F64 => f32_flops / 2.0,
            _ => f32_flops,
        };
        let seconds = (cost.bytes as f64 / bandwidth.at(cost.bytes as f64)).max(cost.flops as f64 / peak);
        seconds * 1e9
    }
}

impl Bandwidth {
    /// The bandwidth for that many bytes, between measured points in proportion to their logarithm.
    pub fn at(&self, bytes: f64) -> f64 {
        let above = self.0.iter().position(|(size, _)| *size >= bytes);
        match above {
            None => self.0.last().map_or(f64::INFINITY, |(_, rate)| *rate),
            Some(0) => self.0[0].1,
            Some(i) => {
                let ((a, slow), (b, fast)) = (self.0[i - 1], self.0[i]);
                let part = (bytes / a).ln() / (b / a).ln();
                slow + part * (fast - slow)
            }
        }
    }
}

/// Seconds that a piece of work takes on every thread at once, the best of a few tries: `prepare` is called once on each
/// thread with its number, and gives what is timed.
fn best_seconds<W: FnMut()>(threads: usize, tries: usize, prepare: impl Fn(usize) -> W + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let on_thread = |index: usize| {
        let mut work = prepare(index);
        let mut best = Duration::MAX;
        for _ in 0..tries {
            barrier.wait();
            let start = Instant::now();
            work();
            // All have ended when the last one has.
            barrier.wait();
            best = best.min(start.elapsed());
        }
        best.as_secs_f64()
    };
    std::thread::scope(|scope| {
        for index in 1..threads {
            scope.spawn(move || on_thread(index));
        }
        on_thread(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roof(bf16_flops: Option<f64>) -> Roof {
        let bandwidth = |rate: f64| Bandwidth(vec![(1e4, 4.0 * rate), (1e6, 2.0 * rate), (1e8, rate)]);
        Roof { copy: bandwidth(1e10), read: Some(bandwidth(2e10)), f32_flops: Some(1e11), bf16_flops }
    }

    #[test]
    fn bandwidth_lies_between_its_points() {
        let copy = roof(None).copy;
        assert_eq!((copy.at(0.0), copy.at(1e4), copy.at(1e8), copy.at(1e9)), (4e10, 4e10, 1e10, 1e10));
        assert!((copy.at(1e5) - 3e10).abs() < 1.0, "{}", copy.at(1e5));
    }

    #[test]
    fn the_floor_is_the_larger_of_memory_and_arithmetic() {
        let cost = Cost { flops: 0, bytes: 100_000_000, reads_only: false, dtype: DType::F32 };
        assert_eq!(roof(None).floor_ns(cost), 1e7);
        assert_eq!(roof(None).floor_ns(Cost { reads_only: true, ..cost }), 5e6);
        let product = Cost { flops: 10_000_000_000, ..cost };
        assert_eq!(roof(Some(1e12)).floor_ns(product), 1e8);
        let halves = Cost { dtype: DType::BF16, ..product };
        assert_eq!(roof(Some(1e12)).floor_ns(halves), 1e7);
        assert_eq!(roof(None).floor_ns(halves), 1e8);
        assert_eq!(roof(None).floor_ns(Cost { dtype: DType::F64, ..product }), 2e8);
        let memory_alone = Roof { read: None, f32_flops: None, ..roof(None) };
        assert_eq!(memory_alone.floor_ns(Cost { reads_only: true, ..product }), 1e7);
    }

    #[test]
    fn this_machine_has_a_roof() {
        let peak = arithmetic::f32_peak(2);
        assert!(peak > 1e8, "{peak}");
        let seconds = best_seconds(2, 2, |_| || std::thread::sleep(Duration::from_millis(2)));
        assert!((0.002..0.2).contains(&seconds), "{seconds}");
    }
}
