//! What a fuzzer calls: each entry takes any bytes as something that a user may hand over, and returns. An error is as good as a
//! result; a panic, an abort and a hang are not.

use std::io::Write as _;
use std::path::Path;

use max::driver::{Device, DeviceRef, SliceIndex, Tensor};
use max::dtype::DType;
use max::engine::InferenceSession;
use max::graph::weights::load_weights;
use max::graph::{Graph, Parameters, TensorType, ops};
use max::kernel;
use max::kernel::ir;

/// What a fuzzer calls with its bytes.
pub type Entry = fn(&[u8]);

/// By the names of their folders of saved inputs.
pub const ALL: [(&str, Entry); 7] = [
    ("ir_text", ir_text),
    ("header", header),
    ("index", index),
    ("arguments", arguments),
    ("gguf", gguf),
    ("pytorch", pytorch),
    ("graph_text", graph_text),
];

/// Bytes as the IR of a kernel: what is IR prints and reads as itself.
pub fn ir_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // It does what `parse` does, and counts lines.
    if let Err(error) = ir::parse_file("fuzz.ir", &text) {
        assert!(!error.to_string().is_empty());
    }
    let Ok(kernel) = ir::parse(&text) else { return };
    if let Err(errors) = ir::verify(&kernel) {
        assert!(!errors.to_string().is_empty());
        return;
    }
    let printed = kernel.to_string();
    let again = ir::parse(&printed).unwrap_or_else(|error| panic!("{error}:\n{printed}"));
    assert_eq!(again.to_string(), printed);
}

/// Reads all weights of a file, whatever its format.
fn weights(path: &Path) {
    let Ok(weights) = load_weights([path]) else { return };
    for name in weights.names() {
        assert_eq!(weights.ty(name).is_ok(), weights.weight(name, DeviceRef::CPU).is_ok());
        if let (Ok(ty), Ok(tensor)) = (weights.ty(name), weights.tensor(name)) {
            assert_eq!((ty.dtype, &*ty.shape), (tensor.dtype(), tensor.shape()));
        }
    }
}

/// Bytes as a GGUF file, whether they begin as one or not.
pub fn gguf(bytes: &[u8]) {
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = folder.path().join("fuzz.gguf");
    let begun = [b"GGUF\x03\0\0\0", bytes.get(8..).unwrap_or_default()].concat();
    for file in [bytes, &begun] {
        if std::fs::write(&path, file).is_ok() {
            weights(&path);
        }
    }
}

/// Bytes as a file of `torch.save`, and as the pickle in one, beside a storage.
pub fn pytorch(bytes: &[u8]) {
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = folder.path().join("fuzz.pt");
    let mut around = Vec::new();
    let mut archive = rawzip::ZipArchiveWriter::new(&mut around);
    for (name, data) in [("a/data.pkl", bytes), ("a/data/0", &[1; 64])] {
        let Ok((mut entry, config)) = archive.new_file(name).start() else { return };
        let mut writer = config.wrap(&mut entry);
        let written = writer.write_all(data).is_ok();
        let Some((_, descriptor)) = writer.finish().ok().filter(|_| written) else { return };
        if entry.finish(descriptor).is_err() {
            return;
        }
    }
    if archive.finish().is_err() {
        return;
    }
    for file in [bytes, &around] {
        if std::fs::write(&path, file).is_ok() {
            weights(&path);
        }
    }
}

/// Bytes as the text of a graph: what is one prints and reads as itself.
pub fn graph_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Graph::parse(&text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(graph) => {
            let printed = graph.to_string();
            // Constants of many elements are not in the text.
            if !printed.contains("...") {
                let again = Graph::parse(&printed).unwrap_or_else(|error| panic!("{error}:\n{printed}"));
                assert_eq!(again.to_string(), printed);
            }
        }
    }
}

/// Bytes as a file of weights. Two of them are the header's length, so that changes reach the header; behind that stand 16 bytes of
/// data.
pub fn header(bytes: &[u8]) {
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = folder.path().join("fuzz.safetensors");
    let whole = [&(bytes.len() as u64).to_le_bytes()[..], bytes, &[1; 16]].concat();
    for file in [bytes, &whole] {
        if std::fs::write(&path, file).is_ok() {
            weights(&path);
        }
    }
}

/// Bytes as an index, beside a file with the weights `a` and `b`.
pub fn index(bytes: &[u8]) {
    let Ok(folder) = tempfile::tempdir() else { return };
    let header =
        br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"I8","shape":[],"data_offsets":[1,2]}}"#;
    let shard = [&(header.len() as u64).to_le_bytes()[..], header, &[1; 2]].concat();
    let path = folder.path().join("fuzz.index.json");
    if std::fs::write(folder.path().join("1"), shard).is_ok() && std::fs::write(&path, bytes).is_ok() {
        weights(&path);
    }
}

#[kernel(op = "fuzz_add", dtypes(T = [f32, i64]))]
fn add<T: Number>(x: T, y: T) -> T {
    x + y
}

