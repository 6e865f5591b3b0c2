//! [`MapCounts`]: how many tensor maps the driver made and refused.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::driver::TensorMapStats;

/// What became of tensor maps.
#[derive(Debug, Default)]
pub(super) struct MapCounts {
    pub encoded: AtomicU64,
    pub refused: AtomicU64,
    mapped: AtomicU64,
    unmapped: AtomicU64,
}

impl MapCounts {
    /// A launch of a kernel that takes tensor maps.
    pub fn note_launch(&self, is_mapped: bool) {
        if is_mapped { &self.mapped } else { &self.unmapped }.fetch_add(1, Relaxed);
    }

    pub fn stats(&self) -> TensorMapStats {
        let of = |count: &AtomicU64| count.load(Relaxed);
        let (encoded, refused) = (of(&self.encoded), of(&self.refused));
        TensorMapStats { encoded, refused, mapped_launches: of(&self.mapped), unmapped_launches: of(&self.unmapped) }
    }
}
