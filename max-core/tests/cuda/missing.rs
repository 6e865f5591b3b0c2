//! Machines without a driver, with a broken one, or with one too old: each is an error that says so, and no panic.

use crate::fake_gpu::{NAME, library, with_driver};
use max::driver::{
    CudaError, Device, DeviceSpec, DriverError, accelerator_count, devices_exist, scan_available_devices,
};

/// What `Device::accelerator(0)` says, where there are no accelerators.
#[track_caller]
fn reason() -> CudaError {
    assert_eq!(accelerator_count(), 0);
    assert_eq!(scan_available_devices(), [DeviceSpec::cpu()]);
    assert!(!devices_exist(&[DeviceSpec::accelerator(0)]));
    match Device::accelerator(0) {
        Err(error @ DriverError::NoAccelerator { id: 0, count: 0, .. }) => {
            println!("{error}");
            let DriverError::NoAccelerator { source, .. } = error else { unreachable!() };
            *source.expect("a reason")
        }
        other => panic!("{other:?}"),
    }
}

macro_rules! name {
    ($test:literal) => {
        concat!("cuda::missing::", $test)
    };
}

#[test]
fn a_machine_without_a_driver() {
    with_driver(name!("a_machine_without_a_driver"), None, &[], || {
        // Where the machine of this test has a driver, the loader finds that one.
        if accelerator_count() == 0 {
            let error = reason();
            assert!(matches!(error, CudaError::Library { .. } | CudaError::Call { .. }), "{error:?}");
            if matches!(error, CudaError::Library { .. }) {
                let text = Device::accelerator(0).unwrap_err().to_string();
                let names = r#"none of ["libcuda.so.1", "libcuda.so"] can be loaded ("#;
                assert!(
                    text.starts_with(
                        "there is no accelerator 0: 0 found on this machine (the NVIDIA driver is not installed: "
                    ),
                    "{text}"
                );
                assert!(text.contains(names) && text.ends_with("; use `Device::cpu()`"), "{text}");
            }
        }
    });
}

/// Where a toolkit brings the library without its version.
#[test]
fn a_driver_under_the_other_name() {
    let test = name!("a_driver_under_the_other_name");
    with_driver(test, Some((&library(), "libcuda.so")), &[("FAKE_CUDA_DEVICES", "3")], || {
        // Where the machine of this test has a driver, its name comes first.
        let has_another = ["/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib/wsl/lib"]
            .iter()
            .any(|folder| std::path::Path::new(folder).join("libcuda.so.1").exists());
        if !has_another {
            assert_eq!(accelerator_count(), 3);
            assert_eq!(Device::accelerator(2).unwrap().product_name().unwrap(), "Simulated GPU");
        }
    });
}

#[test]
fn a_library_that_is_no_driver() {
    // Any library that every Linux machine has.
    let libm = [
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/lib64/libm.so.6",
        "/usr/lib/libm.so.6",
        "/lib/aarch64-linux-gnu/libm.so.6",
    ];
    let Some(libm) = libm.iter().map(std::path::Path::new).find(|path| path.exists()) else { return };
    with_driver(name!("a_library_that_is_no_driver"), Some((libm, NAME)), &[], || {
        assert_eq!(reason(), CudaError::Symbol { function: "cuInit" });
    });
}

gpu_test! {
    fn a_driver_that_is_too_old("FAKE_CUDA_VERSION" = "10020") {
        let error = reason();
        assert_eq!(error, CudaError::Version { found: 10020, oldest: 11040 });
        assert_eq!(
            error.to_string(),
            "the NVIDIA driver supports CUDA 10.2, but CUDA 11.4 is the oldest that serves; update the driver"
        );
    }

    fn a_driver_without_a_device("FAKE_CUDA_DEVICES" = "0") {
        let error = reason();
        assert!(matches!(error, CudaError::Call { function: "cuInit", code: 100, .. }), "{error:?}");
    }

    /// The simulated driver is not started, and says why.
    fn a_setting_without_sense("FAKE_CUDA_MEMORY" = "1GiB") {
        assert_eq!(
            reason().to_string(),
            "cuDriverGetVersion failed with CUDA_ERROR_SYSTEM_NOT_READY (802): FAKE_CUDA_MEMORY=1GiB: no number of 0 to \
             9223372036854775807"
        );
    }

    /// Every line is refused, which stops nothing.
    fn a_log_on_a_full_disk("FAKE_CUDA_LOG" = "/dev/full") {
        assert_eq!(accelerator_count(), 1);
    }

    /// A newer driver has codes that no list of today has.
    fn a_code_that_nobody_knows("FAKE_CUDA_FAIL" = "cuInit=950@1+") {
        assert_eq!(reason().to_string(), "cuInit failed with error 950 (950)");
    }

    fn a_stub_in_the_drivers_place("FAKE_CUDA_FAIL" = "cuInit=34@1+") {
        let error = reason();
        assert!(matches!(error, CudaError::Call { function: "cuInit", code: 34, .. }), "{error:?}");
        assert!(error.to_string().contains("CUDA_ERROR_STUB_LIBRARY"), "{error}");
    }

    fn a_gpu_that_is_too_old("FAKE_CUDA_SM" = "75") {
        let error = Device::accelerator(0).unwrap_err();
        assert_eq!(error.to_string(), "accelerator on gpu:0: the GPU is sm_75, and kernels are written for sm_80 and later");
    }

    /// A context that was retained before the failure is released again.
    fn a_device_that_cannot_be_made_ready("FAKE_CUDA_FAIL" = "cuStreamCreate=999@1", "FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/retained.log")) {
        let error = Device::accelerator(0).unwrap_err();
        assert!(matches!(&error, DriverError::Cuda { source, .. } if matches!(**source, CudaError::Call { code: 999, .. })), "{error:?}");
        // The next try may succeed.
        assert!(Device::accelerator(0).is_ok());
        let log = std::fs::read_to_string(concat!(env!("CARGO_TARGET_TMPDIR"), "/retained.log")).unwrap();
        let count = |name: &str| log.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!((count("cuDevicePrimaryCtxRetain"), count("cuDevicePrimaryCtxRelease")), (2, 1), "{log}");
    }
}
