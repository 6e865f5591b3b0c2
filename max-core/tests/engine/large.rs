//! What is large or long: headers, graphs, kernels and dims that take time and memory in proportion to what was written, and sizes
//! whose product is no number.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use crate::allocations::most_bytes;
use crate::kernels::*;
use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::graph::weights::SafetensorWeights;
use max::graph::{Dim, Graph, TensorType, ops};
use max::kernel;

/// The most bytes that opening a file of weights takes, for each byte of the text.
fn bytes_for_each(name: &str, text: &str) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let length = (text.len() as u64).to_le_bytes();
    let start: &[u8] = if name.ends_with("json") { &[] } else { &length };
    std::fs::write(&path, [start, text.as_bytes()].concat()).unwrap();
    most_bytes(|| drop(SafetensorWeights::open([&path]))) / text.len()
}

fn many(count: usize, part: impl Fn(usize) -> String) -> String {
    (0..count).map(part).collect::<Vec<_>>().join(",")
}

#[test]
fn headers_take_memory_in_proportion_to_their_length() {
    let empty = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let headers = [
        format!(r#"{{"w":{{"dtype":"F32","data_offsets":[0,0],"shape":[0{}]}}}}"#, ",0".repeat(1 << 20)),
        format!(r#"{{"w":{{"dtype":"F32","shape":[0],"data_offsets":[0{}]}}}}"#, ",0".repeat(1 << 20)),
        format!(r#"{{"w":{{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":[[]{}]}}}}"#, ",[]".repeat(1 << 20)),
        format!("{{{}}}", many(1 << 15, |i| format!(r#""{i}":{empty}"#))),
    ];
    for header in headers {
        let factor = bytes_for_each("w.safetensors", &header);
        assert!(factor <= 6, "{factor} bytes for each of {}…", &header[..60]);
    }
    let metadata = format!(r#"{{"__metadata__":{{{}}}}}"#, many(1 << 17, |i| format!(r#""{i}":"""#)));
    let factor = bytes_for_each("w.safetensors", &metadata);
    assert!(factor <= 12, "{factor} bytes for each of metadata");
}

#[test]
fn indices_take_memory_in_proportion_to_their_length() {
    let files = many(1 << 16, |i| format!(r#""{i}":"1""#));
    let numbers = ",0".repeat(1 << 20);
    for index in [
        format!(r#"{{"weight_map":{{{files}}}}}"#),
        format!(r#"{{"weight_map":{{"a":"1"}},"metadata":{{"x":[0{numbers}]}}}}"#),
        format!(r#"{{"weight_map":{{"a":"1"}},"x":[0{numbers}]}}"#),
        format!(r#"{{"weight_map":{{"a":[0{numbers}]}}}}"#),
    ] {
        let factor = bytes_for_each("w.index.json", &index);
        assert!(factor <= 16, "{factor} bytes for each of {}…", &index[..40]);
    }
}

#[test]
fn limits_of_headers_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (weights, index) = (folder.path().join("w.safetensors"), folder.path().join("w.index.json"));
    // Neither takes room: all but the length is a hole.
    std::fs::write(&weights, 100_000_001u64.to_le_bytes()).unwrap();
    for path in [&weights, &index] {
        let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
        file.set_len(100_000_100).unwrap();
        let error = SafetensorWeights::open([path]).unwrap_err().to_string();
        assert!(error.contains("more than the 100000000"), "{error}");
    }
    let shape = vec!["1"; 65].join(",");
    let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,1]}}}}"#);
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[1]].concat();
    std::fs::write(&weights, bytes).unwrap();
    let error = SafetensorWeights::open([&weights]).unwrap_err().to_string();
    assert!(error.contains("its `shape` has 65 dims, more than the 64 that are read"), "{error}");
}

macro_rules! doublings {
    ($($k:tt)*) => {
        /// An index that is a sum of itself, again and again.
        #[kernel(op = "doublings", dtypes(T = [f32]), tile(BM = 32, BN = 32, BK = 32))]
        fn doublings<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
            let [m, n] = program_id();
            let mut acc = Tile::<f32, BM, BN>::zeros();
            let i = a.dim(1) - a.dim(1);
            $(let i = i + i + $k;)*
            acc = dot(a.tile::<BM, BK>(m, i), b.tile::<BK, BN>(i, n), acc);
            c.tile::<BM, BN>(m, n).write(acc.cast());
        }
    };
}
doublings!(0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0);

/// As a tree, the index has 2^48 leaves.
#[test]
fn a_kernel_of_many_sums_is_loaded() {
    let ty = f32s([32, 32]);
    let graph = Graph::build("g", [ty.clone(), ty.clone()], |_, inputs| {
        ops::custom("doublings", DeviceRef::CPU, inputs, [ty], ())
    });
    let ones = Tensor::full(1.0f32, [32, 32]).unwrap();
    let result = load(&graph.unwrap()).execute([&ones, &ones]).unwrap();
    assert_eq!(values(&result[0]), [32.0; 1024]);
}

/// Multiplied out, the number of elements has 2^40 terms.
#[test]
fn the_elements_of_many_sums_are_counted() {
    let (rank, name) = (40, |c: char, i: usize| Dim::from(format!("{c}{i}")));
    let pairs = (0..rank).map(|i| f32s([name('a', i), name('b', i)]));
    let sums: Vec<Dim> = (0..rank).map(|i| name('a', i) + name('b', i)).collect();
    let graph = Graph::new("g", pairs.chain([f32s(sums)]).collect::<Vec<_>>());
    let y = ops::relu(&graph.inputs()[rank]).and_then(ops::relu).unwrap();
    graph.output(y).unwrap();
    let mut inputs = vec![Tensor::full(1.0f32, [1, 0]).unwrap(); rank];
    inputs.push(Tensor::full(-1.0f32, vec![1; rank]).unwrap());
    assert_eq!(values(&load(&graph).execute(&inputs).unwrap()[0]), [0.0]);
}

/// A chain of buffers, which die at once or live to the end.
#[test]
fn a_graph_of_many_buffers_is_planned() {
    for columns in [Dim::from(8), Dim::from("n")] {
        for kept in [false, true] {
            let graph = Graph::build("g", [f32s([Dim::from(2), columns.clone()])], |_, inputs| {
                let (mut x, mut all) = (inputs[0].tensor()?.clone(), Vec::new());
                for _ in 0..2_000 {
                    x = ops::softmax(&x, -1)?;
                    all.push(x.clone());
                }
                if kept { ops::concat(all, 0) } else { Ok(x) }
            });
            let result = load(&graph.unwrap()).execute(&count(&[2, 8])).unwrap();
            assert_eq!(result[0].shape(), [if kept { 4_000 } else { 2 }, 8]);
        }
    }
}

/// The sizes beside a 0 have to have a product: strides are made of them.
#[test]
fn sizes_beside_none_that_overflow_are_refused() {
    let n = 1usize << 40;
    let graph = Graph::build("g", [TensorType::new(DType::F32, (n, n, 0), DeviceRef::CPU)], |_, x| ops::relu(&x[0]));
    let error = graph.map(drop).unwrap_err().to_string();
    assert!(error.contains("float32[1099511627776, 1099511627776, 0] exceeds 2^63 - 1 bytes"), "{error}");
}

#[kernel(op = "shown", dtypes(T = [f32]))]
fn shown<T: Float>(x: T) -> T {
    print("x", x);
    x
}

const CLOSED: &str = "MAX_TEST_STDOUT_CLOSES";

/// Runs itself with a standard output that nobody reads.
#[test]
fn a_kernel_prints_where_nobody_reads() {
    if std::env::var_os(CLOSED).is_some() {
        // Until it is closed.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        let graph = Graph::build("g", [f32s([1000])], |_, inputs| {
            ops::custom("shown", DeviceRef::CPU, inputs, [f32s([1000])], ())
        });
        let result = load(&graph.unwrap()).execute(&count(&[1000])).unwrap();
        std::process::exit(if values(&result[0])[999] == 999.0 { 7 } else { 8 });
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "large::a_kernel_prints_where_nobody_reads", "--nocapture"])
        .env(CLOSED, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("running")));
    drop(lines);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(7));
}
