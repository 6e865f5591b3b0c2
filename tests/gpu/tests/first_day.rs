//! The first day on a GPU: what can be wrong between PTX and the machine, one thing a test, in the order in which to look.
//!
//! Data are small integers, so that results are exact, and the reference is computed in `f64`. A fault loses the device for
//! the whole process, so each test wants one of its own: `benches/first_day.sh` runs them so. `MAX_REQUIRE_GPU=1` has them
//! fail where there is no GPU. On the simulated driver all of them run in one process, with smaller shapes.

#[cfg(target_os = "linux")]
#[allow(unused_macros, reason = "one test has more to do than the macro")]
#[path = "../../support/fake_gpu.rs"]
mod fake_gpu;

use half::bf16;
use max::driver::{Device, DeviceRef, DeviceStream, Tensor};
use max::dtype::{DType, Element};
use max::engine::{Float32MatmulPrecision, InferenceSession};
use max::graph::{Graph, TensorType, TensorValue, ops};
use max::kernel;
use max::kernel::{Form, Kernel, KernelLibrary, ParamArg};

use gpu_tests::{Operand, gpu, launch, load, strides};

/// Adds 1 to one element from every program.
#[kernel(op = "first_day_atomics", grid(x.dim(0)))]
fn first_day_atomics(n: Out<i32, 1>, x: In<i32, 1>) {
    let i = program_id(0);
    n.atomic_add([x.at(i) as i64], 1);
}

/// Prints its one row.
#[kernel(op = "first_day_print", dtypes(T = [f32]))]
fn first_day_print<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    x.row(i).enumerate().for_each(|(v, j)| {
        print("element", (j, v as f64));
    });
    y.row(i).write(x.row(i));
}

/// Tiles that begin where memory says, and sums that meet behind the loop: threads that compute issue the copies.
#[kernel(op = "first_day_routed", tile(BM = 4, BN = 16, BK = 16, gpu(BM = 64, BN = 64, BK = 64)), dtypes(T = [bf16]))]
fn first_day_routed<T: Float>(c: Out<f32, 2>, a: In<T, 2>, b: In<T, 2>, starts: In<i64, 1>) {
    let [m, n] = program_id();
    let first = starts.at(m);
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(first, k), b.tile::<BN, BK>(n, k).t(), acc);
    }
    let largest = acc.row_max();
    c.tile::<BM, BN>(m, n).write(acc.zip_map(largest, |x, most| x - most));
}

/// Whether this is the simulator, which takes long for what a GPU does at once.
fn is_simulated(gpu: &Device) -> bool {
    gpu.product_name().is_ok_and(|name| name == "Simulated GPU")
}

/// Small integers of both signs that follow no power of 2.
fn number(i: i64) -> f64 {
    ((i * 7 + i / 11) % 5 - 2) as f64
}

/// Bytes of numbers by their position.
fn bytes(dtype: DType, count: i64, of: impl Fn(i64) -> f64) -> Vec<u8> {
    (0..count).flat_map(|i| encode(dtype, of(i))).collect()
}

fn encode(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(value).to_le_bytes().to_vec(),
        DType::I32 => (value as i32).to_le_bytes().to_vec(),
        DType::I64 => (value as i64).to_le_bytes().to_vec(),
        DType::U8 => vec![value as u8],
        DType::I8 => (value as i8).to_le_bytes().to_vec(),
        // The sign, the exponents of 1 and 2, and digits that are 0.
        DType::F8E4M3FN | DType::F8E5M2 => {
            let digits = if dtype == DType::F8E4M3FN { 3 } else { 2 };
            let bias = (1 << (6 - digits)) - 1;
            let exponent = match value.abs() {
                0.0 => 0,
                1.0 => bias,
                2.0 => bias + 1,
                other => panic!("no byte of {other}"),
            };
            vec![u8::from(value < 0.0) << 7 | exponent << digits]
        }
        other => panic!("no bytes of {other}"),
    }
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let size = dtype.size_in_bytes();
    let one = |b: &[u8]| match dtype {
        DType::F64 => f64::from_le_bytes(b.try_into().expect("8 bytes")),
        DType::F32 => f32::from_le_bytes(b.try_into().expect("4 bytes")).into(),
        DType::BF16 => bf16::from_le_bytes(b.try_into().expect("2 bytes")).into(),
        DType::F16 => half::f16::from_le_bytes(b.try_into().expect("2 bytes")).into(),
        DType::I32 => i32::from_le_bytes(b.try_into().expect("4 bytes")).into(),
        DType::U8 => b[0].into(),
        other => panic!("no numbers of {other}"),
    };
    bytes.chunks_exact(size).map(one).collect()
}

