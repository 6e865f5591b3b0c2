//! Kernels on a GPU, launched one by one: how arguments are passed, and the limits of a launch.

use crate::fake_gpu;
use crate::ops::{GPU, f32s, values};
use max::driver::{CudaError, Device, DriverError, Tensor};
use max::dtype::{DType, Element, bf16, f16};
use max::engine::InferenceSession;
use max::graph::{Graph, ops};
use max::kernel;
use max::kernel::abi::KernelDef;
use max::kernel::ptx::PtxError;
use max::kernel::{Form, GpuDebug, GpuError, Kernel, TensorArg};

#[kernel(op = "scaled_sum", dtypes(T = [f32, f64, i32, bf16]))]
fn scaled_sum<T: Number>(x: T, y: T, #[param(default = 3)] by: i64) -> T {
    x * T::from_i64(by) + y
}

/// Two results, of two dtypes.
#[kernel(op = "parts", dtypes(T = [f32]))]
fn parts<T: Float>(x: T) -> (T, bool) {
    (x.floor(), x > 0)
}

#[kernel(op = "row_sums", dtypes(T = [f32, i32]))]
fn row_sums<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let total = x.row(row).fold(0, |s, v| s + v).sum();
    y.row(row).set(0, total);
}

/// Two rows, each read twice.
#[kernel(op = "above_mean")]
fn above_mean(y: Out<i32, 2>, a: In<i32, 2>, b: In<i32, 2>) {
    let row = program_id(0);
    let (a, b) = (a.row(row), b.row(row));
    let (s, t) = (a.sum(), b.sum());
    y.row(row).write(a.map(|v| v * s).zip(b.map(|v| v * t)).map(|(v, w)| v - w));
}

#[kernel(op = "counts", grid(x.dim(0)))]
fn counts(n: Out<i32, 1>, x: In<i32, 1>) {
    let i = program_id(0);
    n.atomic_add([x.at(i) as i64], 1);
}

#[kernel(op = "printing", dtypes(T = [f32]))]
fn printing<T: Float>(y: Out<T, 2>, x: In<T, 2>, n: In<u8, 1>) {
    let i = program_id(0);
    let row = x.row(i);
    let sum = row.sum();
    print("100% of the sum", (i, sum, sum > 3));
    row.enumerate().for_each(|(v, j)| {
        if v < 0 {
            print("below 0", (j, v as f64, n.at(j)));
        }
    });
    y.row(i).write(row.map(|v| v / sum));
}

#[kernel(op = "printing_tile", dtypes(T = [f32]))]
fn printing_tile<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let [i, j] = program_id();
    let t = x.tile::<2, 3>(i, j);
    print("tile", t.load());
    y.tile::<2, 3>(i, j).write(t.load());
}

// Two tiles that take 48 KiB with what lies between their rows, 67 KiB (76 where they come through registers), and more than any
// GPU has.
products! {
    brimful_tiles "brimful_tiles" gpu(BM = 64, BN = 120, BK = 64);
    large_tiles "large_tiles" gpu(BM = 64, BN = 64, BK = 128);
    too_large_tiles "too_large_tiles" gpu(BM = 64, BN = 64, BK = 512);
}

// Tiles for few rows, which leave all but one multiprocessor idle where there are few columns.
products! {
    few_rows "few_rows" gpu(BM = 64, BN = 64, BK = 32), gpu(a.dim(0) <= 2, BM = 2, BN = 8, BK = 128), gpu(a.dim(0) <= 2, b.dim(1) <= 8, BN = 4);
}

/// Large tiles where there are enough programs for them.
#[kernel(
    op = "halves",
    tile(BM = 4, BN = 16, BK = 16, gpu(BM = 64, BN = 64, BK = 32), sm_90a(T = [f16], BM = 128, BN = 128, BK = 64)),
    dtypes(T = [f16, bf16])
)]
fn halves<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<T, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc);
}

/// Products of factors that both follow the sum in memory.
macro_rules! along {
    ($($name:ident $op:literal $bound:ident $sum:ident [$($dtype:ident),*];)*) => {$(
        #[kernel(op = $op, tile(BM = 4, BN = 16, BK = 32, gpu(BM = 64, BN = 64, BK = 32)), dtypes(T = [$($dtype),*]))]
        fn $name<T: $bound>(c: Out<$sum, 2>, a: In<T, 2>, b: In<T, 2>) {
            let [m, n] = program_id();
            let mut acc = Tile::<$sum, BM, BN>::zeros();
            for k in range(0, a.dim(1), BK) {
                acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BN, BK>(n, k).t(), acc);
            }
            c.tile::<BM, BN>(m, n).write(acc);
        }
    )*};
}
along! {
    integers_along "integers_along" Int i32 [i8, u8];
    floats_along "floats_along" Float f32 [f32, bf16];
}

