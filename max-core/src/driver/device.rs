//! Devices and how they are found: [`Device`], [`DeviceStream`], [`DeviceSpec`].

use super::allocator::{Allocator, AllocatorStats, Block};
use super::backend::{self, Backend, Gpu, StreamHandle};
#[cfg(feature = "cuda")]
use super::cuda;
use super::host::Host;
use super::{DeviceKind, DeviceRef, DriverError, TensorMapStats};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What stands for GPUs in a program without them.
#[cfg(not(feature = "cuda"))]
mod cuda {
    use super::Gpu;
    use crate::driver::CudaError;

    pub fn count() -> Result<u32, CudaError> {
        Err(CudaError::NotBuilt)
    }

    pub fn open(_: u32) -> Result<&'static dyn Gpu, CudaError> {
        Err(CudaError::NotBuilt)
    }
}

/// Which device to load: the argument of [`load_devices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceSpec {
    /// The number of the device among those of its kind, from 0.
    pub id: u32,
    /// The kind of the device.
    pub device_type: DeviceKind,
}

impl DeviceSpec {
    /// The host.
    pub const fn cpu() -> DeviceSpec {
        DeviceSpec { id: 0, device_type: DeviceKind::Cpu }
    }

    /// Accelerator `id`.
    pub const fn accelerator(id: u32) -> DeviceSpec {
        DeviceSpec { id, device_type: DeviceKind::Gpu }
    }

    /// Finds the device and initializes it.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoAccelerator`] or [`DriverError::NoSuchDevice`] if this machine does not have it.
    pub fn load(self) -> Result<Device, DriverError> {
        match self.device_type {
            DeviceKind::Cpu if self.id == 0 => Ok(Device::cpu()),
            DeviceKind::Cpu => Err(DriverError::NoSuchDevice { device: self.into() }),
            DeviceKind::Gpu => Device::accelerator(self.id),
        }
    }
}

impl From<DeviceSpec> for DeviceRef {
    fn from(spec: DeviceSpec) -> DeviceRef {
        DeviceRef { kind: spec.device_type, id: spec.id }
    }
}

impl From<DeviceRef> for DeviceSpec {
    fn from(device: DeviceRef) -> DeviceSpec {
        DeviceSpec { id: device.id, device_type: device.kind }
    }
}

impl From<&Device> for DeviceRef {
    fn from(device: &Device) -> DeviceRef {
        device.0.name
    }
}

struct DeviceInner {
    name: DeviceRef,
    backend: &'static dyn Backend,
    allocator: Allocator,
}

impl DeviceInner {
    fn new(name: DeviceRef, backend: &'static dyn Backend) -> DeviceInner {
        let poison = std::env::var_os("MAX_POISON").is_some_and(|value| !value.is_empty() && value != "0");
        DeviceInner { name, backend, allocator: Allocator::new(backend, name, poison) }
    }
}