/// An operand of [`number`]s: its dims, strides and first element.
struct Data {
    dtype: DType,
    dims: Vec<i64>,
    strides: Vec<i64>,
    start: i64,
}

impl Data {
    fn dense(dtype: DType, dims: &[i64]) -> Data {
        Data { dtype, dims: dims.to_vec(), strides: strides(dims), start: 0 }
    }

    /// Rows with a gap behind them, which tensor maps do not have.
    fn with_gap(dtype: DType, dims: &[i64]) -> Data {
        let mut wider = dims.to_vec();
        *wider.last_mut().expect("an axis") += 1;
        Data { strides: strides(&wider), start: 1, ..Data::dense(dtype, dims) }
    }

    fn count(&self) -> i64 {
        1 + self.start + self.dims.iter().zip(&self.strides).map(|(dim, stride)| (dim - 1) * stride).sum::<i64>()
    }

    fn operand(&self, gpu: &Device) -> Operand {
        let bytes = bytes(self.dtype, self.count(), number);
        let start = self.start as usize * self.dtype.size_in_bytes();
        Operand::within(gpu, &bytes, start, &self.dims, &self.strides).expect("device memory")
    }

    fn at(&self, index: &[i64]) -> f64 {
        number(self.start + index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum::<i64>())
    }
}

