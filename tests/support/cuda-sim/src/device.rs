//! A device and its memory.

use std::collections::BTreeSet;

use cudarc::driver::sys::CUresult;
use ptx_sim::{DevicePtr, Memory};

use crate::faults::{Done, code};

/// Addresses that a device leaves to those before it, so that no two devices share one.
const ADDRESSES: usize = 20_000;

/// A device.
pub struct Gpu {
    /// Its compute capability, 90 for 9.0.
    pub sm: u32,
    pub memory: Memory,
    pub total: usize,
    pub used: usize,
    /// How often its primary context was retained.
    pub retained: usize,
    /// The devices whose memory its kernels may use.
    pub peers: BTreeSet<usize>,
}

impl Gpu {
    pub fn new(index: usize, sm: u32, total: usize) -> Gpu {
        let mut memory = Memory::new();
        (0..index * ADDRESSES).for_each(|_| _ = memory.alloc(0));
        Gpu { sm, memory, total, used: 0, retained: 0, peers: BTreeSet::new() }
    }

    pub fn allocate(&mut self, bytes: usize) -> Done<u64> {
        if bytes == 0 {
            return Err(code(CUresult::CUDA_ERROR_INVALID_VALUE));
        }
        if bytes > self.total - self.used {
            return Err(code(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        }
        self.used += bytes;
        Ok(self.memory.alloc(bytes).0)
    }

    pub fn free(&mut self, pointer: u64) -> Done {
        let size = self.memory.live(DevicePtr(pointer)).ok_or(code(CUresult::CUDA_ERROR_INVALID_VALUE))?;
        self.used -= size;
        self.memory.free(DevicePtr(pointer));
        Ok(())
    }
}