/// A device: the host or an accelerator.
///
/// A device lives as long as the process, and this handle to it is a copyable pointer. Two handles are equal if they are
/// to the same device.
///
/// ```
/// # extern crate max_core as max;
/// use max::driver::Device;
///
/// let device = Device::cpu();
/// assert_eq!((device.label(), device.api(), device.id()), ("cpu", "cpu", 0));
/// assert!(device.is_host());
/// ```
#[derive(Clone, Copy)]
pub struct Device(&'static DeviceInner);

impl Device {
    /// The host.
    pub fn cpu() -> Device {
        static CPU: OnceLock<DeviceInner> = OnceLock::new();
        Device(CPU.get_or_init(|| DeviceInner::new(DeviceRef::CPU, &Host)))
    }

    /// Accelerator `id`, from 0. The first call for each makes it ready, which takes a moment.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// use max::driver::{Device, accelerator_count};
    ///
    /// let device = if accelerator_count() == 0 { Device::cpu() } else { Device::accelerator(0)? };
    /// println!("Using {device} device");
    /// # Ok::<(), max::driver::DriverError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DriverError::NoAccelerator`] if there is none of that number, with the reason if there is no driver;
    /// [`DriverError::Cuda`] if the driver cannot use it.
    pub fn accelerator(id: u32) -> Result<Device, DriverError> {
        static OPEN: Mutex<Vec<(u32, &'static DeviceInner)>> = Mutex::new(Vec::new());
        let count = cuda::count();
        if count.as_ref().map_or(0, |count| *count) <= id {
            return Err(DriverError::NoAccelerator {
                id,
                count: accelerator_count(),
                source: count.err().map(Box::new),
            });
        }
        // Nothing that could panic is done under the lock but growing the list.
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, device)) = open.iter().find(|(known, _)| *known == id) {
            return Ok(Device(device));
        }
        let name = DeviceRef::gpu(id);
        let gpu = cuda::open(id).map_err(|source| DriverError::Cuda {
            op: "accelerator",
            device: name,
            source: source.into(),
        })?;
        let device: &'static DeviceInner = Box::leak(Box::new(DeviceInner::new(name, gpu)));
        open.push((id, device));
        Ok(Device(device))
    }

    /// `cpu` for the host, `gpu` for accelerators.
    pub fn label(&self) -> &'static str {
        if self.is_host() { "cpu" } else { "gpu" }
    }

    /// The API that programs the device: `cpu`, `cuda` or `hip`.
    pub fn api(&self) -> &'static str {
        self.0.backend.api()
    }

    /// The number of the device among those of its kind, from 0.
    pub fn id(&self) -> u32 {
        self.0.name.id
    }

    /// Whether this is the host.
    pub fn is_host(&self) -> bool {
        self.0.name.is_cpu()
    }

    /// Whether kernels can run on this device.
    pub fn is_compatible(&self) -> bool {
        true
    }

    /// The architecture of an accelerator, such as `sm_90`.
    ///
    /// # Errors
    ///
    /// [`DriverError::NotAnAccelerator`] for the host.
    pub fn architecture_name(&self) -> Result<&str, DriverError> {
        self.0
            .backend
            .architecture_name()
            .ok_or(DriverError::NotAnAccelerator { op: "architecture_name", device: self.0.name })
    }

    /// The name of an accelerator's product, such as `NVIDIA H200`.
    ///
    /// # Errors
    ///
    /// [`DriverError::NotAnAccelerator`] for the host.
    pub fn product_name(&self) -> Result<&str, DriverError> {
        Ok(self.gpu().ok_or(DriverError::NotAnAccelerator { op: "product_name", device: self.0.name })?.product())
    }

    /// Free and total memory of an accelerator in bytes, whoever uses it; [`stats`](Device::stats) says what tensors do.
    ///
    /// # Errors
    ///
    /// [`DriverError::NotAnAccelerator`] for the host; when the accelerator fails.
    pub fn memory(&self) -> Result<(usize, usize), DriverError> {
        self.gpu().ok_or(DriverError::NotAnAccelerator { op: "memory", device: self.0.name })?.memory()
    }

    /// Whether kernels on this device can read the memory of `other` directly. Where they can, they may from the first
    /// such question on, and copies between the two then take no way through the host.
    pub fn can_access(&self, other: &Device) -> bool {
        let both = self.gpu().zip(other.gpu()).filter(|_| self.api() == other.api());
        self == other || both.is_some_and(|(gpu, other_gpu)| gpu.can_access(other_gpu, DeviceRef::from(other).id))
    }

    /// What became of the tensor maps by which kernels of this device let TMA copy tiles; all 0 where there are none.
    pub fn tensor_map_stats(&self) -> TensorMapStats {
        self.gpu().map(Gpu::tensor_map_stats).unwrap_or_default()
    }

    /// What the device's memory is used for.
    pub fn stats(&self) -> AllocatorStats {
        self.0.allocator.stats()
    }

    /// Returns memory that is kept for reuse to the system. Tensors are not touched.
    pub fn release_cached_memory(&self) {
        self.0.allocator.release();
    }

    /// Sets how many bytes of freed memory the device keeps for reuse; 0 keeps none. Sixteenths of it (at most 16 MiB each)
    /// are set aside for each of eight groups of threads and blocks up to 256 KiB.
    ///
    /// The default is a quarter of the machine's memory, or 1 GiB where that is unknown; of an accelerator, all that it has.
    pub fn set_cache_limit(&self, bytes: usize) {
        self.0.allocator.set_limit(bytes);
    }

    /// Waits for all work on this device.
    ///
    /// # Errors
    ///
    /// What went wrong in work that was enqueued.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.0.backend.synchronize()
    }

    /// The stream that work runs on when no other is named.
    pub fn default_stream(&self) -> DeviceStream {
        DeviceStream { device: *self, own: None }
    }

    /// Raw memory of at least `bytes` bytes with unspecified contents, for the engine's arenas.
    #[doc(hidden)]
    pub fn allocate(&self, bytes: usize) -> Result<Block, DriverError> {
        self.0.allocator.allocate(bytes)
    }

    pub(crate) fn backend(&self) -> &'static dyn Backend {
        self.0.backend
    }

    /// What only a GPU does, if this is one.
    pub(crate) fn gpu(&self) -> Option<&'static dyn Gpu> {
        self.0.backend.gpu()
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.name.fmt(f)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.0.name)
    }
}

/// A sequence of operations on a device, done in order.
///
/// The host does each operation before the call returns, so its streams are always idle. Streams of an accelerator go on
/// while the host does, and beside each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStream {
    device: Device,
    /// What [`DeviceStream::new`] made; the default stream is the device's.
    own: Option<Arc<OwnStream>>,
}

#[derive(Debug, PartialEq, Eq)]
struct OwnStream {
    device: Device,
    handle: StreamHandle,
    id: usize,
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        if let Some(gpu) = self.device.gpu() {
            gpu.destroy_stream(self.handle);
        }
    }
}

impl DeviceStream {
    /// A new stream on `device`.
    ///
    /// # Errors
    ///
    /// When the accelerator cannot make one.
    pub fn new(device: &Device) -> Result<DeviceStream, DriverError> {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let handle = device.gpu().map_or(Ok(StreamHandle::default()), Gpu::create_stream)?;
        let own = OwnStream { device: *device, handle, id: NEXT.fetch_add(1, Ordering::Relaxed) };
        Ok(DeviceStream { device: *device, own: Some(Arc::new(own)) })
    }

