//! The functions of the driver's library, under their names.
//!
//! Each is checked against the declaration in `cudarc`, which is generated from NVIDIA's header: a wrong type here does
//! not compile.

use std::alloc::Layout;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute, CUgraph,
    CUgraphExec, CUjit_option, CUmodule, CUresult, CUstream, CUstreamCaptureMode, CUtensorMap, CUtensorMapDataType,
    CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle,
};

use crate::faults::{Code, Done, code};
use crate::graph::Graph;
use crate::module::{self, Function, Module};
use crate::state::{Needs, REFUSED, call, current, pop_current, push_current, refusal, set_current};
use crate::stream::{Event, Stream, Work};

const INVALID_VALUE: u32 = code(CUresult::CUDA_ERROR_INVALID_VALUE);
const INVALID_HANDLE: u32 = code(CUresult::CUDA_ERROR_INVALID_HANDLE);

/// Writes a result where the caller wants it.
fn put<T>(pointer: *mut T, value: T) -> Done {
    if pointer.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller of the driver passes a place for a result of this type.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Reads memory of the caller.
fn bytes_at(pointer: *const c_void, bytes: usize) -> Vec<u8> {
    // SAFETY: the caller of the driver says that as many bytes can be read.
    unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), bytes) }.to_vec()
}

fn text_at(pointer: *const c_char) -> String {
    // SAFETY: the caller of the driver passes a text that ends in 0.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) needs $needs:ident $(, $state:ident)? $body:block)+) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> Code {
            call(stringify!($name), Needs::$needs, exports!(@closure $($state)? $body))
        }
        const _: unsafe fn($($ty),*) -> CUresult = cudarc::driver::sys::$name;
    )+
        /// The address of a function of the driver's interface.
        pub fn find(name: &CStr) -> Option<NonNull<c_void>> {
            let place = match name.to_str().ok()? {
                "cuGetErrorName" => cuGetErrorName as *mut c_void,
                "cuGetErrorString" => cuGetErrorString as *mut c_void,
                $(stringify!($name) => $name as *mut c_void,)+
                _ => return None,
            };
            NonNull::new(place)
        }
    };
    (@closure $state:ident $body:block) => { |$state| $body };
    (@closure $body:block) => { |_| $body };
}

