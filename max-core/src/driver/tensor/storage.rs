//! [`Storage`]: the memory that tensors share, and who owns it.

use crate::driver::allocator::Block;
use crate::driver::backend::Gpu;
use crate::driver::{Device, DeviceStream, DriverError};
use crate::dtype::Element;
use memmap2::{Mmap, MmapMut};
use std::any::{Any, TypeId};
use std::mem::ManuallyDrop;
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;

/// A stretch of memory on one device. It is written only through a `&mut Tensor` whose storage nobody else shares, and read
/// through `&Tensor`: so Rust's borrow rules on the handles hold for the memory.
#[derive(Debug)]
pub(super) struct Storage {
    memory: NonNull<u8>,
    owner: Owner,
    device: Device,
    /// The stream that the memory is used on, if it is not the device's default one.
    stream: Option<DeviceStream>,
}

#[derive(Debug)]
enum Owner {
    Block(Block),
    Vec(RawVec),
    Map(#[allow(dead_code, reason = "held to be dropped")] Mmap),
    MapMut(#[allow(dead_code, reason = "held to be dropped")] MmapMut),
    Static,
    Pinned(#[allow(dead_code, reason = "held to be dropped")] Pinned),
    /// Memory of somebody else's, which may be written if `writable`.
    Foreign {
        #[allow(dead_code, reason = "held to be dropped")]
        owner: AssertUnwindSafe<Box<dyn Any + Send + Sync>>,
        writable: bool,
    },
}

/// Page-locked memory of the host, from the API of an accelerator.
#[derive(Debug)]
struct Pinned {
    memory: NonNull<u8>,
    device: Device,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(gpu) = self.device.gpu() {
            // SAFETY: allocated by `Storage::pinned` and given back once; copies from and to it are waited for.
            unsafe { gpu.free_pinned(self.memory) };
        }
    }
}

/// A vector taken apart, so that no `Vec` claims the memory while it is shared.
#[derive(Debug)]
struct RawVec {
    element: TypeId,
    length: usize,
    capacity: usize,
    drop: unsafe fn(*mut u8, usize),
}

// SAFETY: the memory is owned by the storage, or static; access goes through the borrow rules of the handles.
unsafe impl Send for Storage {}
// SAFETY: as above.
unsafe impl Sync for Storage {}

/// # Safety
///
/// `memory` and `capacity` are of a `Vec<T>` that was taken apart.
unsafe fn drop_vec<T: Element>(memory: *mut u8, capacity: usize) {
    // SAFETY: by contract; elements need no drop, so the length may be 0.
    drop(unsafe { Vec::from_raw_parts(memory.cast::<T>(), 0, capacity) });
}

impl Storage {
    /// `bytes` bytes with unspecified contents.
    pub fn allocate(bytes: usize, device: &Device) -> Result<Storage, DriverError> {
        Ok(Storage::from_block(device.allocate(bytes)?, device))
    }

    /// Page-locked memory of the host, `bytes` bytes with unspecified contents, for transfers from and to `device`; plain
    /// memory if that is the host.
    pub fn pinned(bytes: usize, device: &Device) -> Result<Storage, DriverError> {
        let host = Device::cpu();
        let Some(gpu) = device.gpu().filter(|_| bytes > 0) else { return Storage::allocate(bytes, &host) };
        let out_of_memory =
            || DriverError::OutOfMemory { device: (&host).into(), requested: bytes, in_use: host.stats().bytes_in_use };
        let memory = Gpu::allocate_pinned(gpu, bytes)?.ok_or_else(out_of_memory)?;
        let owner = Owner::Pinned(Pinned { memory, device: *device });
        Ok(Storage { memory, owner, device: host, stream: None })
    }

    /// Whether the memory was zero when it was allocated.
    pub fn began_zero(&self) -> bool {
        matches!(&self.owner, Owner::Block(block) if block.began_zero())
    }

    pub fn is_pinned(&self) -> bool {
        matches!(self.owner, Owner::Pinned(_))
    }

    /// The stream that the memory is used on.
    pub fn stream(&self) -> DeviceStream {
        self.stream.clone().unwrap_or_else(|| self.device.default_stream())
    }

    /// Binds new memory to a stream of its device: that waits until earlier users of the memory are done.
    pub fn bind(&mut self, stream: &DeviceStream) -> Result<(), DriverError> {
        if !stream.is_default() {
            stream.wait_for(&self.device.default_stream())?;
            self.stream = Some(stream.clone());
        }
        Ok(())
    }

    pub fn from_block(block: Block, device: &Device) -> Storage {
        let memory = NonNull::new(block.as_ptr()).unwrap_or(NonNull::dangling());
        Storage { memory, owner: Owner::Block(block), device: *device, stream: None }
    }

    /// Takes over the memory of a vector.
    pub fn from_vec<T: Element>(data: Vec<T>) -> Storage {
        let mut data = ManuallyDrop::new(data);
        let memory = NonNull::new(data.as_mut_ptr()).unwrap_or(NonNull::dangling()).cast();
        let owner = Owner::Vec(RawVec {
            element: TypeId::of::<T>(),
            length: data.len(),
            capacity: data.capacity(),
            drop: drop_vec::<T>,
        });
        Storage { memory, owner, device: Device::cpu(), stream: None }
    }

    pub fn from_static<T: Element>(data: &'static [T]) -> Storage {
        Storage { memory: NonNull::from(data).cast(), owner: Owner::Static, device: Device::cpu(), stream: None }
    }

    pub fn from_map(map: Mmap) -> Storage {
        let memory = NonNull::new(map.as_ptr().cast_mut()).unwrap_or(NonNull::dangling());
        Storage { memory, owner: Owner::Map(map), device: Device::cpu(), stream: None }
    }

    pub fn from_map_mut(mut map: MmapMut) -> Storage {
        let memory = NonNull::new(map.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Storage { memory, owner: Owner::MapMut(map), device: Device::cpu(), stream: None }
    }

    /// Memory that lives as long as `owner`.
    pub fn from_foreign(
        memory: NonNull<u8>,
        device: &Device,
        owner: Box<dyn Any + Send + Sync>,
        writable: bool,
    ) -> Storage {
        Storage {
            memory,
            owner: Owner::Foreign { owner: AssertUnwindSafe(owner), writable },
            device: *device,
            stream: None,
        }
    }

    /// The first byte. Writing through it is allowed if [`Storage::is_writable`] and nobody else uses the storage.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Gives the memory of these bytes back to the system, where it is that of a file that cannot be written: who reads them
    /// again, reads the file again. Elsewhere, nothing happens.
    pub fn release_pages(&self, offset: usize, bytes: usize) {
        // Larger than any page, so that no byte beside them is concerned.
        const PAGE: usize = 1 << 16;
        #[cfg(unix)]
        if let Owner::Map(map) = &self.owner {
            let first = (map.as_ptr() as usize + offset).next_multiple_of(PAGE) - map.as_ptr() as usize;
            let last = offset + bytes - (map.as_ptr() as usize + offset + bytes) % PAGE;
            if first < last {
                // SAFETY: the map is of a file, read-only and shared, so that its pages come back as they were. That it does not
                // work is no reason to fail.
                let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, first, last - first) };
            }
        }
        #[cfg(not(unix))]
        let _ = (offset, bytes, PAGE);
    }

    /// Whether it is a file's, whose pages need not stay in memory.
    pub fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Map(_))
    }

    pub fn is_writable(&self) -> bool {
        !matches!(self.owner, Owner::Static | Owner::Map(_) | Owner::Foreign { writable: false, .. })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The vector that this storage was made from, if it has `length` elements of type `T`; else the storage back.
    pub fn into_vec<T: Element>(self, length: usize) -> Result<Vec<T>, Storage> {
        match &self.owner {
            Owner::Vec(vec) if vec.element == TypeId::of::<T>() && vec.length == length => {
                let capacity = vec.capacity;
                let storage = ManuallyDrop::new(self);
                // SAFETY: the parts of a `Vec<T>` that was taken apart; the storage is forgotten, so it does not free them.
                // (Its other fields, the device and plain numbers, need no drop; the host's memory has no stream.)
                Ok(unsafe { Vec::from_raw_parts(storage.memory.as_ptr().cast::<T>(), length, capacity) })
            }
            _ => Err(self),
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            // Freed memory is reused in the order of the default stream. A failure means that the device is lost.
            let _ = self.device.default_stream().wait_for(stream);
        }
        if let Owner::Vec(vec) = &self.owner {
            // SAFETY: the parts of the vector that `from_vec` took apart.
            unsafe { (vec.drop)(self.memory.as_ptr(), vec.capacity) }
        }
    }
}