/// Runs a kernel of the library into a result of its own.
fn run(
    gpu: &Device,
    kernel: &str,
    result: (DType, &[i64]),
    data: &[Data],
    params: &[(&str, ParamArg<'_>)],
) -> Vec<f64> {
    let def = KernelLibrary::linked().table(kernel).expect("a built-in kernel");
    let dtypes: Vec<DType> = [result.0].into_iter().chain(data.iter().map(|data| data.dtype)).collect();
    let param = |name: &str| params.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    let bound = def.bind(&dtypes, param, Form::Reference).expect("operands that the kernel takes");
    let rank = data.iter().map(|data| data.dims.len()).max().unwrap_or(1);
    let loaded = load(gpu, &bound, rank).expect("PTX that the driver takes");
    let mut operands: Vec<Operand> = data.iter().map(|data| data.operand(gpu)).collect();
    let out = Data::dense(result.0, result.1);
    // The result comes first, but for elementwise kernels.
    let at = if kernel == "add" { operands.len() } else { 0 };
    operands.insert(at, out.operand(gpu));
    launch(gpu, &loaded, &operands).expect("a launch");
    decode(result.0, &operands[at].bytes().expect("no fault"))
}

#[track_caller]
fn same(got: &[f64], want: impl IntoIterator<Item = f64>, what: &str) {
    let want: Vec<f64> = want.into_iter().collect();
    assert_eq!(got.len(), want.len(), "{what}");
    if let Some(i) = got.iter().zip(&want).position(|(a, b)| (a - b).abs() > 2e-5 * b.abs().max(1.0)) {
        let wrong = got.iter().zip(&want).filter(|(a, b)| a != b).count();
        panic!("{what}: element {i} is {}, want {}; {wrong} of {} differ", got[i], want[i], got.len());
    }
}

/// A product, of which the second factor is transposed or not; `gap` says which factors have no tensor map.
#[track_caller]
fn product(gpu: &Device, kernel: &str, dtype: DType, [m, n, k]: [i64; 3], [gap_a, gap_b]: [bool; 2]) {
    let transposed = kernel.contains("transposed");
    let of = |gap: bool, dims: [i64; 2]| if gap { Data::with_gap(dtype, &dims) } else { Data::dense(dtype, &dims) };
    let data = [of(gap_a, [m, k]), of(gap_b, if transposed { [n, k] } else { [k, n] })];
    let at = |i: i64| {
        let (row, column) = (i / n, i % n);
        let b = |k: i64| if transposed { [column, k] } else { [k, column] };
        let sum: f64 = (0..k).map(|k| data[0].at(&[row, k]) * data[1].at(&b(k))).sum();
        decode(dtype, &encode(dtype, sum))[0]
    };
    let got = run(gpu, kernel, (dtype, &[m, n]), &data, &[]);
    // Of large products some elements, in all rows and columns of a tile.
    let step = ((m * n * k) >> 27).max(1) | 1;
    let some: Vec<i64> = (0..m * n).step_by(step as usize).collect();
    let found: Vec<f64> = some.iter().map(|i| got[*i as usize]).collect();
    same(&found, some.into_iter().map(at), &format!("{kernel} {dtype} {m}x{n}x{k}, each {step}th element"));
}

/// Launches of kernels that take tensor maps, with and without them, that something makes.
fn launches(gpu: &Device, run: impl FnOnce()) -> (u64, u64) {
    let before = gpu.tensor_map_stats();
    run();
    let after = gpu.tensor_map_stats();
    assert_eq!(after.refused, before.refused, "the driver refuses tensor maps");
    (after.mapped_launches - before.mapped_launches, after.unmapped_launches - before.unmapped_launches)
}

/// A graph of one op on the GPU, and its result.
fn graph(
    gpu: &Device,
    precision: Float32MatmulPrecision,
    inputs: &[Tensor],
    build: impl Fn(&[TensorValue]) -> TensorValue,
) -> Tensor {
    let device = DeviceRef::from(gpu);
    let ty =
        |x: &Tensor| TensorType::new(x.dtype(), x.shape().iter().map(|dim| *dim as i64).collect::<Vec<i64>>(), device);
    let graph = Graph::build("first_day", inputs.iter().map(ty).collect::<Vec<_>>(), |_, values| {
        let values: Vec<TensorValue> = values.iter().map(|v| v.tensor().cloned()).collect::<Result<_, _>>()?;
        Ok(build(&values))
    });
    let session = InferenceSession::with_devices([*gpu]).float32_matmul_precision(precision);
    let model = session.load(&graph.expect("a graph")).expect("a model");
    let inputs: Vec<Tensor> = inputs.iter().map(|x| x.to(gpu).expect("device memory")).collect();
    model.execute(&inputs).expect("a run").remove(0)
}

fn floats(x: &Tensor) -> Vec<f64> {
    let x = x.to(&Device::cpu()).expect("no fault");
    x.to_vec::<f32>().expect("floats").into_iter().map(f64::from).collect()
}

fn tensor<T: Element>(dims: [usize; 2], of: impl Fn(f64) -> T) -> Tensor {
    let count = (dims[0] * dims[1]) as i64;
    Tensor::from_vec((0..count).map(|i| of(number(i))).collect(), dims).expect("a tensor")
}

/// The table of the driver's functions, contexts, streams: `driver/cuda/api.rs`.
#[test]
fn a01_memory() {
    let Some(gpu) = gpu() else { return };
    let largest = if is_simulated(&gpu) { 1 << 20 } else { 1 << 30 };
    let stream = DeviceStream::new(&gpu).expect("a stream");
    for size in [1usize, 257, 1 << 16, largest] {
        let host: Vec<u8> = (0..size).map(|i| (i * 31 % 251) as u8).collect();
        let x = Tensor::from_slice(&host, [size]).expect("a tensor");
        let back = |x: &Tensor| x.to(&Device::cpu()).expect("no fault").to_vec::<u8>().expect("bytes");
        let there = x.to(&gpu).expect("device memory");
        assert!(back(&there.copy().expect("a copy")) == host, "{size} bytes");
        assert!(back(&x.to_stream(&stream).expect("device memory").to(&gpu).expect("a copy")) == host, "{size} bytes");
        let mut pinned = Tensor::zeros_pinned(DType::U8, [size], &gpu).expect("pinned memory");
        pinned.inplace_copy_from(&there).expect("a copy");
        assert!(back(&pinned) == host, "{size} bytes, pinned");
        assert!(back(&Tensor::zeros(DType::U8, [size], &gpu).expect("device memory")).iter().all(|byte| *byte == 0));
    }
    assert!(gpu.memory().expect("numbers").0 > 0);
}

/// How a kernel is launched, and vectorized access: `memory/vectorize.rs`.
#[test]
fn a02_add() {
    let Some(gpu) = gpu() else { return };
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        for n in [1, 7, 4096, 4099] {
            let data = || [Data::dense(dtype, &[n]), Data { start: 3, ..Data::dense(dtype, &[n]) }];
            let want = (0..n).map(|i| data()[0].at(&[i]) + data()[1].at(&[i]));
            same(&run(&gpu, "add", (dtype, &[n]), &data(), &[]), want, &format!("add {dtype} {n}"));
        }
        let data = || {
            [
                Data { strides: vec![2], ..Data::dense(dtype, &[1000]) },
                Data { strides: vec![0], ..Data::dense(dtype, &[1000]) },
            ]
        };
        let want = (0..1000).map(|i| data()[0].at(&[i]) + data()[1].at(&[i]));
        same(&run(&gpu, "add", (dtype, &[1000]), &data(), &[]), want, "add of a stride of 2, and of one element");
    }
}

/// Shuffles, barriers, rows in shared memory: `rows/`.
#[test]
fn a03_rows() {
    let Some(gpu) = gpu() else { return };
    for n in [7, 256, 4096] {
        let x = || Data::dense(DType::F32, &[5, n]);
        let want = (0..5).map(|row| (0..n).map(|i| x().at(&[row, i])).sum());
        same(&run(&gpu, "sum", (DType::F32, &[5, 1]), &[x()], &[]), want, &format!("sum of rows of {n}"));
        softmax(&gpu, 5, n);
    }
}

#[track_caller]
fn softmax(gpu: &Device, rows: i64, n: i64) {
    let x = || Data::dense(DType::F32, &[rows, n]);
    let total = |row| (0..n).map(|i| x().at(&[row, i]).exp()).sum::<f64>();
    let totals: Vec<f64> = (0..rows).map(total).collect();
    let want = (0..rows * n).map(|i| x().at(&[i / n, i % n]).exp() / totals[(i / n) as usize]);
    same(&run(gpu, "softmax", (DType::F32, &[rows, n]), &[x()], &[]), want, &format!("softmax of rows of {n}"));
}

/// More than 48 KiB of shared memory, and rows that do not fit: `driver/cuda/module.rs`.
#[test]
fn a04_shared_memory() {
    let Some(gpu) = gpu() else { return };
    let sizes: &[(i64, i64)] =
        if is_simulated(&gpu) { &[(1, 20_000)] } else { &[(3, 20_000), (2, 58_000), (2, 70_000)] };
    sizes.iter().for_each(|(rows, n)| softmax(&gpu, *rows, *n));
}

/// Atomics, all on one address: `memory/atomic.rs`.
#[test]
fn a05_atomics() {
    let Some(gpu) = gpu() else { return };
    let n = if is_simulated(&gpu) { 300 } else { 100_000 };
    let bound = first_day_atomics::def().bind(&[DType::I32; 2], |_| None, Form::Reference).expect("a kernel");
    let operands = [Operand::new(&gpu, &[0; 8], &[2]), Operand::new(&gpu, &bytes(DType::I32, n, |_| 1.0), &[n])];
    let operands = operands.map(|operand| operand.expect("device memory"));
    launch(&gpu, &load(&gpu, &bound, 1).expect("PTX that the driver takes"), &operands).expect("a launch");
    same(&decode(DType::I32, &operands[0].bytes().expect("no fault")), [0.0, n as f64], "atomics");
}

/// How `vprintf` is called: `ptx/print.rs`. The log has to show `element 0 -2` and so on.
#[test]
fn a06_print() {
    let Some(gpu) = gpu() else { return };
    let bound = first_day_print::def().bind(&[DType::F32; 2], |_| None, Form::Reference).expect("a kernel");
    let row = bytes(DType::F32, 3, number);
    let operands = [Operand::new(&gpu, &[0; 12], &[1, 3]), Operand::new(&gpu, &row, &[1, 3])];
    let operands = operands.map(|operand| operand.expect("device memory"));
    launch(&gpu, &load(&gpu, &bound, 2).expect("PTX that the driver takes"), &operands).expect("a launch");
    assert_eq!(operands[0].bytes().expect("no fault"), row);
}

/// `cp.async` and fused multiply-adds: `memory/pipeline.rs`.
#[test]
fn b01_matmul_f32() {
    let Some(gpu) = gpu() else { return };
    product(&gpu, "matmul", DType::F32, [64, 64, 64], [false; 2]);
    let odd = if is_simulated(&gpu) { [33, 70, 45] } else { [127, 1000, 513] };
    product(&gpu, "matmul", DType::F32, odd, [false; 2]);
    product(&gpu, "matmul", DType::F32, odd, [true; 2]);
}

/// `mma.sync` and `ldmatrix` of bytes: `mma/int8.rs`.
#[test]
fn b02_matmul_bytes() {
    let Some(gpu) = gpu() else { return };
    for [m, n, k] in [[64, 64, 64], [65, 70, 97]] {
        let data = [Data::dense(DType::I8, &[m, k]), Data::dense(DType::I8, &[k, n])];
        let got = run(&gpu, "matmul_integer", (DType::I32, &[m, n]), &data, &[]);
        let at = |i: i64| (0..k).map(|k| data[0].at(&[i / n, k]) * data[1].at(&[k, i % n])).sum::<f64>();
        same(&got, (0..m * n).map(at), &format!("matmul_integer {m}x{n}x{k}"));
    }
}

/// Tensor cores on 8-bit floats, and how they are loaded for it: `mma/int8.rs`.
#[test]
fn b03_matmul_float8() {
    let Some(gpu) = gpu() else { return };
    for dtype in [DType::F8E4M3FN, DType::F8E5M2] {
        // More than one tile, and steps in which sums are promoted.
        for [m, n, k] in [[64, 64, 64], [65, 70, 97], [130, 140, 300]] {
            let one = || Data { dims: vec![1], strides: vec![1], start: 1, dtype: DType::F32 };
            let data = [Data::dense(dtype, &[m, k]), Data::dense(dtype, &[n, k]), one(), one()];
            let got = run(&gpu, "matmul_static_scaled_float8", (DType::BF16, &[m, n]), &data, &[]);
            let scale = data[2].at(&[0]) * data[3].at(&[0]);
            let at = |i: i64| {
                let sum: f64 = (0..k).map(|k| data[0].at(&[i / n, k]) * data[1].at(&[i % n, k])).sum();
                decode(DType::BF16, &encode(DType::BF16, sum * scale))[0]
            };
            same(&got, (0..m * n).map(at), &format!("matmul_static_scaled_float8 {dtype} {m}x{n}x{k}"));
        }
    }
}

/// `mma.sync` of tf32, and on sm_90a its `wgmma`: `mma/tf32.rs`.
#[test]
fn b04_matmul_tf32() {
    let Some(gpu) = gpu() else { return };
    for transposed in [false, true] {
        for [m, n, k] in [[64, 64, 64], [65, 70, 97]] {
            let b_dims = if transposed { [n, k] } else { [k, n] };
            let (a, b) = (tensor([m, k], |v| v as f32), tensor(b_dims, |v| v as f32));
            let b_at = |row: usize, column: usize| if transposed { column * k + row } else { row * n + column };
            let want = (0..m * n).map(|i| {
                (0..k).map(|k_| number((i / n * k + k_) as i64) * number(b_at(k_, i % n) as i64)).sum::<f64>()
            });
            let result = graph(&gpu, Float32MatmulPrecision::High, &[a, b], |x| {
                let b = if transposed { x[1].t().expect("a view") } else { x[1].clone() };
                ops::matmul(&x[0], b).expect("a product")
            });
            same(&floats(&result), want, &format!("tf32 {m}x{n}x{k}, transposed: {transposed}"));
        }
    }
}

/// `wgmma` of factors along the sum, that threads copy: descriptors, the proxy fence, fragments (`mma/wgmma.rs`).
#[test]
fn c01_wgmma_along() {
    let Some(gpu) = gpu() else { return };
    product(&gpu, "matmul_transposed", DType::BF16, [64, 64, 33], [true; 2]);
}

/// The same over several stages.
#[test]
fn c02_wgmma_along_in_stages() {
    let Some(gpu) = gpu() else { return };
    for k in [64, 97, 520] {
        product(&gpu, "matmul_transposed", DType::BF16, [64, 64, k], [true; 2]);
    }
}

/// `wgmma` with a factor across the sum, that threads copy: the strides of descriptors.
#[test]
fn c03_wgmma_across() {
    let Some(gpu) = gpu() else { return };
    product(&gpu, "matmul", DType::BF16, [64, 65, 64], [false; 2]);
    product(&gpu, "matmul", DType::BF16, [64, 64, 64], [true; 2]);
}

/// TMA: tensor maps, swizzles, `mbarrier`s (`memory/tma.rs`, `driver/cuda/tensor_map.rs`).
#[test]
fn d01_tma() {
    let Some(gpu) = gpu() else { return };
    for kernel in ["matmul_transposed", "matmul"] {
        let made = launches(&gpu, || product(&gpu, kernel, DType::BF16, [64, 64, 64], [false; 2]));
        let has_tma = gpu.architecture_name().is_ok_and(|name| name == "sm_90");
        assert_eq!(made, if has_tma { (1, 0) } else { (0, 0) }, "launches of {kernel} with and without tensor maps");
    }
}

/// Boxes that reach outside: zeros there, and coordinates.
#[test]
fn d04_tma_outside() {
    let Some(gpu) = gpu() else { return };
    for dims in [[136, 264, 520], [1, 8, 8], [70, 40, 72]] {
        product(&gpu, "matmul", DType::BF16, dims, [false; 2]);
        product(&gpu, "matmul_transposed", DType::BF16, dims, [false; 2]);
    }
}

/// Warp specialization: registers, the ring's parity (`warp_specialization.rs`). Steps below, at and beyond the stages.
#[test]
fn e01_roles() {
    let Some(gpu) = gpu() else { return };
    let (size, ks): (i64, &[i64]) =
        if is_simulated(&gpu) { (136, &[64, 320]) } else { (2048, &[64, 192, 256, 320, 4096]) };
    for k in ks {
        product(&gpu, "matmul", DType::BF16, [size, size, *k], [false; 2]);
    }
    if !is_simulated(&gpu) {
        // Several programs a block.
        product(&gpu, "matmul", DType::BF16, [8192, 2048, 256], [false; 2]);
    }
}

/// The same where threads copy: then consumers do.
#[test]
fn e02_roles_without_maps() {
    let Some(gpu) = gpu() else { return };
    let size = if is_simulated(&gpu) { 136 } else { 2048 };
    product(&gpu, "matmul", DType::BF16, [size, size, 320], [true; 2]);
}

/// Rare races: the same bits every time.
#[test]
fn e03_roles_again_and_again() {
    let Some(gpu) = gpu() else { return };
    let (size, times) = if is_simulated(&gpu) { (136, 2) } else { (2048, 2000) };
    let def = KernelLibrary::linked().get("matmul").expect("a built-in kernel");
    let bound = def.bind(&[DType::BF16; 3], |_| None, Form::Reference).expect("a kernel");
    let loaded = load(&gpu, &bound, 2).expect("PTX that the driver takes");
    let operands = [size, size, size].map(|k| Data::dense(DType::BF16, &[size, k]).operand(&gpu));
    let mut first = None;
    for time in 0..times {
        launch(&gpu, &loaded, &operands).expect("a launch");
        if time % 100 == 0 || time + 1 == times {
            let bytes = operands[0].bytes().expect("no fault");
            assert!(*first.get_or_insert_with(|| bytes.clone()) == bytes, "launch {time} gives another result");
        }
    }
}

/// Attention: products without a producer, weights by way of shared memory.
#[test]
fn f01_attention() {
    let Some(gpu) = gpu() else { return };
    let lengths: &[i64] = if is_simulated(&gpu) { &[1, 65] } else { &[1, 64, 65, 1024] };
    for (d, causal, n) in [64, 128]
        .into_iter()
        .flat_map(|d| [false, true].map(|c| (d, c)))
        .flat_map(|(d, c)| lengths.iter().map(move |n| (d, c, *n)))
    {
        // Two heads of queries share one of keys.
        let of = |heads: i64| Data::dense(DType::F32, &[heads, n, d]);
        let (q, k, v) = (of(2), of(1), of(1));
        let scale = 1.0 / 64.0;
        let mut want = Vec::new();
        for (head, row) in (0..2).flat_map(|head| (0..n).map(move |row| (head, row))) {
            let end = if causal { row + 1 } else { n };
            let score = |j: i64| (0..d).map(|i| q.at(&[head, row, i]) * k.at(&[0, j, i])).sum::<f64>() * scale;
            let weights: Vec<f64> = (0..end).map(|j| score(j).exp()).collect();
            let total: f64 = weights.iter().sum();
            want.extend((0..d).map(|i| (0..end).map(|j| weights[j as usize] * v.at(&[0, j, i])).sum::<f64>() / total));
        }
        let params = [("scale", ParamArg::Float(scale)), ("causal", ParamArg::Bool(causal))];
        let no_mask = Data::dense(DType::F32, &[1; 3]);
        let got = run(&gpu, "attention", (DType::F32, &[2, n, d]), &[of(2), of(1), of(1), no_mask], &params);
        same(&got, want, &format!("attention d {d}, n {n}, causal: {causal}"));
    }
}

/// `mbarrier`s that threads wait at, made before; without a producer: `analysis/hazards.rs`.
#[test]
fn f02_routed() {
    let Some(gpu) = gpu() else { return };
    let (m, n, k) = (192, 64, 256);
    let (a, b) = (Data::dense(DType::BF16, &[m, k]), Data::dense(DType::BF16, &[n, k]));
    let starts = [64i64, 0, 100];
    let bound =
        first_day_routed::def().bind(&[DType::F32, DType::BF16, DType::BF16, DType::I64], |_| None, Form::Reference);
    let loaded = load(&gpu, &bound.expect("a kernel"), 2).expect("PTX that the driver takes");
    let starts_bytes = bytes(DType::I64, 3, |i| starts[i as usize] as f64);
    let operands = [
        Data::dense(DType::F32, &[m, n]).operand(&gpu),
        a.operand(&gpu),
        b.operand(&gpu),
        Operand::new(&gpu, &starts_bytes, &[3]).expect("device memory"),
    ];
    launch(&gpu, &loaded, &operands).expect("a launch");
    let row = |i: i64| {
        let from = starts[(i / 64) as usize] + i % 64;
        let at = |k: i64| if from < m { a.at(&[from, k]) } else { 0.0 };
        let sums: Vec<f64> = (0..n).map(|j| (0..k).map(|k| at(k) * b.at(&[j, k])).sum()).collect();
        let most = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        sums.into_iter().map(move |sum| sum - most)
    };
    same(&decode(DType::F32, &operands[0].bytes().expect("no fault")), (0..m).flat_map(row), "routed");
}

/// Captures and replays, while another thread allocates: `driver/cuda/stream.rs`, `engine/execution/capture.rs`.
#[test]
fn g01_captures() {
    let Some(gpu) = gpu() else { return };
    let times = if is_simulated(&gpu) { 3 } else { 1000 };
    let device = DeviceRef::from(&gpu);
    let graph = Graph::build("captured", [TensorType::new(DType::F32, (64, 64), device)], |_, x| {
        ops::softmax(ops::matmul(&x[0], &x[0])?, -1)
    });
    let model = InferenceSession::with_devices([gpu]).load(&graph.expect("a graph")).expect("a model");
    let x = tensor([64, 64], |v| v as f32 / 64.0).to(&gpu).expect("device memory");
    let want = floats(&model.execute(&x).expect("a run")[0]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for size in 1..50 {
                drop(Tensor::zeros(DType::U8, [size << 12], &gpu).expect("device memory"));
                gpu.release_cached_memory();
            }
        });
        model.capture(1, &x).expect("a capture");
        for _ in 0..times {
            same(&floats(&model.replay(1, &x).expect("a replay")[0]), want.iter().copied(), "a replay");
        }
    });
    model.debug_verify_replay(1, &x).expect("the same launches");
}