/// A product whose left tiles begin a column before the operand.
#[kernel(op = "shifted_left", tile(BM = 4, BN = 16, BK = 16, gpu(BM = 64, BN = 64, BK = 32)))]
fn shifted_left(c: Out<f32, 2>, a: In<f32, 2>, b: In<f32, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, b.dim(0), BK) {
        acc = dot(a.tile::<BM, BK>(m, k - 1), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc);
}

/// A product whose left tiles begin where memory says, as the experts of a mixture do: threads that compute issue the copies. Its
/// sums meet behind the loop.
#[kernel(op = "routed", tile(BM = 4, BN = 16, BK = 16, gpu(BM = 64, BN = 64, BK = 64)), dtypes(T = [bf16]))]
fn routed<T: Float>(c: Out<f32, 2>, a: In<T, 2>, b: In<T, 2>, starts: In<i64, 1>) {
    let [m, n] = program_id();
    let first = starts.at(m);
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(first, k), b.tile::<BN, BK>(n, k).t(), acc);
    }
    let largest = acc.row_max();
    c.tile::<BM, BN>(m, n).write(acc.zip_map(largest, |x, most| x - most));
}

/// Names and text that PTX has no way to write.
#[kernel(op = "greek", dtypes(T = [f32]))]
fn greek<T: Float>(größe: T) -> T {
    let weiß = größe * 2;
    if weiß > 100 {
        print("größer als β", weiß);
    }
    weiß
}

fn gpu() -> Device {
    Device::accelerator(0).unwrap()
}

fn dims(x: &Tensor) -> Vec<i64> {
    x.shape().iter().map(|&size| size as i64).collect()
}

fn strides(x: &Tensor) -> Vec<i64> {
    x.strides().iter().map(|&stride| stride as i64).collect()
}

/// Runs a kernel over tensors of the GPU and, over copies of them, on the host; gives what both wrote to the last
/// `results` operands, by operand.
fn both<K: Kernel>(
    tensors: &[Tensor],
    results: std::ops::Range<usize>,
) -> Result<(Vec<Tensor>, Vec<Tensor>), GpuError> {
    let gpu = gpu();
    let dtypes: Vec<DType> = tensors.iter().map(Tensor::dtype).collect();
    let form = Form::Reference;
    let bound = K::def().bind(&dtypes, |_| None, form).unwrap();
    let rank = tensors.iter().map(Tensor::rank).max().unwrap_or(0);
    let loaded = bound.on_gpu(&gpu, rank)?;
    let host: Vec<Tensor> = tensors.iter().map(|x| x.copy().unwrap()).collect();
    let device: Vec<Tensor> = tensors
        .iter()
        .enumerate()
        // Inputs keep their strides.
        .map(|(i, x)| if results.contains(&i) { x.to(&gpu).unwrap() } else { strided_on(&gpu, x) })
        .collect();
    let shapes: Vec<_> = tensors.iter().map(dims).collect();
    let of = |list: &[Tensor]| list.iter().map(strides).collect::<Vec<_>>();
    let (host_strides, device_strides) = (of(&host), of(&device));
    let args = |list: &'_ [Tensor], i: usize| list[i].data_ptr().cast_mut();
    let host_args: Vec<TensorArg<'_>> = (0..host.len())
        .map(|i| TensorArg { ptr: args(&host, i), dims: &shapes[i], strides: &host_strides[i] })
        .collect();
    let device_args: Vec<TensorArg<'_>> = (0..device.len())
        .map(|i| TensorArg { ptr: args(&device, i), dims: &shapes[i], strides: &device_strides[i] })
        .collect();
    // SAFETY: arguments for each operand, of its dtype and rank, over memory that only this test uses.
    unsafe {
        bound.launch(&host_args).unwrap();
        loaded.launch(&device_args, &gpu.default_stream())?;
    }
    let pick = |list: &[Tensor]| results.clone().map(|i| list[i].to(&Device::cpu()).unwrap()).collect::<Vec<_>>();
    Ok((pick(&device), pick(&host)))
}

/// The same view on the device: its memory is copied whole.
fn strided_on(gpu: &Device, x: &Tensor) -> Tensor {
    if x.is_contiguous() {
        return x.to(gpu).unwrap();
    }
    // These tests make two views: all columns of a matrix but the first one, and a transpose.
    if x.strides()[1] == 1 {
        let columns = x.shape()[1];
        let values = x.copy().unwrap().to_vec::<f32>().unwrap();
        let whole = values.chunks(columns).flat_map(|row| [&[0.0], row].concat()).collect();
        let whole = Tensor::from_vec(whole, [x.shape()[0], columns + 1]).unwrap();
        return whole.to(gpu).unwrap().narrow(1, 1, columns).unwrap();
    }
    x.transpose(0, 1).unwrap().to(gpu).unwrap().transpose(0, 1).unwrap()
}

