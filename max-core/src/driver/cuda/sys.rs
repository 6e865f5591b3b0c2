//! The driver's types and constants, under NVIDIA's names.
//!
//! The types are declared here once more, because cudarc as a dependency of the library would choose for every user how
//! CUDA is linked and which version's types there are (its features exclude each other). Under `cfg(test)` the names
//! stand for cudarc's, which are generated from NVIDIA's header: then the compiler compares the table of
//! [`api`](super::api) with the header's prototypes, and [`own`] with its types and constants.

#![allow(non_camel_case_types, reason = "the names are the driver's")]

#[cfg(test)]
pub(super) use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUevent_flags, CUfunction, CUfunction_attribute,
    CUgraph, CUgraphExec, CUjit_option, CUmodule, CUstream, CUstream_flags, CUstreamCaptureMode, CUtensorMap,
    CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle,
};
#[cfg(not(test))]
pub(super) use own::*;

/// Declares handles, which are only passed back, and enumerations, which are only passed in: a value that the driver
/// returns is an integer, since a newer one returns values that no list of today has.
macro_rules! declare {
    (
        handles { $($handle:ident: $of:ident;)+ }
        enums { $($name:ident { $($variant:ident = $value:literal),+ $(,)? })+ }
    ) => {
        #[cfg_attr(test, allow(dead_code, reason = "compared with cudarc's alone"))]
        pub(super) mod own {
            use std::ffi::c_int;

            /// The ordinal of a device.
            pub type CUdevice = c_int;
            /// An address in the memory of a device.
            pub type CUdeviceptr = u64;
            /// A tensor map. CUDA 13's header aligns it to 128 bytes, and those before to 64.
            #[repr(C, align(64))]
            #[derive(Clone, Copy)]
            pub struct CUtensorMap {
                pub opaque: [u64; 16],
            }
            $(
                #[repr(C)]
                pub struct $of {
                    _unused: [u8; 0],
                }
                pub type $handle = *mut $of;
            )+
            $(
                #[repr(u32)]
                #[derive(Clone, Copy, Debug, PartialEq, Eq)]
                pub enum $name {
                    $($variant = $value,)+
                }
            )+
        }

        /// What is declared here is what NVIDIA's header declares.
        #[cfg(test)]
        const _: () = {
            use std::mem::{align_of, size_of};
            use cudarc::driver::sys;
            const fn same<A, B>() {
                assert!(size_of::<A>() == size_of::<B>() && align_of::<A>() == align_of::<B>());
            }
            same::<own::CUdevice, sys::CUdevice>();
            same::<own::CUdeviceptr, sys::CUdeviceptr>();
            same::<own::CUtensorMap, sys::CUtensorMap>();
            $(same::<own::$handle, sys::$handle>();)+
            $(
                same::<own::$name, sys::$name>();
                $(assert!(own::$name::$variant as u32 == sys::$name::$variant as u32);)+
            )+
        };
    };
}

declare! {
    handles {
        CUcontext: CUctx_st;
        CUstream: CUstream_st;
        CUevent: CUevent_st;
        CUmodule: CUmod_st;
        CUfunction: CUfunc_st;
        CUgraph: CUgraph_st;
        CUgraphExec: CUgraphExec_st;
    }
    enums {
        CUdevice_attribute {
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
        }
        CUfunction_attribute {
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
        }
        CUjit_option {
            CU_JIT_INFO_LOG_BUFFER = 3,
            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4,
            CU_JIT_ERROR_LOG_BUFFER = 5,
            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
            CU_JIT_LOG_VERBOSE = 12,
        }
        CUstream_flags { CU_STREAM_NON_BLOCKING = 1 }
        CUevent_flags { CU_EVENT_DISABLE_TIMING = 2 }
        CUstreamCaptureMode { CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1 }
        CUtensorMapDataType {
            CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
            CU_TENSOR_MAP_DATA_TYPE_UINT16 = 1,
            CU_TENSOR_MAP_DATA_TYPE_UINT32 = 2,
        }
        CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 }
        CUtensorMapSwizzle {
            CU_TENSOR_MAP_SWIZZLE_32B = 1,
            CU_TENSOR_MAP_SWIZZLE_64B = 2,
            CU_TENSOR_MAP_SWIZZLE_128B = 3,
        }
        CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2 }
        CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 }
    }
}