    /// The device that the stream runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits for all operations of this stream.
    ///
    /// # Errors
    ///
    /// What went wrong in work that was enqueued.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.device.gpu().map_or(Ok(()), |gpu| gpu.synchronize_stream(self.handle()))
    }

    /// Makes operations added to this stream from now on wait for those already in `other`. The host does not wait; a
    /// stream of the host, on which nothing is ever left to do, waits by itself.
    ///
    /// ```
    /// # extern crate max_core as max;
    /// use max::driver::{Device, DeviceStream};
    ///
    /// let device = Device::cpu();
    /// let stream = DeviceStream::new(&device)?;
    /// stream.wait_for(&device.default_stream())?;
    /// # Ok::<(), max::driver::DriverError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What went wrong in work that was enqueued.
    pub fn wait_for(&self, other: &DeviceStream) -> Result<(), DriverError> {
        match (self.device.gpu(), other.device.gpu()) {
            (_, None) => Ok(()),
            (None, Some(_)) => other.synchronize(),
            (Some(_), Some(_)) if self == other => Ok(()),
            (Some(gpu), Some(other_gpu)) => backend::wait((gpu, self.handle()), (other_gpu, other.handle())),
        }
    }

    /// Whether this is the device's default stream.
    pub fn is_default(&self) -> bool {
        self.own.is_none()
    }

    pub(crate) fn handle(&self) -> StreamHandle {
        self.own.as_ref().map_or(StreamHandle::default(), |own| own.handle)
    }
}

/// All accelerators of this machine or, if there are none, the host.
pub fn scan_available_devices() -> Vec<DeviceSpec> {
    match accelerator_count() {
        0 => vec![DeviceSpec::cpu()],
        count => (0..count).map(DeviceSpec::accelerator).collect(),
    }
}

/// How many accelerators this machine has.
pub fn accelerator_count() -> u32 {
    cuda::count().unwrap_or(0)
}

/// The API of the first accelerator: `cuda` or `hip`.
///
/// # Errors
///
/// [`DriverError::NoAccelerator`] if there is none.
pub fn accelerator_api() -> Result<&'static str, DriverError> {
    Ok(Device::accelerator(0)?.api())
}

/// The architecture of the first accelerator, such as `sm_90`.
///
/// # Errors
///
/// [`DriverError::NoAccelerator`] if there is none.
pub fn accelerator_architecture_name() -> Result<String, DriverError> {
    Ok(Device::accelerator(0)?.architecture_name()?.to_owned())
}

/// Whether this machine has all of `devices`.
pub fn devices_exist(devices: &[DeviceSpec]) -> bool {
    devices.iter().all(|spec| match spec.device_type {
        DeviceKind::Cpu => spec.id == 0,
        DeviceKind::Gpu => spec.id < accelerator_count(),
    })
}

/// Initializes devices, in the order given.
///
/// # Errors
///
/// [`DriverError::NoAccelerator`] or [`DriverError::NoSuchDevice`] for the first that this machine does not have.
pub fn load_devices(specs: &[DeviceSpec]) -> Result<Vec<Device>, DriverError> {
    specs.iter().map(|spec| spec.load()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host() {
        let device = Device::cpu();
        assert!(device.is_host() && device.is_compatible() && device.can_access(&Device::cpu()));
        assert_eq!(format!("{device} {device:?}"), "cpu:0 Device(cpu:0)");
        assert_eq!(device, Device::cpu());
        let error = device.architecture_name().unwrap_err().to_string();
        assert!(error.contains("architecture_name: cpu:0 is not an accelerator"), "{error}");
    }

    #[test]
    fn loading_devices() {
        assert_eq!(load_devices(&[DeviceSpec::cpu()]).unwrap(), [Device::cpu()]);
        assert!(devices_exist(&scan_available_devices()));
        let missing = [DeviceSpec::cpu(), DeviceSpec::accelerator(1000)];
        assert!(!devices_exist(&missing));
        assert!(devices_exist(&missing[..1]));
        assert!(matches!(load_devices(&missing), Err(DriverError::NoAccelerator { id: 1000, .. })));
        let second_cpu = DeviceSpec { id: 1, device_type: DeviceKind::Cpu };
        assert!(!devices_exist(&[second_cpu]));
        let error = second_cpu.load().unwrap_err().to_string();
        assert_eq!(error, "there is no device cpu:1: the host is the one device `cpu:0`");
        assert_eq!(accelerator_api().is_ok(), accelerator_count() > 0);
        assert_eq!(accelerator_architecture_name().is_ok(), accelerator_count() > 0);
    }

    #[test]
    fn streams() {
        let device = Device::cpu();
        let stream = DeviceStream::new(&device).unwrap();
        assert_ne!(stream, device.default_stream());
        assert_eq!(device.default_stream(), device.default_stream());
        stream.wait_for(&device.default_stream()).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(stream.device(), &device);
    }
}
