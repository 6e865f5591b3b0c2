//! Tensors on a GPU: memory, its statistics and limits, copies, views, page-locked memory.

use max::driver::{Device, DriverError, SliceIndex, Tensor};
use max::dtype::{DType, Element};

fn gpu() -> Device {
    Device::accelerator(0).unwrap()
}

fn back<T: Element>(x: &Tensor) -> Vec<T> {
    x.to(&Device::cpu()).unwrap().to_vec().unwrap()
}

gpu_test! {
    fn there_and_back() {
        for dtype in DType::ALL {
            for shape in [vec![], vec![0], vec![1], vec![3, 5], vec![2, 0, 4]] {
                let x = Tensor::zeros(dtype, &shape, &gpu()).unwrap();
                assert_eq!((x.device(), x.shape(), x.dtype(), x.is_host(), x.pinned()), (&gpu(), &shape[..], dtype, false, false));
                assert_eq!(x.to(&gpu()).unwrap().data_ptr(), x.data_ptr());
                max::dispatch!(dtype, T => assert!(back::<T>(&x).iter().all(|v| *v == <T as Element>::ZERO)));
            }
        }
        let x = Tensor::arange(0i64, 1000, 1).unwrap();
        assert_eq!(back::<i64>(&x.to(&gpu()).unwrap()), x.to_vec::<i64>().unwrap());
    }

    fn the_host_cannot_look_at_device_memory() {
        let mut x = Tensor::full(1.0f32, [2]).unwrap().to(&gpu()).unwrap();
        for error in [
            x.as_slice::<f32>().unwrap_err(),
            x.to_vec::<f32>().unwrap_err(),
            x.iter::<f32>().err().unwrap(),
            x.select(0, 0).unwrap().item::<f32>().unwrap_err(),
            x.as_mut_slice::<f32>().unwrap_err(),
        ] {
            assert!(matches!(error, DriverError::NotOnHost { .. }), "{error:?}");
            assert!(error.to_string().contains("the tensor is on gpu:0; copy it with `.to(&Device::cpu())` first"));
        }
        assert_eq!(x.to_string(), format!("<{} {:?} on gpu:0>", x.dtype(), x.shape()));
    }

    /// Views are copied by a kernel, in the order of the view.
    fn views() {
        for dtype in [DType::U8, DType::F16, DType::F32, DType::I64] {
            max::dispatch!(dtype, T => {
                let x = Tensor::arange(T::from_f64(0.0), T::from_f64(120.0), T::from_f64(1.0)).unwrap();
                let x = x.reshape([2, 3, 4, 5]).unwrap();
                let y = x.to(&gpu()).unwrap();
                let views: [&dyn Fn(&Tensor) -> Tensor; 7] = [
                    &|x| x.transpose(0, 3).unwrap(),
                    &|x| x.permute(&[2, 0, 3, 1]).unwrap(),
                    &|x| x.slice(&[1.into(), SliceIndex::REVERSED, (1..3).into()]).unwrap(),
                    &|x| x.slice(&[SliceIndex::Ellipsis, SliceIndex::ALL.step_by(2)]).unwrap(),
                    &|x| x.select(3, 2).unwrap(),
                    &|x| x.select(0, 1).unwrap().broadcast_to([2, 3, 4, 5]).unwrap(),
                    &|x| x.slice(&[SliceIndex::ALL, (0..0).into()]).unwrap(),
                ];
                for (i, view) in views.iter().enumerate() {
                    let (host, device) = (view(&x), view(&y));
                    assert_eq!(device.strides(), host.strides());
                    let copy = device.copy().unwrap();
                    assert!(copy.is_contiguous() && copy.device() == &gpu(), "view {i}");
                    assert_eq!(back::<T>(&copy), host.to_vec::<T>().unwrap(), "view {i} of {dtype}");
                    assert_eq!(back::<T>(&device), host.to_vec::<T>().unwrap(), "view {i} of {dtype}");
                }
            });
        }
    }

    /// Transposes are read and written in whole vectors, of 16 bytes and of up to four elements, by tiles of shared memory. Rows that
    /// are not aligned, and short ones, are copied otherwise.
    fn transposes("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/transposes.log")) {
        let views: [(&[usize], &[isize]); 6] = [
            (&[64, 128], &[1, 0]),
            (&[3, 128, 64], &[2, 0, 1]),
            (&[2, 3, 64, 128], &[0, 3, 1, 2]),
            (&[77, 131], &[1, 0]),
            (&[5, 9, 16, 3], &[1, 2, 3, 0]),
            (&[2, 70, 9, 8], &[0, 3, 1, 2]),
        ];
        for dtype in [DType::U8, DType::BF16, DType::F32, DType::F64] {
            max::dispatch!(dtype, T => {
                for (shape, order) in views {
                    let count = shape.iter().product::<usize>();
                    let x: Vec<T> = (0..count).map(|i| T::from_f64((i * 7 % 251) as f64)).collect();
                    let host = Tensor::from_vec(x, shape).unwrap();
                    let copy = host.to(&gpu()).unwrap().permute(order).unwrap().copy().unwrap();
                    let what = format!("{shape:?} by {order:?} of {dtype}");
                    assert_eq!(back::<T>(&copy), host.permute(order).unwrap().to_vec::<T>().unwrap(), "{what}");
                    let log = std::fs::read_to_string(concat!(env!("CARGO_TARGET_TMPDIR"), "/transposes.log")).unwrap();
                    let lines: Vec<&str> = log.lines().collect();
                    let is_of_tiles = |line: &&str| line.starts_with("ran max_transpose");
                    if shape.iter().filter(|n| **n >= 64).count() == 2 && shape[0] != 77 {
                        let bytes = count * dtype.size_in_bytes();
                        let stored = bytes / (16.min(4 * dtype.size_in_bytes()));
                        let ran = format!("ran max_transpose: {bytes} bytes in {} loads, {bytes} bytes in {stored} stores", bytes / 16);
                        let last = lines.iter().rposition(is_of_tiles).expect("a copy by tiles");
                        assert!(lines[last].starts_with(&ran), "{what}: {}, not {ran}", lines[last]);
                        assert!(lines.get(last + 1).is_none_or(|line| !line.starts_with("uncoalesced")), "{what}");
                    }
                }
            });
        }
    }

    fn in_place_copies() {
        let host = Tensor::arange(0.0f32, 6.0, 1.0).unwrap().reshape([2, 3]).unwrap();
        let mut x = Tensor::zeros(DType::F32, [3, 2], &gpu()).unwrap();
        x.inplace_copy_from(&host.transpose(0, 1).unwrap()).unwrap();
        assert_eq!(back::<f32>(&x), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        let mut y = Tensor::zeros(DType::F32, [2, 3], &gpu()).unwrap();
        y.inplace_copy_from(&x.transpose(0, 1).unwrap()).unwrap();
        assert_eq!(back::<f32>(&y), host.to_vec::<f32>().unwrap());
        let mut z = Tensor::zeros(DType::F32, [2, 3], &Device::cpu()).unwrap();
        z.inplace_copy_from(&y).unwrap();
        assert_eq!(z.to_vec::<f32>().unwrap(), host.to_vec::<f32>().unwrap());
        let shared = y.clone();
        assert!(matches!(y.inplace_copy_from(&host), Err(DriverError::StorageShared { .. })));
        y.make_unique().unwrap();
        y.inplace_copy_from(&x.reshape([2, 3]).unwrap()).unwrap();
        assert_eq!((back::<f32>(&y)[1], back::<f32>(&shared)[1]), (3.0, 1.0));
    }

    fn pinned_memory() {
        let mut x = Tensor::zeros_pinned(DType::I32, [100], &gpu()).unwrap();
        assert!(x.is_host() && x.pinned() && !x.clone().to(&gpu()).unwrap().pinned());
        x.as_mut_slice::<i32>().unwrap().fill(5);
        let y = x.to(&gpu()).unwrap();
        // The copy is done when the call returns, so that the memory may be written again.
        x.as_mut_slice::<i32>().unwrap().fill(6);
        assert_eq!(back::<i32>(&y), [5; 100]);
        x.inplace_copy_from(&y).unwrap();
        assert_eq!(x.as_slice::<i32>().unwrap(), [5; 100]);
        assert!(!Tensor::zeros_pinned(DType::I32, [0], &gpu()).unwrap().pinned());
        assert!(!Tensor::zeros_pinned(DType::I32, [1], &Device::cpu()).unwrap().pinned());
    }

    /// Much pageable memory goes through two page-locked buffers, a part after the other; page-locked memory goes at once.
    fn large_uploads(
        "FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/uploads.log"),
        "FAKE_CUDA_MEMORY" = "1073741824"
    ) {
        let calls = |name: &str| {
            let log = std::fs::read_to_string(concat!(env!("CARGO_TARGET_TMPDIR"), "/uploads.log")).unwrap();
            log.lines().filter(|line| *line == name).count()
        };
        // The log begins with the driver.
        gpu();
        // Odd numbers of bytes: of a buffer less one, of one and one more, of three buffers and a rest.
        for (bytes, copies) in [(100, 1), ((16 << 20) - 1, 1), ((16 << 20) + 1, 2), ((48 << 20) + 4097, 4)] {
            let numbers: Vec<u8> = (0..bytes).map(|i| ((i * 2_654_435_761) >> 13) as u8).collect();
            let host = Tensor::from_vec(numbers, [bytes]).unwrap();
            let before = calls("cuMemcpyHtoDAsync_v2");
            let there = host.to(&gpu()).unwrap();
            assert_eq!(calls("cuMemcpyHtoDAsync_v2") - before, copies, "{bytes}");
            assert!(back::<u8>(&there) == host.to_vec::<u8>().unwrap(), "{bytes}");
        }
        assert_eq!(calls("cuMemHostAlloc"), 1);
        let mut pinned = Tensor::zeros_pinned(DType::U8, [40 << 20], &gpu()).unwrap();
        pinned.as_mut_slice::<u8>().unwrap()[39 << 20] = 7;
        let before = calls("cuMemcpyHtoDAsync_v2");
        let there = pinned.to(&gpu()).unwrap();
        assert_eq!(calls("cuMemcpyHtoDAsync_v2") - before, 1);
        assert_eq!(back::<u8>(&there)[39 << 20], 7);
    }

    /// Freed memory is kept and used again; when there is none left, what is kept goes back first.
    fn the_cache("FAKE_CUDA_MEMORY" = "1048576") {
        let gpu = gpu();
        let new = |bytes: usize| Tensor::zeros(DType::U8, [bytes], &gpu);
        let x = new(300_000).unwrap();
        let (address, stats) = (x.data_ptr(), gpu.stats());
        assert_eq!((stats.bytes_in_use, stats.bytes_cached, stats.allocations, stats.cache_hits), (327_680, 0, 1, 0));
        drop(x);
        assert_eq!((gpu.stats().bytes_in_use, gpu.stats().bytes_cached), (0, 327_680));
        let x = new(300_001).unwrap();
        assert_eq!((x.data_ptr(), gpu.stats().cache_hits), (address, 1));
        drop(x);
        // Larger than what is left beside the cache.
        let y = new(900_000).unwrap();
        assert_eq!(gpu.stats().bytes_cached, 0);
        let error = new(200_000).unwrap_err();
        let DriverError::OutOfMemory { device, requested, in_use } = error else { panic!("{error:?}") };
        assert_eq!((device.to_string(), requested, in_use), ("gpu:0".to_owned(), 200_000, gpu.stats().bytes_in_use));
        drop(y);
        assert!(new(900_000).is_ok() && new(0).is_ok());
        // That of the two blocks at different times; rounded up, and none was more than there is.
        let peak = gpu.stats().peak_bytes_reserved;
        assert!((900_000..=1 << 20).contains(&peak), "{peak}");
        gpu.set_cache_limit(0);
        assert_eq!(gpu.stats().bytes_cached, 0);
        drop((new(300_000).unwrap(), new(300_000).unwrap()));
        assert_eq!(gpu.stats().peak_bytes_reserved, peak, "the most that there ever was");
    }

    fn no_pinned_memory("FAKE_CUDA_FAIL" = "cuMemHostAlloc=2@1") {
        let error = Tensor::zeros_pinned(DType::U8, [100], &gpu()).unwrap_err();
        assert!(matches!(error, DriverError::OutOfMemory { requested: 100, .. }), "{error:?}");
        assert!(Tensor::zeros_pinned(DType::U8, [100], &gpu()).is_ok());
    }

    /// Any thread may use and drop what another one made.
    fn threads() {
        let gpu = gpu();
        let tensors: Vec<Tensor> = (0..8i32).map(|i| Tensor::full(i, [1000]).unwrap().to(&gpu).unwrap()).collect();
        std::thread::scope(|scope| {
            for (i, x) in tensors.into_iter().enumerate() {
                scope.spawn(move || {
                    let copy = x.copy().unwrap();
                    drop(x);
                    assert_eq!(back::<i32>(&copy), [i as i32; 1000]);
                });
            }
        });
        assert_eq!(gpu.stats().bytes_in_use, 0);
    }
}