fn zeros(dtype: DType, shape: &[usize]) -> Tensor {
    Tensor::zeros(dtype, shape, &Device::cpu()).unwrap()
}

#[track_caller]
fn same(pair: (Vec<Tensor>, Vec<Tensor>)) {
    let (device, host) = pair;
    for (device, host) in device.iter().zip(&host) {
        assert_eq!(format!("{device:?}"), format!("{host:?}"));
        let bytes = |x: &Tensor| {
            x.reshape([x.num_elements()]).unwrap().view(DType::U8, None::<&[usize]>).unwrap().to_vec::<u8>().unwrap()
        };
        assert_eq!(bytes(device), bytes(host));
    }
}

gpu_test! {
    fn elementwise() {
        for count in [0, 1, 31, 257, 5000] {
            let x = Tensor::arange(0.0f32, count as f32, 1.0).unwrap();
            let y = Tensor::full(0.5f32, [count]).unwrap();
            same(both::<scaled_sum>(&[x.clone(), y, zeros(DType::F32, &[count])], 2..3).unwrap());
            let x = Tensor::from_vec(x.to_vec::<f32>().unwrap().iter().map(|v| v - 3.25).collect(), [count]).unwrap();
            same(both::<parts>(&[x, zeros(DType::F32, &[count]), zeros(DType::Bool, &[count])], 1..3).unwrap());
        }
        let scalar = |v: i32| Tensor::scalar(v).unwrap();
        same(both::<scaled_sum>(&[scalar(4), scalar(5), zeros(DType::I32, &[])], 2..3).unwrap());
    }

    /// The rows of a view may begin between units of 16 bytes where its tiles, a column before, begin at one.
    fn tiles_before_the_first_column() {
        let x = Tensor::arange(0.0f32, 64.0 * 64.0, 1.0).unwrap().reshape([64, 64]).unwrap().narrow(1, 1, 63).unwrap();
        let ones = Tensor::full(1.0f32, [64, 64]).unwrap();
        same(both::<shifted_left>(&[zeros(DType::F32, &[64, 64]), x, ones], 0..1).unwrap());
    }

    fn strided_and_broadcast() {
        let x = Tensor::arange(0.0f64, 35.0, 1.0).unwrap().reshape([5, 7]).unwrap();
        let t = Tensor::arange(0.0f64, 35.0, 1.0).unwrap().reshape([7, 5]).unwrap().transpose(0, 1).unwrap();
        same(both::<scaled_sum>(&[x, t, zeros(DType::F64, &[5, 7])], 2..3).unwrap());
    }

    fn programs() {
        for [rows, columns] in [[0, 3], [3, 0], [1, 1], [5, 1000], [3000, 3]] {
            let x = Tensor::full(2i32, [rows, columns]).unwrap();
            same(both::<row_sums>(&[zeros(DType::I32, &[rows, 1]), x], 0..1).unwrap());
        }
    }

    /// More programs than one axis of a grid may have blocks.
    fn a_grid_beyond_65535() {
        let x = Tensor::full(1i32, [70_000, 1]).unwrap();
        same(both::<row_sums>(&[zeros(DType::I32, &[70_000, 1]), x], 0..1).unwrap());
    }

    /// A result that not every element of is written begins as zeros, also in memory that was used before.
    fn scatters_into_zeros() {
        let x = Tensor::from_slice(&[1i32, 3, 3, 7], [4]).unwrap();
        let (device, _) = both::<counts>(&[Tensor::full(9i32, [10]).unwrap(), x], 0..1).unwrap();
        assert_eq!(device[0].to_vec::<i32>().unwrap(), [0, 1, 0, 2, 0, 0, 0, 1, 0, 0]);
    }

    /// Code is loaded once for each kernel, dtypes and parameters.
    fn code_is_cached("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/code_is_cached.log")) {
        let loads = || {
            let log = std::fs::read_to_string(concat!(env!("CARGO_TARGET_TMPDIR"), "/code_is_cached.log")).unwrap();
            log.lines().filter(|line| *line == "cuModuleLoadDataEx").count()
        };
        let bind = |dtype, by: i64| {
            let param = move |_: &str| Some(max::kernel::ParamArg::Int(by));
            scaled_sum::def().bind(&[dtype; 3], param, Form::Reference).unwrap().on_gpu(&gpu(), 1).unwrap();
        };
        bind(DType::F32, 3);
        bind(DType::F32, 3);
        assert_eq!(loads(), 1);
        bind(DType::F32, 4);
        bind(DType::I32, 3);
        assert_eq!(loads(), 3);
    }

    /// A GPU of which the kernel knows tile sizes has both forms; tensor maps are made once for each operand and form.
    fn tiles_of_an_architecture("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/tiles.log")) {
        let calls = |name: &str| {
            let log = std::fs::read_to_string(concat!(env!("CARGO_TARGET_TMPDIR"), "/tiles.log")).unwrap();
            log.lines().filter(|line| *line == name).count()
        };
        fn product<T: Element>(m: usize, n: usize, k: usize, of: impl Fn(f32) -> T) {
            let matrix = |rows: usize, columns: usize| {
                let small = (0..rows * columns).map(|i| of(((i * 7) % 5) as f32 - 2.0)).collect::<Vec<T>>();
                Tensor::from_vec(small, [rows, columns]).unwrap()
            };
            same(both::<halves>(&[zeros(T::DTYPE, &[m, n]), matrix(m, k), matrix(k, n)], 0..1).unwrap());
        }
        // Of the fake device's two multiprocessors, one program keeps half busy.
        product(130, 40, 72, f16::from_f32);
        assert_eq!((calls("cuModuleLoadDataEx"), calls("cuTensorMapEncodeTiled")), (2, 2));
        product(130, 40, 72, bf16::from_f32);
        assert_eq!(calls("cuModuleLoadDataEx"), 3);
        let encoded = calls("cuTensorMapEncodeTiled");
        let bound = halves::def().bind(&[DType::F16; 3], |_| None, Form::Reference).unwrap();
        let loaded = bound.on_gpu(&gpu(), 2).unwrap();
        let device: Vec<Tensor> = [[64, 16], [64, 32], [32, 16]].map(|shape| zeros(DType::F16, &shape).to(&gpu()).unwrap()).into();
        let (shapes, steps): (Vec<_>, Vec<_>) = device.iter().map(|x| (dims(x), strides(x))).unzip();
        let args: Vec<TensorArg<'_>> = (0..3)
            .map(|i| TensorArg { ptr: device[i].data_ptr().cast_mut(), dims: &shapes[i], strides: &steps[i] })
            .collect();
        for _ in 0..3 {
            // SAFETY: arguments for each operand, of its dtype and rank, over memory that only this test uses.
            unsafe { loaded.launch(&args, &gpu().default_stream()).unwrap() };
        }
        gpu().synchronize().unwrap();
        assert!(calls("cuTensorMapEncodeTiled") <= encoded + 2, "{encoded}");
    }

    /// The first form is taken whose conditions hold, however few programs it has. What is read tells which: each program reads all
    /// rows that it multiplies.
    fn tiles_for_few_rows(
        "FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/few.log"),
        "FAKE_CUDA_MULTIPROCESSORS" = "8"
    ) {
        let k = 128;
        for (rows, columns, programs) in [(1, 64, 8), (2, 64, 8), (3, 64, 1), (2, 128, 16), (2, 8, 1), (2, 3, 1), (1, 16, 2)] {
            let matrix = |rows: usize, columns: usize| {
                let small = (0..rows * columns).map(|i| ((i * 7) % 5) as f32 - 2.0).collect::<Vec<f32>>();
                Tensor::from_vec(small, [rows, columns]).unwrap()
            };
            same(both::<few_rows>(&[zeros(DType::F32, &[rows, columns]), matrix(rows, k), matrix(k, columns)], 0..1).unwrap());
            gpu().synchronize().unwrap();
            let log = std::fs::read_to_string(concat!(env!("CARGO_TARGET_TMPDIR"), "/few.log")).unwrap();
            let ran = log.lines().rfind(|line| line.starts_with("ran max_few_rows")).expect("a launch");
            let read = 4 * (programs * rows * k + k * columns);
            assert_eq!(ran.split(' ').nth(2), Some(&*read.to_string()), "{rows}x{columns}: {ran}");
        }
    }

    /// Tensor maps, which they alone have, are of elements of 1, 2 and 4 bytes.
    fn warpgroups_have_factors_of_several_sizes(
        "FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/sizes.log"),
        "MAX_GPU_TF32" = "1"
    ) {
        let maps = || {
            let log = std::fs::read_to_string(concat!(env!("CARGO_TARGET_TMPDIR"), "/sizes.log")).unwrap();
            log.lines().filter(|line| *line == "cuTensorMapEncodeTiled").count()
        };
        fn product<K: Kernel, T: Element>(dtype: DType, of: impl Fn(f32) -> T) {
            let matrix = |rows: usize, columns: usize| {
                let small = (0..rows * columns).map(|i| of(((i * 7) % 5) as f32)).collect::<Vec<T>>();
                Tensor::from_vec(small, [rows, columns]).unwrap()
            };
            same(both::<K>(&[zeros(dtype, &[70, 66]), matrix(70, 80), matrix(66, 80)], 0..1).unwrap());
        }
        product::<integers_along, i8>(DType::I32, |v| v as i8 - 2);
        assert_eq!(maps(), 2);
        product::<integers_along, u8>(DType::I32, |v| v as u8);
        product::<floats_along, bf16>(DType::F32, bf16::from_f32);
        product::<floats_along, f32>(DType::F32, |v| v - 2.0);
        assert_eq!(maps(), 8);
    }

    /// On sm_90a a block has several programs, the first of which waits at barriers that one thread has made.
    fn copies_that_threads_issue("FAKE_CUDA_BLOCKS" = "1") {
        let matrix = |rows: usize, columns: usize| {
            let small = (0..rows * columns).map(|i| bf16::from_f32(((i * 7) % 5) as f32 - 2.0)).collect::<Vec<_>>();
            Tensor::from_vec(small, [rows, columns]).unwrap()
        };
        let starts = Tensor::from_slice(&[64i64, 0, 100], [3]).unwrap();
        let operands = [zeros(DType::F32, &[192, 64]), matrix(192, 256), matrix(64, 256), starts];
        same(both::<routed>(&operands, 0..1).unwrap());
        let stats = gpu().tensor_map_stats();
        assert_eq!((stats.encoded, stats.refused, stats.mapped_launches, stats.unmapped_launches), (2, 0, 1, 0));
    }

    /// Without tensor maps threads copy: the results are the same, and it is said.
    fn refused_tensor_maps("FAKE_CUDA_FAIL" = "cuTensorMapEncodeTiled=1@1+") {
        let matrix = |rows: usize, columns: usize| {
            let small = (0..rows * columns).map(|i| f16::from_f32(((i * 7) % 5) as f32 - 2.0)).collect::<Vec<_>>();
            Tensor::from_vec(small, [rows, columns]).unwrap()
        };
        same(both::<halves>(&[zeros(DType::F16, &[130, 40]), matrix(130, 72), matrix(72, 40)], 0..1).unwrap());
        let stats = gpu().tensor_map_stats();
        assert_eq!((stats.encoded, stats.refused, stats.mapped_launches, stats.unmapped_launches), (0, 2, 0, 1));
    }

    /// The assembler refuses what is not ASCII, even in comments.
    fn names_that_are_not_ascii("MAX_GPU_LINES" = "1") {
        let x = Tensor::full(1.5f32, [10]).unwrap();
        same(both::<greek>(&[x, zeros(DType::F32, &[10])], 1..2).unwrap());
    }

    /// PTX is written for what the driver knows, not for what the GPU could.
    fn an_older_driver("FAKE_CUDA_VERSION" = "11040") {
        let x = Tensor::full(1.0f32, [10]).unwrap();
        same(both::<scaled_sum>(&[x.clone(), x, zeros(DType::F32, &[10])], 2..3).unwrap());
    }

    fn refused_ptx("FAKE_CUDA_FAIL" = "cuModuleLoadDataEx=218@1") {
        let bound = scaled_sum::def().bind(&[DType::F32; 3], |_| None, Form::Reference).unwrap();
        let error = bound.on_gpu(&gpu(), 1).unwrap_err();
        let GpuError::Driver(DriverError::Cuda { source, .. }) = &error else { panic!("{error:?}") };
        let CudaError::Ptx { kernel, code: 218, .. } = &**source else { panic!("{error:?}") };
        assert_eq!(kernel, "scaled_sum");
        let text = error.to_string();
        assert!(text.starts_with("load kernel on gpu:0: the PTX of kernel `scaled_sum` is not accepted: CUDA_ERROR_INVALID_PTX (218)"), "{text}");
        // It is not kept: the next try may succeed.
        assert!(bound.on_gpu(&gpu(), 1).is_ok());
    }

    /// The error has what the driver's compiler says, and the lines that it means.
    fn the_log_of_the_drivers_compiler("FAKE_CUDA_FAIL" = "ptx=218@1") {
        let bound = scaled_sum::def().bind(&[DType::F32; 3], |_| None, Form::Reference).unwrap();
        let text = bound.on_gpu(&gpu(), 1).unwrap_err().to_string();
        assert!(text.contains("\nptxas application ptx input, line 6; error   : a mistake that was asked for\n"), "{text}");
        assert!(text.contains("\n      5 | .visible .entry max_scaled_sum(\n>     6 |     .param .u64 p0, // x\n      7 |"), "{text}");
    }

    /// PTX that is refused is written again with source lines: the error names that of the kernel.
    fn a_refusal_names_the_source_line("FAKE_CUDA_FAIL" = "ptx=218@1+") {
        let bound = scaled_sum::def().bind(&[DType::F32; 3], |_| None, Form::Reference).unwrap();
        let error = bound.on_gpu(&gpu(), 1).unwrap_err();
        let GpuError::Driver(DriverError::Cuda { source, .. }) = error else { panic!("{error:?}") };
        let CudaError::Ptx { excerpt, .. } = &*source else { panic!("{source:?}") };
        assert!(excerpt.contains(&format!(".file 1 \"{}\"", file!())), "{excerpt}");
    }

    /// More than 48 KiB of shared memory has to be asked for, and there is a limit.
    fn shared_memory() {
        let [m, n, k] = [40, 50, 200];
        let a = Tensor::arange(0.0f32, (m * k) as f32, 1.0).unwrap().reshape([m, k]).unwrap();
        let b = Tensor::full(0.25f32, [k, n]).unwrap();
        let (device, host) = both::<large_tiles>(&[zeros(DType::F32, &[m, n]), a, b], 0..1).unwrap();
        let pairs = device[0].to_vec::<f32>().unwrap().into_iter().zip(host[0].to_vec::<f32>().unwrap());
        pairs.for_each(|(a, b)| assert!((a - b).abs() <= 1e-4 * b.abs(), "{a} {b}"));
        let bound = too_large_tiles::def().bind(&[DType::F32; 3], |_| None, Form::Reference).unwrap();
        let error = bound.on_gpu(&gpu(), 1).unwrap_err();
        assert!(matches!(error, GpuError::Ptx(PtxError::SharedMemory { .. })), "{error}");
        assert!(error.to_string().contains("kernel `too_large_tiles` needs"), "{error}");
    }

    /// All that a block may have without asking, and yet it is asked for: a driver may count its own part.
    fn exactly_48_kib("FAKE_CUDA_LOG" = concat!(env!("CARGO_TARGET_TMPDIR"), "/brimful.log")) {
        let target = max::kernel::ptx::Target { sm: 90, arch_specific: true };
        let written = |def: &'static KernelDef| {
            let ir = max::kernel::ir::parse(&def.ir_text_on(target, &[DType::F32], None).unwrap()).unwrap();
            max::kernel::ptx::write(&ir, max::kernel::ptx::Options::new(target)).unwrap().shared_bytes
        };
        assert_eq!((written(brimful_tiles::def()), written(large_tiles::def())), (48 << 10, 67 << 10));
        let asked = || {
            let log = std::fs::read_to_string(concat!(env!("CARGO_TARGET_TMPDIR"), "/brimful.log")).unwrap();
            log.lines().filter(|line| *line == "cuFuncSetAttribute").count()
        };
        let load = |def: &'static KernelDef, count: usize| {
            def.bind(&vec![DType::F32; count], |_| None, Form::Reference).unwrap().on_gpu(&gpu(), 2).unwrap()
        };
        load(scaled_sum::def(), 3);
        assert_eq!(asked(), 0);
        load(brimful_tiles::def(), 3);
        assert_eq!(asked(), 1);
        let (a, b) = (Tensor::full(1.0f32, [5, 100]).unwrap(), Tensor::full(0.5f32, [100, 7]).unwrap());
        same(both::<brimful_tiles>(&[zeros(DType::F32, &[5, 7]), a, b], 0..1).unwrap());
    }

    /// A block keeps rows in as much shared memory as they need, and reads them again where there is not as much. For more than
    /// 48 KiB the driver must be asked.
    fn rows_of_all_lengths("FAKE_CUDA_SHARED" = "61440") {
        for len in [0, 1, 5, 1000, 6143, 6144, 7000, 7672, 7680, 7700, 40_000] {
            let rows = |seed: usize, len: usize| {
                let values: Vec<i32> = (0..2 * len).map(|i| (i * seed % 23) as i32).collect();
                Tensor::from_vec(values, [2, len]).unwrap()
            };
            let operands = |a, b| [zeros(DType::I32, &[2, len]), a, b];
            same(both::<above_mean>(&operands(rows(7, len), rows(5, len)), 0..1).unwrap());
            // The room is that of the longer row for each.
            same(both::<above_mean>(&operands(rows(7, len), rows(5, 9000)), 0..1).unwrap());
        }
    }

    /// A GPU may have less than others of its architecture.
    fn a_gpu_with_less_shared_memory("FAKE_CUDA_SHARED" = "61440") {
        let bind = |def: &'static KernelDef| {
            def.bind(&[DType::F32; 3], |_| None, Form::Reference).unwrap().on_gpu(&gpu(), 2)
        };
        let error = bind(large_tiles::def()).unwrap_err();
        let GpuError::Ptx(PtxError::SharedMemory { kernel, bytes, limit, .. }) = &error else { panic!("{error}") };
        assert_eq!((kernel.as_str(), *bytes, *limit), ("large_tiles", 76 << 10, 61440));
        assert!(bind(brimful_tiles::def()).is_ok());
    }

    /// What is written for an architecture does not use more than that has, whatever a driver says.
    fn a_gpu_that_says_it_has_more_shared_memory("FAKE_CUDA_SHARED" = "1048576") {
        let bound = too_large_tiles::def().bind(&[DType::F32; 3], |_| None, Form::Reference).unwrap();
        let error = bound.on_gpu(&gpu(), 2).unwrap_err();
        assert!(matches!(error, GpuError::Ptx(PtxError::SharedMemory { limit: 232_448, .. })), "{error}");
    }

    fn a_refused_launch("FAKE_CUDA_FAIL" = "cuLaunchKernel=1@1") {
        let x = Tensor::full(1.0f32, [10]).unwrap();
        let error = both::<scaled_sum>(&[x.clone(), x, zeros(DType::F32, &[10])], 2..3).unwrap_err();
        assert!(matches!(error, GpuError::Driver(DriverError::Cuda { op: "launch", .. })), "{error:?}");
        gpu().synchronize().unwrap();
    }

    /// A fault of a kernel is reported when something waits for it, and nothing is read afterwards.
    fn a_kernel_that_faults("FAKE_CUDA_FAIL" = "kernel=700@1") {
        let gpu = gpu();
        let bound = scaled_sum::def().bind(&[DType::F32; 3], |_| None, Form::Reference).unwrap();
        let loaded = bound.on_gpu(&gpu, 1).unwrap();
        let x = Tensor::full(1.0f32, [10]).unwrap().to(&gpu).unwrap();
        let y = Tensor::zeros(DType::F32, [10], &gpu).unwrap();
        let (dims, strides) = (dims(&x), strides(&x));
        let arg = |x: &Tensor| TensorArg { ptr: x.data_ptr().cast_mut(), dims: &dims, strides: &strides };
        // SAFETY: arguments for each operand, over memory that only this test uses.
        unsafe { loaded.launch(&[arg(&x), arg(&x), arg(&y)], &gpu.default_stream()).unwrap() };
        let error = y.to(&Device::cpu()).unwrap_err();
        let DriverError::DeviceLost { op: "copy from device", launched, .. } = &error else { panic!("{error}") };
        assert_eq!(launched.to_string(), "`scaled_sum`");
        assert!(matches!(x.to(&Device::cpu()), Err(DriverError::DeviceLost { .. })));
    }

    /// With `MAX_GPU_SYNC`, the launch itself reports it.
    fn a_kernel_that_faults_and_is_waited_for("FAKE_CUDA_FAIL" = "kernel=700@1", "MAX_GPU_SYNC" = "1") {
        let x = Tensor::full(1.0f32, [10]).unwrap();
        let error = both::<scaled_sum>(&[x.clone(), x, zeros(DType::F32, &[10])], 2..3).unwrap_err();
        assert!(matches!(error, GpuError::Driver(DriverError::DeviceLost { op: "synchronize", .. })), "{error:?}");
    }

    fn a_host_is_no_gpu() {
        let bound = scaled_sum::def().bind(&[DType::F32; 3], |_| None, Form::Reference).unwrap();
        let error = bound.on_gpu(&Device::cpu(), 1).unwrap_err();
        assert!(matches!(error, GpuError::Driver(DriverError::NotAnAccelerator { .. })), "{error:?}");
    }
}