#[kernel(op = "fuzz_first", dtypes(T = [f32, i64]))]
fn first<T: Number>(y: Out<T, 1>, x: In<T, 3>) {
    let i = program_id(0);
    y.set(i, x.at(0, i, 0) + T::from_i64(1));
}

#[kernel(op = "fuzz_shifted", dtypes(T = [f32, i64]))]
fn shifted<T: Number>(y: Out<T, 2>, x: In<T, 2>, #[param(default = 3)] by: i64) {
    let row = program_id(0);
    y.row(row).write(x.row(row).map(|v| v * T::from_i64(by)));
}

#[kernel(op = "fuzz_product", tile(BM = 4, BN = 16, BK = 16), dtypes(T = [f32]))]
fn product<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc.cast());
}

/// Choices, made by bytes.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> usize {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                usize::from(*byte)
            }
            None => 0,
        }
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.byte() % all.len()].clone()
    }

    fn dtype(&mut self) -> DType {
        self.of(&[DType::F32, DType::F32, DType::F32, DType::I64, DType::Bool, DType::BF16])
    }

    fn size(&mut self) -> i64 {
        self.of(&[0, 1, 2, 3, 4, 16, 17, 64, 1 << 31, 1 << 40, 1 << 62, i64::MAX, -1, i64::MIN])
    }

    fn shape(&mut self) -> Vec<i64> {
        let rank = self.of(&[2, 1, 3, 2, 0, 7]);
        (0..rank).map(|_| self.size()).collect()
    }

    /// A tensor with any strides, or none where there would be too much memory.
    fn tensor(&mut self, dtype: DType, shape: &[i64]) -> Option<Tensor> {
        let shape = shape.iter().map(|size| usize::try_from(*size).ok()).collect::<Option<Vec<usize>>>()?;
        let elements = shape.iter().filter(|size| **size > 0).try_fold(1, |all: usize, size| all.checked_mul(*size));
        let is_small = elements.is_some_and(|elements| elements <= 1 << 14) || shape.contains(&0);
        let tensor = match self.byte() % 4 {
            0 => Tensor::zeros(dtype, [1], &Device::cpu()).and_then(|one| one.broadcast_to(&shape)),
            _ if !is_small => return None,
            1 => Tensor::zeros(dtype, &shape, &Device::cpu())
                .and_then(|tensor| tensor.slice(&vec![SliceIndex::REVERSED; shape.len()])),
            2 if shape.len() > 1 => {
                let swapped: Vec<usize> = shape.iter().rev().copied().collect();
                let axes: Vec<isize> = (0..shape.len() as isize).rev().collect();
                Tensor::zeros(dtype, swapped, &Device::cpu()).and_then(|tensor| tensor.permute(&axes))
            }
            _ => Tensor::zeros(dtype, &shape, &Device::cpu()),
        };
        tensor.ok()
    }
}

/// Bytes as the arguments of kernels: dtypes, shapes and parameters when a graph is built, and tensors of any strides when its
/// model is executed.
pub fn arguments(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let name = choices.of(&["fuzz_add", "fuzz_first", "fuzz_shifted", "fuzz_product", "fuzz_none"]);
    let count = choices.of(&[2, 1, 2, 0, 3]);
    let mut inputs: Vec<(DType, Vec<i64>)> = (0..count).map(|_| (choices.dtype(), choices.shape())).collect();
    if choices.byte() % 2 == 1
        && let Some(first) = inputs.first().cloned()
    {
        inputs.iter_mut().for_each(|input| *input = first.clone());
    }
    let result = if choices.byte() % 2 == 0 { inputs.first().cloned() } else { None };
    let (dtype, shape) = result.unwrap_or_else(|| (choices.dtype(), choices.shape()));
    let by = choices.size();
    let parameters = match choices.byte() % 6 {
        0..3 => Parameters::new(),
        3 => Parameters::from([("by", by)]),
        4 => Parameters::from([("by", "text")]),
        _ => Parameters::from([("other", by)]),
    };
    let ty = |(dtype, shape): &(DType, Vec<i64>)| TensorType::new(*dtype, shape.as_slice(), DeviceRef::CPU);
    let graph =
        Graph::build("fuzz", inputs.iter().map(ty).collect::<Vec<_>>(), |graph, values| match values.is_empty() {
            true => graph.custom(name, DeviceRef::CPU, (), [ty(&(dtype, shape.clone()))], parameters),
            false => ops::custom(name, DeviceRef::CPU, values, [ty(&(dtype, shape.clone()))], parameters),
        });
    // Results as large as can be are allocated, and then written.
    let elements = shape.iter().try_fold(1i64, |all, size| all.checked_mul(*size)).unwrap_or(i64::MAX);
    let Ok(graph) = graph else { return };
    let session = InferenceSession::new().reference(choices.byte() % 2 == 1);
    let Ok(model) = session.load(&graph) else { return };
    let tensors: Option<Vec<Tensor>> = inputs.iter().map(|(dtype, shape)| choices.tensor(*dtype, shape)).collect();
    let Some(tensors) = tensors.filter(|_| elements <= 1 << 14) else { return };
    if let Ok(results) = model.execute(&tensors) {
        assert_eq!(results.len(), 1);
    }
}