/// Memory that runs out is an error, and the device goes on.
#[test]
fn g02_out_of_memory() {
    let Some(gpu) = gpu() else { return };
    let (_, total) = gpu.memory().expect("numbers");
    let mut kept = Vec::new();
    let error = loop {
        match Tensor::zeros(DType::U8, [total / 8], &gpu) {
            Ok(x) => kept.push(x),
            Err(error) => break error.to_string(),
        }
        assert!(kept.len() <= 8, "more memory than there is");
    };
    assert!(error.contains("memory"), "{error}");
    drop(kept);
    gpu.release_cached_memory();
    softmax(&gpu, 2, 33);
}

/// A kernel that reads where nobody has memory loses the device, and the error says so, and which kernel it was: it has to be
/// the last test of a process.
#[test]
fn g03_illegal_access() {
    let Some(gpu) = gpu() else { return };
    let x = Data::dense(DType::F32, &[64]);
    let def = KernelLibrary::linked().get("relu").expect("a built-in kernel");
    let bound = def.bind(&[DType::F32; 2], |_| None, Form::Reference).expect("operands that the kernel takes");
    let loaded = load(&gpu, &bound, 1).expect("PTX that the driver takes");
    let (inside, result) = (x.operand(&gpu), x.operand(&gpu));
    // Beyond all memory of the device, whose addresses have 49 bits.
    let outside = Operand { start: 1 << 52, ..inside };
    let failed = match launch(&gpu, &loaded, &[outside, result]) {
        Ok(()) => gpu.synchronize().expect_err("a fault"),
        // With `MAX_GPU_SYNC=1`.
        Err(error) => error,
    };
    let text = failed.to_string();
    assert!(text.contains("is lost") && text.contains("`relu`"), "{text}");
    let later = Tensor::zeros(DType::U8, [1 << 20], &gpu).expect_err("nothing runs on a lost device").to_string();
    assert!(later.contains("is lost"), "{later}");
}

/// All of them on the simulated GPU, where the sources of this test are at hand.
#[cfg(target_os = "linux")]
#[test]
fn on_the_simulated_gpu() {
    if !std::path::Path::new(env!("CARGO_MANIFEST_DIR")).exists() {
        println!("SKIPPED: this is not where the test was built");
        return;
    }
    // `on_fake_gpu` takes the name within the crate from what stands behind its own.
    fake_gpu::on_fake_gpu("first_day::on_the_simulated_gpu", &[("MAX_REQUIRE_GPU", "1")], || {
        let all: [fn(); 21] = [
            a01_memory,
            a02_add,
            a03_rows,
            a04_shared_memory,
            a05_atomics,
            a06_print,
            b01_matmul_f32,
            b02_matmul_bytes,
            b03_matmul_float8,
            b04_matmul_tf32,
            c01_wgmma_along,
            c02_wgmma_along_in_stages,
            c03_wgmma_across,
            d01_tma,
            d04_tma_outside,
            e01_roles,
            e02_roles_without_maps,
            e03_roles_again_and_again,
            f01_attention,
            f02_routed,
            g01_captures,
        ];
        all.iter().for_each(|test| test());
        g02_out_of_memory();
        g03_illegal_access();
    });
}