/// Reads the element after its own.
#[kernel(op = "next_element", dtypes(T = [f32]))]
fn next_element<T: Float>(y: Out<T, 2>, x: In<T, 1>) {
    let i = program_id(0);
    y.row(i).set(0, x.at(i + 1));
}

/// Runs `body` on the fake driver in a child of this test; gives what it wrote on standard output, and nothing to the child
/// itself.
/// What the driver's compiler says of a kernel is shown where it is asked for.
#[test]
fn the_info_log_of_the_drivers_compiler() {
    let test = "kernels::the_info_log_of_the_drivers_compiler";
    let load = || {
        let bound = scaled_sum::def().bind(&[DType::F32; 3], |_| None, Form::Reference).unwrap();
        bound.on_gpu(&gpu(), 1).unwrap();
    };
    if std::env::var_os(fake_gpu::CHILD).is_some() {
        return load();
    }
    for (value, is_shown) in [("1", true), ("0", false)] {
        let library = fake_gpu::library();
        let output = fake_gpu::child(test, Some((&library, fake_gpu::NAME)), &[("MAX_GPU_JIT_LOG", value)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let expected =
            "kernel `scaled_sum` on gpu:0: ptxas info    : Compiling entry function 'max_scaled_sum' for 'sm_90'";
        assert_eq!(said.contains(expected), is_shown, "{said}");
    }
}

fn output(test: &str, body: impl FnOnce()) -> Option<String> {
    if std::env::var_os(fake_gpu::CHILD).is_some() {
        body();
        return None;
    }
    let output = fake_gpu::child(test, Some((&fake_gpu::library(), fake_gpu::NAME)), &[]);
    assert!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The same lines on a CPU and on a GPU, but for their order, with the line of the kernel.
#[test]
fn what_kernels_print() {
    let x = Tensor::from_slice(&[0.5f32, -2.0, 1.5, 1e10, 3.0, -0.25], [2, 3]).unwrap();
    let n = Tensor::from_slice(&[7u8, 200, 9], [3]).unwrap();
    let output = output("kernels::what_kernels_print", || {
        both::<printing>(&[zeros(DType::F32, &[2, 3]), x.clone(), n], 0..1).unwrap();
        both::<printing_tile>(&[zeros(DType::F32, &[2, 3]), x], 0..1).unwrap();
    });
    let Some(output) = output else { return };
    let printed: Vec<&str> = output.lines().filter_map(|line| Some(line.split_once(file!())?.1)).collect();
    let text: Vec<&str> = printed.iter().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    let rows = ["(0, 0, 0): 100% of the sum 0 0 0", "(0, 0, 0): below 0 1 -2 200"];
    let more = ["(1, 0, 0): 100% of the sum 1 1e+10 1", "(1, 0, 0): below 0 2 -0.25 9"];
    let tile =
        ["0 0 0.5", "0 1 -2", "0 2 1.5", "1 0 1e+10", "1 1 3", "1 2 -0.25"].map(|v| format!("(0, 0, 0): tile {v}"));
    let expected: Vec<&str> = rows.into_iter().chain(more).collect();
    assert_eq!(text[..4], expected, "{output}");
    // On a GPU, in any order.
    let sorted = |lines: &[&str]| {
        let mut lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&printed[4..8]), sorted(&printed[..4]), "{output}");
    assert_eq!(text[8..14], tile, "{output}");
    assert_eq!(sorted(&printed[14..]), sorted(&printed[8..14]), "{output}");
}

/// A session that asks for it, or the environment, has accesses outside of operands reported; otherwise nothing is.
#[test]
fn accesses_outside_are_reported() {
    let run = |session: InferenceSession| {
        let graph = Graph::build("next", [f32s((3,), GPU)], |_, inputs| {
            let ty = f32s((3, 1), GPU);
            Ok(ops::custom("next_element", GPU, inputs[0].tensor()?, ty, ())?[0].clone())
        });
        let model = session.load(&graph.unwrap()).unwrap();
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]).unwrap().to(&gpu()).unwrap();
        assert_eq!(values(&model.execute(&x).unwrap()[0]), [2.0, 3.0, 0.0]);
        println!("run");
    };
    let output = output("kernels::accesses_outside_are_reported", || {
        let session = || InferenceSession::with_devices([gpu()]);
        let bounds = |bounds| GpuDebug { bounds, ..GpuDebug::default() };
        run(session());
        run(session().gpu_debug(bounds(true)));
        run(session().gpu_debug(bounds(false)));
    });
    let Some(output) = output else { return };
    let runs: Vec<&str> = output.split("run\n").collect();
    let reported = |text: &str| text.lines().filter(|line| line.contains("outside of")).count();
    assert_eq!([0, 1, 2].map(|i| reported(runs[i])), [0, 1, 0], "{output}");
    let line = runs[1].lines().find(|line| line.contains("outside of")).unwrap_or_default();
    let place =
        line.strip_suffix(" (2, 0, 0): outside of `x`: [3] of [3] is read").and_then(|place| place.rsplit_once(':'));
    assert_eq!(place.map(|(file, line)| (file, line.parse::<u32>().is_ok())), Some((file!(), true)), "{output}");
}
