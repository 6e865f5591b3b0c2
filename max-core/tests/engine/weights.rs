//! Weights by name: from files that the format's own library writes, from damaged ones, and from maps of tensors.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use crate::kernels::*;
use max::driver::{DeviceRef, DriverError, Tensor};
use max::dtype::DType;
use max::engine::{EngineError, InferenceSession};
use max::graph::weights::{SafetensorWeights, WeightsError, WeightsRegistry};
use max::graph::{Graph, GraphErrorKind, TensorType, Weight, ops};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const DTYPES: [(Dtype, DType); 17] = [
    (Dtype::BOOL, DType::Bool),
    (Dtype::I8, DType::I8),
    (Dtype::I16, DType::I16),
    (Dtype::I32, DType::I32),
    (Dtype::I64, DType::I64),
    (Dtype::U8, DType::U8),
    (Dtype::U16, DType::U16),
    (Dtype::U32, DType::U32),
    (Dtype::U64, DType::U64),
    (Dtype::F8_E4M3, DType::F8E4M3FN),
    (Dtype::F8_E4M3FNUZ, DType::F8E4M3FNUZ),
    (Dtype::F8_E5M2, DType::F8E5M2),
    (Dtype::F8_E5M2FNUZ, DType::F8E5M2FNUZ),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::BF16),
    (Dtype::F32, DType::F32),
    (Dtype::F64, DType::F64),
];

type Named<'a> = (&'a str, Dtype, &'a [usize], &'a [u8]);

