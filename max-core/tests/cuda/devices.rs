//! Devices, their properties, and streams.

use std::ffi::{c_int, c_void};

use max::driver::{
    Device, DeviceRef, DeviceSpec, DeviceStream, DriverError, Tensor, accelerator_api, accelerator_architecture_name,
    accelerator_count, devices_exist, load_devices, scan_available_devices,
};
use max::dtype::DType;

gpu_test! {
    fn properties("FAKE_CUDA_DEVICES" = "2", "FAKE_CUDA_SM" = "86") {
        assert_eq!(accelerator_count(), 2);
        assert_eq!(scan_available_devices(), [DeviceSpec::accelerator(0), DeviceSpec::accelerator(1)]);
        let devices = load_devices(&scan_available_devices()).unwrap();
        let [first, second] = devices[..] else { panic!("{devices:?}") };
        assert_eq!((first.label(), first.api(), first.id(), second.id()), ("gpu", "cuda", 0, 1));
        assert_eq!((first.architecture_name().unwrap(), first.to_string()), ("sm_86", "gpu:0".to_owned()));
        assert_eq!((accelerator_api().unwrap(), accelerator_architecture_name().unwrap()), ("cuda", "sm_86".to_owned()));
        assert!(!first.is_host() && first.is_compatible());
        assert_eq!(first, Device::accelerator(0).unwrap());
        assert_ne!(first, second);
        assert!(first.can_access(&first) && first.can_access(&second) && !first.can_access(&Device::cpu()));
        assert_eq!(DeviceRef::from(&second), DeviceRef::gpu(1));
        assert!(devices_exist(&[DeviceSpec::accelerator(1), DeviceSpec::cpu()]));
        assert!(!devices_exist(&[DeviceSpec::accelerator(2)]));
        let missing = Device::accelerator(2).unwrap_err();
        assert_eq!(missing.to_string(), "there is no accelerator 2: 2 found on this machine; use `Device::cpu()`");
        assert_eq!(first.product_name().unwrap(), "Simulated GPU");
        let x = Tensor::zeros(DType::U8, [1 << 20], &first).unwrap();
        assert_eq!(first.memory().unwrap(), (255 << 20, 256 << 20));
        assert_eq!(second.memory().unwrap(), (256 << 20, 256 << 20));
        drop(x);
        assert!(Device::cpu().memory().is_err() && Device::cpu().product_name().is_err());
        first.synchronize().unwrap();
    }

    fn streams_wait_for_each_other() {
        let gpu = Device::accelerator(0).unwrap();
        let (a, b) = (DeviceStream::new(&gpu).unwrap(), DeviceStream::new(&gpu).unwrap());
        assert!(a != b && a != gpu.default_stream() && gpu.default_stream().is_default());
        let x = Tensor::arange(0.0f32, 100.0, 1.0).unwrap().to_stream(&a).unwrap();
        assert_eq!(x.stream(), a);
        // On the same device nothing is copied, and the other stream waits.
        let y = x.to_stream(&b).unwrap();
        assert!(y.is_shared());
        let mut z = Tensor::zeros(DType::F32, [100], &gpu).unwrap();
        z.inplace_copy_from(&y).unwrap();
        assert_eq!(z.to(&Device::cpu()).unwrap().to_vec::<f32>().unwrap()[99], 99.0);
        b.synchronize().unwrap();
        Device::cpu().default_stream().wait_for(&a).unwrap();
        a.wait_for(&Device::cpu().default_stream()).unwrap();
    }

    /// Memory that is freed while another stream still reads it is not given to anybody before that is done.
    fn memory_is_not_reused_under_another_stream() {
        let gpu = Device::accelerator(0).unwrap();
        let stream = DeviceStream::new(&gpu).unwrap();
        let x = Tensor::full(1.0f32, [256]).unwrap().to_stream(&stream).unwrap();
        // Queued on the stream, and done as late as possible.
        let copy = x.slice(&[(..).into()]).unwrap().copy().unwrap();
        assert_eq!(copy.stream(), stream);
        drop(x);
        // This one takes the memory of `x`.
        let other = Tensor::full(2.0f32, [256]).unwrap().to(&gpu).unwrap();
        assert_eq!(gpu.stats().cache_hits, 1);
        assert_eq!(copy.to(&Device::cpu()).unwrap().to_vec::<f32>().unwrap(), [1.0; 256]);
        assert_eq!(other.to(&Device::cpu()).unwrap().to_vec::<f32>().unwrap(), [2.0; 256]);
    }

    /// Nor is memory that queued work still uses given to another stream, or back to the driver.
    fn memory_is_not_taken_from_queued_work() {
        let gpu = Device::accelerator(0).unwrap();
        let read = |x: &Tensor| x.to(&Device::cpu()).unwrap().to_vec::<f32>().unwrap();
        let x = Tensor::full(1.0f32, [256]).unwrap().to(&gpu).unwrap();
        let copy = x.copy().unwrap();
        drop(x);
        let stream = DeviceStream::new(&gpu).unwrap();
        let other = Tensor::full(2.0f32, [256]).unwrap().to_stream(&stream).unwrap();
        assert_eq!(gpu.stats().cache_hits, 1);
        assert_eq!((read(&copy), read(&other)), (vec![1.0; 256], vec![2.0; 256]));
        let again = copy.copy().unwrap();
        drop(copy);
        gpu.release_cached_memory();
        assert_eq!(read(&again), [1.0; 256]);
    }

    fn a_stream_that_cannot_be_made("FAKE_CUDA_FAIL" = "cuStreamCreate=2@2") {
        let gpu = Device::accelerator(0).unwrap();
        let error = DeviceStream::new(&gpu).unwrap_err();
        assert!(matches!(error, DriverError::Cuda { op: "new stream", device: DeviceRef { .. }, .. }), "{error:?}");
        assert!(DeviceStream::new(&gpu).is_ok());
    }

    /// Two GPUs exchange memory without the host.
    fn transfers_between_gpus("FAKE_CUDA_DEVICES" = "2") {
        let [a, b] = [0, 1].map(|id| Device::accelerator(id).unwrap());
        let x = Tensor::arange(0i32, 12, 1).unwrap().reshape([3, 4]).unwrap().to(&a).unwrap();
        let y = x.transpose(0, 1).unwrap().to(&b).unwrap();
        drop(x);
        // Overwrites the memory of `x`, if nothing kept it.
        let _z = Tensor::full(7i32, [12]).unwrap().to(&a).unwrap();
        assert_eq!((y.device(), y.shape()), (&b, &[4, 3][..]));
        assert_eq!(y.to(&Device::cpu()).unwrap().to_vec::<i32>().unwrap(), [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
    }

    /// What `can_access` promises, it sets up; asking again is no mistake, and where it cannot be set up there is none.
    fn peer_access(
        "FAKE_CUDA_DEVICES" = "2",
        "FAKE_CUDA_FAIL" = "cuCtxEnablePeerAccess=217@3",
        "FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/peers.log")
    ) {
        let [a, b] = [0, 1].map(|id| Device::accelerator(id).unwrap());
        assert!(a.can_access(&b) && a.can_access(&b));
        assert!(!b.can_access(&a), "the third call is refused");
        assert!(b.can_access(&a) && b.can_access(&b));
        let log = std::fs::read_to_string(concat!(env!("CARGO_TARGET_TMPDIR"), "/peers.log")).unwrap();
        assert_eq!(log.lines().filter(|line| line.starts_with("cuCtxEnablePeerAccess")).count(), 4, "{log}");
        // A copy asks for it as well, once.
        let copy = |x: &Tensor| x.to(&b).unwrap().to(&Device::cpu()).unwrap().to_vec::<i32>().unwrap();
        let x = Tensor::full(3i32, [4]).unwrap().to(&a).unwrap();
        assert_eq!((copy(&x), copy(&x)), (vec![3; 4], vec![3; 4]));
        let log = std::fs::read_to_string(concat!(env!("CARGO_TARGET_TMPDIR"), "/peers.log")).unwrap();
        assert_eq!(log.lines().filter(|line| line.starts_with("cuCtxEnablePeerAccess")).count(), 5, "{log}");
    }

    /// A thread of somebody else's keeps the context that it has.
    fn contexts_are_put_back("FAKE_CUDA_DEVICES" = "2") {
        // SAFETY: the loader finds the fake driver, whose functions are as NVIDIA's header declares them.
        let (set, current) = unsafe {
            let driver = libloading::Library::new("libcuda.so.1").unwrap();
            let set = *driver.get::<unsafe extern "C" fn(*mut c_void) -> c_int>(b"cuCtxSetCurrent\0").unwrap();
            let get = *driver.get::<unsafe extern "C" fn(*mut *mut c_void) -> c_int>(b"cuCtxGetCurrent\0").unwrap();
            std::mem::forget(driver);
            let current = move || {
                let mut context = std::ptr::null_mut();
                assert_eq!(get(&raw mut context), 0);
                context
            };
            (set, current)
        };
        let [a, b] = [0, 1].map(|id| Device::accelerator(id).unwrap());
        assert!(current().is_null());
        let x = Tensor::full(1i32, [4]).unwrap().to(&a).unwrap();
        assert!(current().is_null());
        // The second device's context, as somebody else would have it current.
        // SAFETY: the device is open, so its context is retained.
        assert_eq!(unsafe { set(2 as *mut c_void) }, 0);
        assert_eq!(x.to(&Device::cpu()).unwrap().to_vec::<i32>().unwrap(), [1; 4]);
        drop((x, Tensor::zeros(DType::I32, [4], &b).unwrap()));
        a.synchronize().unwrap();
        assert_eq!(current() as usize, 2);
    }

    /// A driver returns the error of work from whatever is called next, by any thread.
    fn an_error_that_arrives_elsewhere("FAKE_CUDA_EAGER" = "1", "FAKE_CUDA_FAIL" = "kernel=700@1") {
        let gpu = Device::accelerator(0).unwrap();
        let x = Tensor::arange(0i32, 12, 1).unwrap().reshape([3, 4]).unwrap().to(&gpu).unwrap();
        // Of strides, by a kernel.
        let copy = x.transpose(0, 1).unwrap().copy();
        let error = std::thread::spawn(move || Tensor::zeros(DType::I32, [1 << 16], &gpu).unwrap_err()).join().unwrap();
        assert!(matches!(error, DriverError::DeviceLost { .. }), "{error:?}");
        assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{error}");
        assert!(copy.and_then(|copy| copy.to(&Device::cpu())).is_err());
    }

    fn a_lost_device("FAKE_CUDA_FAIL" = "cuMemcpyHtoDAsync_v2=719@2") {
        let gpu = Device::accelerator(0).unwrap();
        let x = Tensor::full(1i32, [4]).unwrap().to(&gpu).unwrap();
        let error = Tensor::full(2i32, [4]).unwrap().to(&gpu).unwrap_err();
        assert!(matches!(error, DriverError::DeviceLost { op: "copy to device", .. }), "{error:?}");
        // From now on everything is refused, and what was not computed is never returned.
        assert!(matches!(x.to(&Device::cpu()), Err(DriverError::DeviceLost { .. })));
        assert!(matches!(Tensor::zeros(DType::I32, [1000], &gpu), Err(DriverError::DeviceLost { .. })));
        let error = gpu.synchronize().unwrap_err().to_string();
        assert!(error.starts_with("synchronize: gpu:0 is lost, and with it all of its memory, since"), "{error}");
        assert!(error.contains("CUDA_ERROR_LAUNCH_FAILED (719)") && error.contains("MAX_GPU_SYNC=1"), "{error}");
        // Drops do not panic.
        drop(x);
        gpu.release_cached_memory();
    }

    /// Whatever order tensors, streams and the driver end in at exit.
    fn nothing_panics_at_exit("FAKE_CUDA_FAIL" = "cuMemFree_v2=4@1+,cuStreamDestroy_v2=4@1+") {
        thread_local!(static KEPT: std::cell::RefCell<Vec<(Tensor, DeviceStream)>> = const { std::cell::RefCell::new(Vec::new()) });
        let gpu = Device::accelerator(0).unwrap();
        let stream = DeviceStream::new(&gpu).unwrap();
        let x = Tensor::full(1i32, [4]).unwrap().to_stream(&stream).unwrap();
        std::thread::spawn(move || KEPT.with_borrow_mut(|kept| kept.push((x, stream)))).join().unwrap();
        gpu.release_cached_memory();
        assert_eq!(gpu.stats().bytes_cached, 0);
    }
}