// These two take a code, which may be one that the type of codes does not have.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: Code, name: *mut *const c_char) -> Code {
    if error == REFUSED && refusal().is_some() {
        return put(name, c"CUDA_ERROR_SYSTEM_NOT_READY".as_ptr()).err().unwrap_or(0);
    }
    call("cuGetErrorName", Needs::Nothing, |_| {
        put(
            name,
            match error {
                2 => c"CUDA_ERROR_OUT_OF_MEMORY",
                34 => c"CUDA_ERROR_STUB_LIBRARY",
                218 => c"CUDA_ERROR_INVALID_PTX",
                222 => c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
                700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
                719 => c"CUDA_ERROR_LAUNCH_FAILED",
                ..=999 if error != 950 => c"CUDA_ERROR",
                _ => return Err(INVALID_VALUE),
            }
            .as_ptr(),
        )
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: Code, text: *mut *const c_char) -> Code {
    if let Some(why) = refusal().filter(|_| error == REFUSED) {
        return put(text, why.as_ptr()).err().unwrap_or(0);
    }
    call("cuGetErrorString", Needs::Nothing, |_| {
        put(
            text,
            match error {
                2 => c"out of memory",
                700 => c"an illegal memory access was encountered",
                719 => c"unspecified launch failure",
                ..=999 if error != 950 => c"an error of the fake driver",
                _ => return Err(INVALID_VALUE),
            }
            .as_ptr(),
        )
    })
}

exports! {
    fn cuInit(flags: c_uint) needs Nothing, state {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        state.initialized = true;
        if state.gpus.is_empty() { Err(code(CUresult::CUDA_ERROR_NO_DEVICE)) } else { Ok(()) }
    }
    fn cuDriverGetVersion(version: *mut c_int) needs Nothing, state {
        put(version, state.version)
    }
    fn cuDeviceGetCount(count: *mut c_int) needs Init, state {
        put(count, state.gpus.len() as c_int)
    }
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) needs Init, state {
        state.check_device(ordinal)?;
        put(device, ordinal)
    }
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) needs Init, state {
        state.check_device(device)?;
        let text = b"Simulated GPU\0";
        let count = text.len().min(len as usize);
        // SAFETY: the caller has room for `len` bytes.
        unsafe { name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), count) };
        Ok(())
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) needs Init, state {
        let device = state.check_device(device)?;
        put(bytes, state.gpus[device].total)
    }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice) needs Init, state {
        use CUdevice_attribute as A;
        let sm = state.gpus[state.check_device(device)?].sm;
        put(value, match attribute {
            A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => (sm / 10) as c_int,
            A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => (sm % 10) as c_int,
            A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => state.multiprocessors,
            A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => state.shared as c_int,
            _ => return Err(INVALID_VALUE),
        })
    }
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice) needs Init, state {
        put(can, c_int::from(state.check_device(device)? != state.check_device(peer)?))
    }
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) needs Init, state {
        let device = state.check_device(device)?;
        state.gpus[device].retained += 1;
        put(context, (device + 1) as CUcontext)
    }
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) needs Init, state {
        let device = state.check_device(device)?;
        let gpu = &mut state.gpus[device];
        gpu.retained = gpu.retained.checked_sub(1).ok_or(code(CUresult::CUDA_ERROR_INVALID_CONTEXT))?;
        Ok(())
    }
    fn cuCtxSetCurrent(context: CUcontext) needs Init, state {
        let device = if context.is_null() { None } else { Some(state.device_of(context)?) };
        set_current(device);
        Ok(())
    }
    fn cuCtxPushCurrent_v2(context: CUcontext) needs Init, state {
        let device = state.device_of(context)?;
        push_current(device);
        Ok(())
    }
    fn cuCtxPopCurrent_v2(context: *mut CUcontext) needs Init {
        let device = pop_current().ok_or(code(CUresult::CUDA_ERROR_INVALID_CONTEXT))?;
        put(context, (device + 1) as CUcontext)
    }
    fn cuCtxGetCurrent(context: *mut CUcontext) needs Init {
        put(context, current().map_or(0, |device| device + 1) as CUcontext)
    }
    fn cuCtxSynchronize() needs Context, state {
        let device = state.current()?;
        let captured = state.streams.iter().find(|(_, s)| s.device == device && s.capture.is_some()).map(|(h, _)| *h);
        if let Some(handle) = captured {
            state.not_captured(handle)?;
        }
        state.drain_all(device)
    }
    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) needs Context, state {
        let (device, peer) = (state.current()?, state.device_of(peer)?);
        match () {
            () if flags != 0 => Err(INVALID_VALUE),
            () if device == peer => Err(code(CUresult::CUDA_ERROR_INVALID_DEVICE)),
            () if state.gpus[device].peers.insert(peer) => Ok(()),
            () => Err(code(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)),
        }
    }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) needs Context, state {
        let gpu = &state.gpus[state.current()?];
        put(free, gpu.total - gpu.used)?;
        put(total, gpu.total)
    }
    fn cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytes: usize) needs Context, state {
        state.no_capture_here()?;
        let device = state.current()?;
        put(pointer, state.gpus[device].allocate(bytes)?)
    }
    fn cuMemFree_v2(pointer: CUdeviceptr) needs Context, state {
        state.no_capture_here()?;
        let device = state.current()?;
        state.gpus[device].free(pointer)
    }
    fn cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, _flags: c_uint) needs Context, state {
        state.no_capture_here()?;
        let layout = Layout::from_size_align(bytes, 4096).map_err(|_| INVALID_VALUE)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the size is not zero.
        let memory = unsafe { std::alloc::alloc(layout) };
        if memory.is_null() {
            return Err(code(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        }
        // SAFETY: it has that size. Poisoned, so that what nobody writes shows.
        unsafe { memory.write_bytes(0xcd, bytes) };
        state.pinned.insert(memory as usize, layout);
        put(pointer, memory.cast())
    }
    fn cuMemFreeHost(pointer: *mut c_void) needs Context, state {
        let layout = state.pinned.remove(&(pointer as usize)).ok_or(INVALID_VALUE)?;
        // SAFETY: allocated above with this layout, and just taken off the list.
        unsafe { std::alloc::dealloc(pointer.cast(), layout) };
        Ok(())
    }
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) needs Context, state {
        let work = match state.is_pinned(from as usize, bytes) {
            true => Work::Upload { to, from: from as usize, bytes },
            false => Work::Write { to, data: bytes_at(from, bytes) },
        };
        state.enqueue(stream as usize, work)
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) needs Context, state {
        let handle = stream as usize;
        let pinned = state.is_pinned(to as usize, bytes);
        if !pinned {
            state.not_captured(handle)?;
        }
        state.enqueue(handle, Work::Download { to: to as usize, from, bytes })?;
        let end = state.stream(handle)?.position();
        if pinned { Ok(()) } else { state.drain(handle, end) }
    }
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) needs Context, state {
        let device = state.current()?;
        state.enqueue(stream as usize, Work::Copy { to: (device, to), from: (device, from), bytes })
    }
    fn cuMemcpyPeerAsync(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, stream: CUstream,
    ) needs Context, state {
        let device = |context: CUcontext| (context as usize).checked_sub(1).ok_or(INVALID_VALUE);
        let work = Work::Copy { to: (device(to_context)?, to), from: (device(from_context)?, from), bytes };
        state.enqueue(stream as usize, work)
    }
    fn cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, bytes: usize, stream: CUstream) needs Context, state {
        state.enqueue(stream as usize, Work::Fill { to, value, bytes })
    }
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) needs Context, state {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let (handle, device) = (state.handle(), state.current()?);
        state.streams.insert(handle, Stream::new(device));
        put(stream, handle as CUstream)
    }
    fn cuStreamDestroy_v2(stream: CUstream) needs Context, state {
        // The driver finishes what is queued.
        let handle = stream as usize;
        let end = state.stream(handle)?.position();
        state.drain(handle, end)?;
        state.streams.remove(&handle);
        Ok(())
    }
    fn cuStreamSynchronize(stream: CUstream) needs Context, state {
        let handle = stream as usize;
        state.not_captured(handle)?;
        let end = state.stream(handle)?.position();
        state.drain(handle, end)
    }
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, _flags: c_uint) needs Context, state {
        let event = state.events.get(&(event as usize)).ok_or(INVALID_HANDLE)?;
        match event.mark {
            Some((other, position)) => {
                state.enqueue(stream as usize, Work::Wait { stream: other, position })
            }
            None => Ok(()),
        }
    }
    fn cuEventCreate(event: *mut CUevent, _flags: c_uint) needs Context, state {
        let (handle, device) = (state.handle(), state.current()?);
        state.events.insert(handle, Event { device, mark: None });
        put(event, handle as CUevent)
    }
    fn cuEventDestroy_v2(event: CUevent) needs Context, state {
        state.events.remove(&(event as usize)).map(|_| ()).ok_or(INVALID_HANDLE)
    }
    fn cuEventRecord(event: CUevent, stream: CUstream) needs Context, state {
        let handle = stream as usize;
        state.not_captured(handle)?;
        let stream = state.stream(handle)?;
        let (position, device) = (stream.position(), stream.device);
        let event = state.events.get_mut(&(event as usize)).ok_or(INVALID_HANDLE)?;
        if event.device != device {
            return Err(code(CUresult::CUDA_ERROR_INVALID_CONTEXT));
        }
        event.mark = Some((handle, position));
        Ok(())
    }
    fn cuEventSynchronize(event: CUevent) needs Context, state {
        match state.events.get(&(event as usize)).ok_or(INVALID_HANDLE)?.mark {
            Some((stream, position)) => state.drain(stream, position),
            None => Ok(()),
        }
    }
    fn cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option,
        values: *mut *mut c_void,
    ) needs Context, state {
        state.no_capture_here()?;
        let device = state.current()?;
        let (version, sm) = (state.version, state.gpus[device].sm);
        let asked = state.faults.enter("ptx").map_err(|code| {
            (code, "ptxas application ptx input, line 6; error   : a mistake that was asked for".to_owned())
        });
        let text = state.faults.without_barriers(&text_at(image.cast()));
        let given: Vec<(CUjit_option, *mut c_void)> = (0..count as usize)
            // SAFETY: the caller passes as many options and values.
            .map(|i| unsafe { (*options.add(i), *values.add(i)) })
            .collect();
        let value = |wanted: CUjit_option| given.iter().find(|(option, _)| *option == wanted).map(|(_, value)| *value);
        let say = |buffer: CUjit_option, size: CUjit_option, text: &str| {
            let (Some(buffer), Some(size)) = (value(buffer), value(size)) else { return };
            let (buffer, size) = (buffer.cast::<u8>(), size as usize);
            if !buffer.is_null() && size > 0 {
                let length = text.len().min(size - 1);
                // SAFETY: the caller's buffer has that size.
                unsafe {
                    buffer.copy_from_nonoverlapping(text.as_ptr(), length);
                    buffer.add(length).write(0);
                }
            }
        };
        match asked.and_then(|()| module::parse(&text, version, sm)) {
            Ok(parsed) => {
                if let Some(folder) = &state.ptx {
                    module::keep(folder, &text).map_err(|_| code(CUresult::CUDA_ERROR_FILE_NOT_FOUND))?;
                }
                if value(CUjit_option::CU_JIT_LOG_VERBOSE).is_some_and(|value| !value.is_null()) {
                    let names: Vec<String> = parsed.entries().map(|entry| entry.name().to_string()).collect();
                    let info = format!("ptxas info    : Compiling entry function '{}' for 'sm_{sm}'", names.join(", "));
                    say(CUjit_option::CU_JIT_INFO_LOG_BUFFER, CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, &info);
                }
                let handle = state.handle();
                state.modules.insert(handle, Arc::new(Module { device, parsed }));
                put(module, handle as CUmodule)
            }
            Err((code, log)) => {
                say(CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, &log);
                Err(code)
            }
        }
    }
    fn cuModuleUnload(module: CUmodule) needs Context, state {
        state.modules.remove(&(module as usize)).map(|_| ()).ok_or(INVALID_HANDLE)
    }
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) needs Context, state {
        let module = state.modules.get(&(module as usize)).ok_or(INVALID_HANDLE)?.clone();
        let name = text_at(name);
        let entry = module.parsed.entries().find(|entry| entry.name() == name);
        let entry = entry.ok_or(code(CUresult::CUDA_ERROR_NOT_FOUND))?;
        let (params, static_shared) = (entry.params(), entry.static_shared());
        let found = Function {
            params: params.iter().map(|param| param.bytes as usize).collect(),
            static_shared,
            max_dynamic_shared: (48 << 10) - static_shared,
            entry: name,
            module: module.clone(),
        };
        let handle = state.handle();
        state.functions.insert(handle, found);
        put(function, handle as CUfunction)
    }
    fn cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction) needs Context, state {
        let function = state.functions.get(&(function as usize)).ok_or(INVALID_HANDLE)?;
        match attribute {
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => put(value, function.static_shared as c_int),
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => put(value, 1024),
            _ => Err(INVALID_VALUE),
        }
    }
    fn cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int) needs Context, state {
        let (most, function) = (state.shared, state.functions.get_mut(&(function as usize)).ok_or(INVALID_HANDLE)?);
        match attribute {
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                if value as u64 + function.static_shared <= most =>
            {
                function.max_dynamic_shared = value as u64;
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        }
    }
    fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) needs Context, state {
        let function = state.functions.get(&(function as usize)).ok_or(INVALID_HANDLE)?.clone();
        let (grid, block) = ([grid_x.min(state.blocks), grid_y, grid_z], [block_x, block_y, block_z]);
        let threads = block.iter().map(|n| u64::from(*n)).product::<u64>();
        let in_limits = !grid.contains(&0) && grid_x <= i32::MAX as u32 && grid_y <= 65535 && grid_z <= 65535;
        let fits = (1..=1024).contains(&threads) && u64::from(shared) <= function.max_dynamic_shared;
        if !(in_limits && fits && extra.is_null()) {
            return Err(INVALID_VALUE);
        }
        if state.stream(stream as usize)?.device != function.module.device {
            return Err(INVALID_HANDLE);
        }
        // As many parameters as the kernel declares, whatever the caller passed.
        let args = function.params.iter().enumerate().map(|(i, bytes)| {
            // SAFETY: the caller passes a pointer to each parameter.
            bytes_at(unsafe { *params.add(i) }, *bytes)
        });
        let args = args.collect();
        state.enqueue(stream as usize, Work::Kernel { function, grid, block, shared, args })
    }
    fn cuTensorMapEncodeTiled(
        map: *mut CUtensorMap, dtype: CUtensorMapDataType, rank: c_uint, address: *mut c_void, dims: *const u64,
        strides: *const u64, extents: *const c_uint, steps: *const c_uint, interleave: CUtensorMapInterleave,
        swizzle: CUtensorMapSwizzle, _promotion: CUtensorMapL2promotion, fill: CUtensorMapFloatOOBfill,
    ) needs Context {
        let element = match dtype as u32 {
            0 => 1,
            1 | 6 | 9 => 2,
            2 | 3 | 7 => 4,
            _ => return Err(INVALID_VALUE),
        };
        // CUDA 13's header aligns the type to 128 bytes.
        if map.is_null() || !(map as usize).is_multiple_of(128) || !(1..=5).contains(&rank) || interleave as u32 != 0 {
            return Err(INVALID_VALUE);
        }
        let of_axes = |pointer: *const u64, count: usize| -> Vec<u64> {
            bytes_at(pointer.cast(), 8 * count).chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default())).collect()
        };
        let of_box = |pointer: *const c_uint| -> Vec<u32> {
            bytes_at(pointer.cast(), 4 * rank as usize).chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap_or_default())).collect()
        };
        if of_box(steps).iter().any(|&step| step != 1) || fill as u32 != 0 {
            return Err(INVALID_VALUE);
        }
        let made = ptx_sim::TensorMap {
            address: ptx_sim::DevicePtr(address as u64),
            element,
            dims: of_axes(dims, rank as usize),
            strides: of_axes(strides, rank as usize - 1),
            extents: of_box(extents),
            swizzle: [0, 32, 64, 128][swizzle as usize & 3],
        };
        let bytes = made.encode().map_err(|_| INVALID_VALUE)?;
        put(map.cast(), bytes)
    }
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) needs Context, state {
        let by = match mode {
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => Some(std::thread::current().id()),
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL => None,
            _ => return Err(INVALID_VALUE),
        };
        let stream = state.stream(stream as usize)?;
        if stream.capture.is_some() {
            return Err(code(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
        }
        (stream.capture, stream.captured_by, stream.invalidated) = (Some(Vec::new()), by, false);
        Ok(())
    }
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) needs Context, state {
        let stream = state.stream(stream as usize)?;
        let work = stream.capture.take().ok_or(code(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED))?;
        if stream.invalidated {
            return Err(code(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        }
        let device = stream.device;
        let handle = state.handle();
        state.graphs.insert(handle, Graph { device, work });
        put(graph, handle as CUgraph)
    }
    fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, _flags: c_ulonglong) needs Context, state {
        let graph = state.graphs.get(&(graph as usize)).ok_or(INVALID_HANDLE)?.clone();
        let handle = state.handle();
        state.executables.insert(handle, graph);
        put(executable, handle as CUgraphExec)
    }
    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) needs Context, state {
        let graph = state.executables.get(&(executable as usize)).ok_or(INVALID_HANDLE)?.clone();
        if graph.device != state.current()? {
            return Err(code(CUresult::CUDA_ERROR_INVALID_CONTEXT));
        }
        graph.work.into_iter().try_for_each(|work| state.enqueue(stream as usize, work))
    }
    fn cuGraphDestroy(graph: CUgraph) needs Context, state {
        state.graphs.remove(&(graph as usize)).map(|_| ()).ok_or(INVALID_HANDLE)
    }
    fn cuGraphExecDestroy(executable: CUgraphExec) needs Context, state {
        state.executables.remove(&(executable as usize)).map(|_| ()).ok_or(INVALID_HANDLE)
    }
}