fn write(folder: &Path, name: &str, tensors: &[Named<'_>]) -> PathBuf {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (*name, TensorView::new(*dtype, shape.to_vec(), data).unwrap()));
    let path = folder.join(name);
    safetensors::serialize_to_file(views, None, &path).unwrap();
    path
}

/// A file of this header and so many bytes of data.
fn raw(folder: &Path, header: &str, data: &[u8]) -> PathBuf {
    let path = folder.join("raw.safetensors");
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
    std::fs::write(&path, bytes).unwrap();
    path
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Read, and mapped.
fn both<P: AsRef<Path>>(paths: &[P]) -> [SafetensorWeights; 2] {
    // SAFETY: nobody changes the files of these tests.
    [SafetensorWeights::open(paths).unwrap(), unsafe { SafetensorWeights::mmap(paths) }.unwrap()]
}

#[test]
fn tensors_of_all_dtypes_and_ranks() {
    let folder = folder();
    let shapes: [&[usize]; 5] = [&[], &[3], &[2, 0], &[2, 3, 1], &[1, 2, 1, 2, 2]];
    for (format, dtype) in DTYPES {
        let data: Vec<u8> = (0..64).map(|i| i * i / 3 % 2).collect();
        let names: Vec<String> = (0..shapes.len()).map(|i| format!("w{i}")).collect();
        let tensors: Vec<Named<'_>> = shapes
            .iter()
            .zip(&names)
            .map(|(shape, name)| {
                let count = shape.iter().product::<usize>() * dtype.size_in_bytes();
                (name.as_str(), format, *shape, &data[64 - count..])
            })
            .collect();
        let path = write(folder.path(), "all.safetensors", &tensors);
        for weights in both(&[&path]) {
            assert_eq!(weights.names().collect::<Vec<_>>(), names);
            for (name, _, shape, data) in &tensors {
                let tensor = weights.tensor_of(name, dtype, shape).unwrap();
                assert_eq!((tensor.dtype(), tensor.shape()), (dtype, *shape));
                let flat = tensor.reshape([tensor.num_elements()]).unwrap();
                assert_eq!(flat.view(DType::U8, None).unwrap().to_vec::<u8>().unwrap(), *data, "{dtype} {shape:?}");
            }
        }
    }
    assert_eq!(DTYPES.map(|(_, dtype)| dtype).len(), DType::ALL.len());
}

/// Both ways of a model: by declared weights, whose memory is the registry's, and by constants.
#[test]
fn a_model_of_two_shards() {
    let folder = folder();
    let w = bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let shards = [
        write(folder.path(), "1.safetensors", &[("net.fc.weight", Dtype::F32, &[3, 2], &w)]),
        write(folder.path(), "2.safetensors", &[("net.fc.bias", Dtype::F32, &[3], &bytes(&[10.0, 20.0, 30.0]))]),
    ];
    for weights in both(&shards) {
        let layer = weights.at("net").at("fc");
        assert_eq!((layer.prefix(), layer.names().collect::<Vec<_>>()), ("net.fc", vec!["bias", "weight"]));
        assert!(layer.exists("bias") && !layer.exists("net.fc.bias") && !layer.exists("bia"));
        let build = |declared: bool| {
            Graph::build("fc", [f32s(("n", 2))], |graph, inputs| {
                let (w, b) = match declared {
                    true => (
                        graph.add_weight(&layer.weight("weight", DeviceRef::CPU)?)?,
                        graph.add_weight(&Weight::new("net.fc.bias", DType::F32, [3], DeviceRef::CPU))?,
                    ),
                    false => (
                        ops::constant(graph, layer.tensor("weight")?, DType::F32, DeviceRef::CPU)?,
                        ops::constant(graph, layer.tensor("bias")?, DType::F32, DeviceRef::CPU)?,
                    ),
                };
                // The constant itself too, to see where it lies.
                Ok([ops::add(ops::matmul(&inputs[0], w.t()?)?, b)?, w])
            })
            .unwrap()
        };
        let session = InferenceSession::new();
        let models = [session.load_with_weights(&build(true), &weights), session.load(&build(false))];
        drop((layer, weights));
        for model in models.map(Result::unwrap) {
            let outputs = model.execute(&Tensor::from_slice(&[1.0f32, 10.0], [1, 2]).unwrap()).unwrap();
            assert_eq!(values(&outputs[0]), [31.0, 63.0, 95.0]);
            assert_eq!(values(&outputs[1]), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        }
    }
}

/// Two shards, one of them in a folder, and an index of this text.
fn sharded(folder: &Path, index: &str) -> PathBuf {
    std::fs::create_dir(folder.join("more")).unwrap();
    write(folder, "1.safetensors", &[("a", Dtype::F32, &[1], &bytes(&[1.0])), ("b", Dtype::F32, &[1], &bytes(&[2.0]))]);
    write(&folder.join("more"), "2.safetensors", &[("c", Dtype::F32, &[2], &bytes(&[3.0, 4.0]))]);
    let path = folder.join("model.safetensors.index.json");
    std::fs::write(&path, index).unwrap();
    path
}

#[test]
fn an_index_opens_the_shards_that_it_names() {
    let folder = folder();
    let index = r#"{"metadata": {"total_size": 16, "by": "me"}, "weight_map":
        {"a": "1.safetensors", "b": "1.safetensors", "c": "more//2.safetensors"}}"#;
    let path = sharded(folder.path(), index);
    let other = write(folder.path(), "other.safetensors", &[("d", Dtype::F32, &[1], &bytes(&[5.0]))]);
    for weights in both(&[&path, &other]) {
        assert_eq!(weights.names().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        let all: Vec<f32> =
            ["a", "b", "c", "d"].iter().flat_map(|name| values(&weights.tensor(name).unwrap())).collect();
        assert_eq!(all, [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(weights.metadata()["total_size"], "16");
        assert_eq!(weights.metadata()["by"], "me");
    }
    let twice = SafetensorWeights::open([&path, &folder.path().join("1.safetensors")]).unwrap_err();
    assert!(matches!(twice, WeightsError::Twice { .. }), "{twice}");
}

#[test]
fn indices_that_are_refused() {
    let open = |index: &str| {
        let folder = folder();
        let path = sharded(folder.path(), index);
        let error = SafetensorWeights::open([&path]).unwrap_err();
        let text = error.to_string().replace(&*folder.path().to_string_lossy(), "F");
        let rest = text
            .strip_prefix("weights F/model.safetensors.index.json: ")
            .unwrap_or_else(|| panic!("{text}"))
            .to_owned();
        (error, rest)
    };
    let (error, text) = open(r#"{"weight_map": {"a": "1.safetensors", "x": "3.safetensors", "y": "3.safetensors"}}"#);
    assert!(matches!(&error, WeightsError::Shard { weight, .. } if weight == "x"), "{error}");
    assert!(text.starts_with("the shard F/3.safetensors of weight `x`: "), "{text}");
    let (error, text) = open(r#"{"weight_map": {"a": "1.safetensors", "b": "more/2.safetensors"}}"#);
    assert!(matches!(&error, WeightsError::NotInShard { name, .. } if name == "b"), "{error}");
    assert_eq!(text, "weight `b` is not in F/more/2.safetensors; are index and shards of one model?");
    for (index, reason) in [
        ("", "it is no JSON object: EOF"),
        ("[]", "it is no JSON object: invalid type"),
        (r#"{"metadata": {}}"#, "it has no object `weight_map`"),
        (r#"{"weight_map": ["a"]}"#, "it has no object `weight_map`"),
        (r#"{"weight_map": {}}"#, "its `weight_map` is empty"),
        (r#"{"weight_map": {"a": 1}}"#, "the file of weight `a` is no string"),
        (r#"{"weight_map": {"a": "1.safetensors"}, "metadata": 1}"#, "its `metadata` is no object"),
        // All of these files are there.
        (
            r#"{"weight_map": {"a": "/etc/hostname"}}"#,
            "the file `/etc/hostname` of weight `a` does not lie in its folder",
        ),
        (
            r#"{"weight_map": {"a": "more/../1.safetensors"}}"#,
            "the file `more/../1.safetensors` of weight `a` does not",
        ),
        (r#"{"weight_map": {"a": ".."}}"#, "the file `..` of weight `a` does not lie in its folder"),
        (r#"{"weight_map": {"a": ""}}"#, "the file `` of weight `a` does not lie in its folder"),
    ] {
        let (error, text) = open(index);
        assert!(matches!(error, WeightsError::Index { .. }) && text.starts_with(reason), "{text}");
    }
    // A shard is no index.
    let folder = folder();
    let path = sharded(folder.path(), r#"{"weight_map": {"a": "model.safetensors.index.json"}}"#);
    let error = SafetensorWeights::open([&path]).unwrap_err();
    assert!(matches!(error, WeightsError::Format { .. }), "{error}");
    let missing = SafetensorWeights::open(["no/such.index.json"]).unwrap_err();
    assert!(matches!(missing, WeightsError::Io { .. }), "{missing}");
}

/// A registry that counts its handles to one tensor.
struct One(Tensor);

impl WeightsRegistry for One {
    fn weight(&self, name: &str) -> Result<Option<Tensor>, WeightsError> {
        Ok((name == "w").then(|| self.0.clone()))
    }

    fn weight_names(&self) -> Vec<String> {
        vec!["w".into()]
    }
}

#[test]
fn a_model_keeps_the_registry_s_memory() {
    let declared = Weight::new("w", DType::F32, [4], DeviceRef::CPU);
    let graph = Graph::build("g", [f32s([4])], |graph, inputs| {
        let w = graph.add_weight(&declared)?;
        ops::add(ops::mul(&inputs[0], &w)?, ops::constant_external(graph, "w", declared.ty.clone())?)
    });
    let graph = graph.unwrap();
    assert_eq!(
        graph.to_string(),
        "graph g(%0: float32[4]) {\n  %1 = constant_external \"w\" : float32[4]\n  %2 = mul(%0, %1) : float32[4]\n  \
         %3 = add(%2, %1) : float32[4]\n  return %3\n}\n"
    );
    let one = One(count(&[4]));
    assert!(!one.0.is_shared());
    let model = InferenceSession::new().load_with_weights(&graph, &one).unwrap();
    assert!(one.0.is_shared(), "the model has a handle of it, and no copy");
    assert_eq!(values(&model.execute(&count(&[4])).unwrap()[0]), [0.0, 2.0, 6.0, 12.0]);
    drop(model);
    assert!(!one.0.is_shared());
    // A view is copied once, at load.
    let reversed = One(one.0.slice(&[max::driver::SliceIndex::REVERSED]).unwrap());
    let model = InferenceSession::new().load_with_weights(&graph, &reversed).unwrap();
    assert_eq!(values(&model.execute(&count(&[4])).unwrap()[0]), [3.0, 4.0, 3.0, 0.0]);
}

#[test]
fn mapped_weights_lie_in_the_file() {
    let folder = folder();
    let path = write(folder.path(), "w.safetensors", &[("w", Dtype::F32, &[1024], &[0; 4096])]);
    // SAFETY: nobody changes the file.
    let weights = unsafe { SafetensorWeights::mmap([path]) }.unwrap();
    let [a, b] = [(); 2].map(|()| weights.tensor("w").unwrap());
    assert_eq!(a.data_ptr(), b.data_ptr());
    let mut c = b.clone();
    assert!(matches!(c.as_mut_slice::<f32>(), Err(DriverError::StorageShared { .. })));
    let model = {
        let graph =
            Graph::build("g", (), |graph, _| ops::sum(graph.add_weight(&weights.weight("w", DeviceRef::CPU)?)?, 0));
        InferenceSession::new().load_with_weights(&graph.unwrap(), &weights).unwrap()
    };
    drop((weights, a, b, c));
    // The model keeps the map.
    assert_eq!(values(&model.execute(()).unwrap()[0]), [0.0]);
}

/// Old writers left the data where the header ended.
#[test]
fn weights_that_are_not_aligned_are_copied() {
    let folder = folder();
    for pad in 0..8 {
        let header = r#"{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}}"#;
        let header = format!("{header}{}", " ".repeat(pad));
        let path = raw(folder.path(), &header, &[&[7][..], &2.5f64.to_le_bytes()].concat());
        for weights in both(&[path]) {
            assert_eq!(weights.tensor("w").unwrap().to_vec::<f64>().unwrap(), [2.5]);
            assert_eq!(weights.tensor("b").unwrap().to_vec::<u8>().unwrap(), [7]);
        }
    }
}

#[test]
fn names_that_are_not_there() {
    let folder = folder();
    let tensors: Vec<String> = (0..12).map(|i| format!("model.layers.{i}.mlp.weight")).collect();
    let named: Vec<Named<'_>> = tensors.iter().map(|name| (name.as_str(), Dtype::U8, &[1][..], &[1][..])).collect();
    let weights = SafetensorWeights::open([write(folder.path(), "w.safetensors", &named)]).unwrap();
    let message = |name: &str| weights.tensor(name).unwrap_err().to_string();
    assert_eq!(
        message("model.layer.3.mlp.weight"),
        "there is no weight `model.layer.3.mlp.weight` among 12; did you mean `model.layers.3.mlp.weight` or \
         `model.layers.0.mlp.weight` or `model.layers.1.mlp.weight`?"
    );
    assert!(message("layers.3.mlp.weight").contains("did you mean `model.layers.3.mlp.weight`"));
    assert_eq!(message("x"), "there is no weight `x` among 12, nor a similar one");
    let at = weights.at("model.layers").at(3).tensor("weight").unwrap_err().to_string();
    assert!(
        at.starts_with("there is no weight `model.layers.3.weight` among 12; did you mean `model.layers.3.mlp"),
        "{at}"
    );
    assert!(matches!(SafetensorWeights::open([""; 0]), Err(WeightsError::NoFiles)));
    let missing = SafetensorWeights::open([folder.path().join("no")]).unwrap_err().to_string();
    assert!(missing.starts_with("weights /") && missing.contains("/no: No such file"), "{missing}");
}

#[test]
fn types_that_differ() {
    let folder = folder();
    let path = write(folder.path(), "w.safetensors", &[("w", Dtype::BF16, &[2, 3], &[0; 12])]);
    let weights = SafetensorWeights::open([&path]).unwrap();
    let named = format!("weight `w` of {} is bfloat16[2, 3], but ", path.display());
    let message = |dtype, shape: &[usize]| weights.tensor_of("w", dtype, shape).unwrap_err().to_string();
    assert_eq!(
        message(DType::F32, &[2, 3]),
        format!("{named}float32[2, 3] was declared; declare it as bfloat16, and cast it in the graph")
    );
    assert_eq!(
        message(DType::BF16, &[3, 2]),
        format!("{named}bfloat16[3, 2] was declared; declare it as it lies, and transpose it in the graph")
    );
    assert_eq!(message(DType::BF16, &[6]), format!("{named}bfloat16[6] was declared; is it another model's?"));

    let ty = r#"{"w":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"v":{"dtype":"BOOL","shape":[2],"data_offsets":[1,3]}}"#;
    for weights in both(&[raw(folder.path(), ty, &[9, 1, 2])]) {
        let error = weights.tensor("w").unwrap_err().to_string();
        assert!(error.contains(" has dtype F4, which is none of this crate's; convert the file"), "{error}");
        let error = weights.tensor("v").unwrap_err();
        let is_bool = matches!(&error, WeightsError::Tensor { source: DriverError::InvalidBool { index: 1, .. }, .. });
        assert!(is_bool, "{error}");
        assert!(error.to_string().starts_with("weight `v` of /"), "{error}");
    }
}

#[test]
fn damaged_files() {
    let folder = folder();
    let shard = |name: &str| write(folder.path(), name, &[("w", Dtype::U8, &[2], &[1, 2])]);
    let (a, b) = (shard("a.safetensors"), shard("b.safetensors"));
    let twice = SafetensorWeights::open([&a, &b]).unwrap_err().to_string();
    let [first, second] = [&a, &b].map(|path| path.display());
    assert_eq!(
        twice,
        format!("weight `w` is in {first} and in {second}; give each shard once, and shards of one model")
    );

    let whole = std::fs::read(&a).unwrap();
    let reason = |path: &Path| match SafetensorWeights::open([path]).unwrap_err() {
        WeightsError::Format { reason, path: named, .. } => {
            assert_eq!(named, path);
            reason
        }
        other => panic!("{other}"),
    };
    for length in 0..whole.len() {
        std::fs::write(&b, &whole[..length]).unwrap();
        assert!(!reason(&b).is_empty(), "{length}");
        // SAFETY: nobody changes the file.
        assert!(unsafe { SafetensorWeights::mmap([&b]) }.is_err());
    }
    std::fs::write(&b, &whole[..5]).unwrap();
    assert_eq!(reason(&b), "it has 5 bytes, and the length of its header takes 8");
    std::fs::write(&b, &whole[..20]).unwrap();
    assert_eq!(reason(&b), format!("its header would have {} bytes, but 12 follow", whole.len() - 10));
    std::fs::write(&b, [0xff; 40]).unwrap();
    assert_eq!(reason(&b), format!("its header would have {} bytes, but 32 follow", u64::MAX));

    // Cut off after it was opened.
    let path = write(folder.path(), "c.safetensors", &[("w", Dtype::U8, &[2], &[1, 2])]);
    let weights = SafetensorWeights::open([&path]).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let error = weights.tensor("w").unwrap_err();
    assert!(matches!(error, WeightsError::Io { .. }), "{error}");

    let cases = [
        ("[]", "its header is no JSON object: "),
        (r#"{"w":1}"#, "tensor `w`: it has no `dtype`"),
        (r#"{"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,4]}}"#, "tensor `w`: its `shape` is no list of sizes"),
        (r#"{"w":{"dtype":"U8","shape":[4]}}"#, "tensor `w`: its `data_offsets` are no numbers"),
        (r#"{"w":{"dtype":"U8","shape":[4],"data_offsets":[0]}}"#, "tensor `w`: its `data_offsets` are 1, not two"),
        (
            r#"{"w":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}}"#,
            "tensor `w`: it would take bytes 0..5 of the data, which has 4",
        ),
        (
            r#"{"w":{"dtype":"U8","shape":[0],"data_offsets":[3,1]}}"#,
            "tensor `w`: it would take bytes 3..1 of the data",
        ),
        (
            r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
            "tensor `w`: F32 of shape [2] takes 8 bytes, but has 4",
        ),
        (
            r#"{"w":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,4]}}"#,
            "tensor `w`: F64 of shape [4611686018427387904] takes more than 2^64 bytes, but has 4",
        ),
        (
            r#"{"w":{"dtype":"U8","shape":[4611686018427387904,4],"data_offsets":[0,4]}}"#,
            "tensor `w`: shape [4611686018427387904, 4] is larger than the address space",
        ),
        (
            r#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#,
            "its tensors take 3 bytes of data, but 4 follow the header",
        ),
        (
            r#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}}"#,
            "tensor `w`: bytes 0..1 of the data before it belong to none",
        ),
        (
            r#"{"v":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"w":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}}"#,
            "tensor `w`: bytes 1..3 of the data belong to another tensor too",
        ),
        // Of two entries of one name the last is read; the bytes of the first then belong to nobody.
        (
            r#"{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#,
            "tensor `w`: bytes 0..2 of the data before it belong to none",
        ),
        (r#"{"__metadata__":{"a":1}}"#, "metadata `a` is no string"),
    ];
    for (header, expected) in cases {
        let reason = reason(&raw(folder.path(), header, &[0; 4]));
        assert!(reason.starts_with(expected), "{reason}");
    }
    let named = SafetensorWeights::open([raw(folder.path(), r#"{"__metadata__":{"format":"pt"}}"#, &[])]).unwrap();
    assert_eq!(named.metadata(), &BTreeMap::from([("format".into(), "pt".into())]));
}

#[test]
fn graphs_whose_weights_are_not_found() {
    let declare = |weight: Weight| Graph::build("net", (), |graph, _| graph.add_weight(&weight)).unwrap();
    let session = InferenceSession::new();
    let graph = declare(Weight::new("fc.weight", DType::F32, [2, 3], DeviceRef::CPU));
    let message = |result: Result<_, EngineError>| match result.map(drop).unwrap_err() {
        error @ EngineError::Weight { .. } => error.to_string(),
        other => panic!("{other}"),
    };
    let named = "model `net`, `constant_external \"fc.weight\"` at ";
    let text = message(session.load(&graph));
    assert!(text.starts_with(named) && text.contains("weights.rs:"), "{text}");
    assert!(
        text.ends_with("there is no weight `fc.weight`: no weights were given; load the graph by `load_with_weights`")
    );
    let registry = |name: &str, tensor: Tensor| HashMap::from([(name.to_owned(), tensor)]);
    let text = message(session.load_with_weights(&graph, &registry("fc1.weight", count(&[2, 3]))));
    assert!(text.ends_with("there is no weight `fc.weight` among 1; did you mean `fc1.weight`?"), "{text}");
    let text = message(session.load_with_weights(&graph, &registry("fc.weight", count(&[3, 2]))));
    assert!(text.starts_with(named), "{text}");
    assert!(
        text.ends_with(
            "weight `fc.weight` is float32[3, 2], but float32[2, 3] was declared; declare it as it lies, and transpose it \
             in the graph"
        ),
        "{text}"
    );
    let model = session.load_with_weights(&graph, &registry("fc.weight", count(&[2, 3]))).unwrap();
    assert_eq!(values(&model.execute(()).unwrap()[0]), values(&count(&[2, 3])));

    let twice = Graph::build("net", (), |graph, _| {
        graph.add_weight(&Weight::new("w", DType::F32, [2], DeviceRef::CPU))?;
        ops::constant_external(graph, "w", TensorType::new(DType::F32, [3], DeviceRef::CPU))
    });
    let error = twice.unwrap_err();
    assert!(matches!(error.kind(), GraphErrorKind::WeightTwice { .. }));
    let text = error.to_string();
    assert!(
        text.starts_with("`constant_external` at ") && text.contains("weight `w` was declared as float32[2] at "),
        "{text}"
    );
    let symbolic = Graph::build("net", [f32s(("n",))], |graph, _| {
        graph.add_weight(&Weight::new("w", DType::F32, ("n",), DeviceRef::CPU))
    });
    let text = symbolic.unwrap_err().to_string();
    assert!(text.contains("a dim of the weight is n, but must be static"), "{text}");
    // Weights that are missing while a graph is built are errors at that line.
    let lost = Graph::build("net", (), |graph, _| {
        let none = SafetensorWeights::open([""; 0])?;
        ops::constant(graph, none.tensor("w")?, DType::F32, DeviceRef::CPU)
    });
    let text = lost.unwrap_err().to_string();
    assert!(text.starts_with("`weight` at ") && text.contains("weights.rs:") && text.contains("no files"), "{text}");
}
