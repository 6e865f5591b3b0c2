//! Devices, their properties, and streams.

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
