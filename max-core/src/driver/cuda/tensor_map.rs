//! Tensor maps, as the driver encodes them for TMA.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering::Relaxed;

use super::device::CudaDevice;
use super::sys::{
    CUtensorMap, CUtensorMapDataType as Element, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle as Swizzle,
};
use crate::driver::backend::TensorMap;

/// Where the driver writes a tensor map: aligned as the header of CUDA 13 declares it.
#[repr(C, align(128))]
struct Room(CUtensorMap);

/// Tensor maps that a thread keeps: each has one place, so that another one there replaces it.
const KEPT_MAPS: usize = 64;

/// A tensor map, and what the driver made of it.
type KeptMap = Option<(TensorMap, [u64; 16])>;

thread_local! {
    /// A launch that is repeated finds its maps here. What they say depends on nothing else, not even on the device, since no
    /// two of them have memory at one address.
    static MAPS: RefCell<[KeptMap; KEPT_MAPS]> = const { RefCell::new([const { None }; KEPT_MAPS]) };
}

impl CudaDevice {
    /// The driver's form of a tensor map: that of the last time, if it is kept. `None` where the driver has none or
    /// refuses this one; the first refusal is said on standard error, since threads then copy more slowly.
    pub(super) fn tensor_map_of(&self, map: &TensorMap) -> Option<[u64; 16]> {
        let mut hasher = DefaultHasher::new();
        map.hash(&mut hasher);
        let place = hasher.finish() as usize % KEPT_MAPS;
        MAPS.with_borrow_mut(|maps| match &maps[place] {
            Some((kept, encoded)) if kept == map => Some(*encoded),
            Some(_) | None => {
                let encoded = self.encode_tensor_map(map)?;
                maps[place] = Some((map.clone(), encoded));
                Some(encoded)
            }
        })
    }

    fn encode_tensor_map(&self, map: &TensorMap) -> Option<[u64; 16]> {
        let encode = self.api.cuTensorMapEncodeTiled?;
        // Unsigned integers, by their bytes: elements are only moved.
        let element = match map.element_size {
            1 => Element::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            2 => Element::CU_TENSOR_MAP_DATA_TYPE_UINT16,
            4 => Element::CU_TENSOR_MAP_DATA_TYPE_UINT32,
            _ => return None,
        };
        let swizzle = match map.swizzle {
            32 => Swizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            64 => Swizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            128 => Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            _ => return None,
        };
        let (mut room, steps) = (Room(CUtensorMap { opaque: [0; 16] }), [1u32; 5]);
        let fits = map.dims.len() <= steps.len() && map.extents.len() == map.dims.len();
        if !fits || map.strides.len() + 1 != map.dims.len() {
            return None;
        }
        let encoded = self.call("tensor map", "cuTensorMapEncodeTiled", |_| {
            // SAFETY: it writes 128 bytes, aligned to as many, and reads as many numbers as there are axes, one stride
            // less. It does not look at the tensor's memory.
            unsafe {
                encode(
                    &raw mut room.0,
                    element,
                    map.dims.len() as u32,
                    map.address as *mut std::ffi::c_void,
                    map.dims.as_ptr(),
                    map.strides.as_ptr(),
                    map.extents.as_ptr(),
                    steps.as_ptr(),
                    CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                    swizzle,
                    CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                    CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                )
            }
        });
        match encoded {
            Ok(()) => {
                self.maps.encoded.fetch_add(1, Relaxed);
                Some(room.0.opaque)
            }
            Err(error) => {
                if self.maps.refused.fetch_add(1, Relaxed) == 0 {
                    eprintln!("{}: no tensor map, so threads copy instead of TMA: {error} ({map:?})", self.name);
                }
                None
            }
        }
    }
}
