//! Files of `torch.save`: one that PyTorch 2.13 wrote, and pickles that ask for what is not given.

use std::io::Write as _;
use std::path::PathBuf;

use max::driver::Tensor;
use max::dtype::{DType, Element};
use max::graph::weights::{PytorchWeights, WeightsError, WeightsFormat, load_weights};
use rawzip::{CompressionMethod, ZipArchiveWriter};

fn saved() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("weights/tensors.pt")
}

#[track_caller]
fn check<T: Element + PartialEq + std::fmt::Debug>(tensor: &Tensor, shape: &[usize], values: &[T]) {
    assert_eq!((tensor.dtype(), tensor.shape()), (T::DTYPE, shape));
    assert_eq!(tensor.to_vec::<T>().unwrap(), values);
}

#[test]
fn a_state_dict_is_read() {
    let weights = PytorchWeights::open([saved()]).unwrap();
    let names: Vec<&str> = weights.names().collect();
    assert_eq!(
        names,
        [
            "bytes",
            "eights",
            "empty",
            "flags",
            "halves",
            "layers.0.w",
            "layers.1.w",
            "model.fc.bias",
            "model.fc.weight",
            "model.steps",
            "parameter",
            "part",
            "permuted",
            "same",
            "scalar",
            "signed",
            "transposed",
            "words"
        ]
    );
    let tensor = |name: &str| weights.tensor(name).unwrap();
    check(&tensor("model.fc.weight"), &[2, 3], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0]);
    check(&tensor("model.fc.bias"), &[2], &[0.5f32, -0.5]);
    check(&tensor("model.steps"), &[], &[7i64]);
    check(&tensor("scalar"), &[], &[-3.0f64]);
    check(&tensor("bytes"), &[2], &[0u8, 255]);
    check(&tensor("signed"), &[2], &[-1i8, 5]);
    check(&tensor("words"), &[2], &[1u16, 65535]);
    check(&tensor("flags"), &[2], &[true, false]);
    check::<f32>(&tensor("empty"), &[0, 4], &[]);
    let floats = |name: &str| {
        let data = weights.data(name).unwrap().astype(DType::F32).unwrap();
        data.data.to_vec::<f32>().unwrap()
    };
    assert_eq!(floats("parameter"), [1.5, 2.5]);
    assert_eq!(floats("halves"), [1.0, -2.0, 3.140625]);
    assert_eq!(floats("eights"), [1.0, -448.0]);
    assert_eq!(tensor("eights").dtype(), DType::F8E4M3FN);
    // Two tensors of one storage, one of which is a part of the other.
    check(&tensor("part"), &[4], &[4.0f32, 5.0, 6.0, 7.0]);
    check(&tensor("same"), &[3, 4], &(0..12).map(|i| i as f32).collect::<Vec<_>>());
    // Axes in another order than in memory.
    check(&tensor("transposed"), &[3, 2], &[0i32, 3, 1, 4, 2, 5]);
    let permuted: Vec<i16> =
        (0..4).flat_map(|k| (0..2).flat_map(move |i| (0..3).map(move |j| i * 12 + j * 4 + k))).collect();
    check(&tensor("permuted"), &[4, 2, 3], &permuted);
}

#[test]
fn the_format_is_found_by_the_file() {
    assert_eq!(WeightsFormat::of(saved()).unwrap(), WeightsFormat::Pytorch);
    let weights = load_weights([saved()]).unwrap();
    assert_eq!(weights.format(), WeightsFormat::Pytorch);
    check(&weights.at("layers").tensor("0.w").unwrap(), &[1, 2], &[1.0f32, 1.0]);
    // SAFETY: nothing writes the file.
    let mapped = unsafe { PytorchWeights::mmap([saved()]) }.unwrap();
    check(&mapped.tensor("transposed").unwrap(), &[3, 2], &[0i32, 3, 1, 4, 2, 5]);
}

/// An archive of these files, stored or (falsely) said to be deflated.
fn archive(files: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut archive = ZipArchiveWriter::new(&mut bytes);
    for (name, data) in files {
        let (mut entry, config) = archive.new_file(name).compression_method(method).start().unwrap();
        let mut writer = config.wrap(&mut entry);
        writer.write_all(data).unwrap();
        let (_, descriptor) = writer.finish().unwrap();
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap();
    bytes
}

fn reason(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.pt");
    std::fs::write(&path, bytes).unwrap();
    match PytorchWeights::open([path]).expect_err("an error") {
        WeightsError::Format { format: WeightsFormat::Pytorch, reason, .. } => reason,
        error => panic!("{error}"),
    }
}

/// What is said of a pickle, beside one storage of 16 bytes.
fn of_pickle(pickle: &[u8]) -> String {
    reason(&archive(&[("a/data.pkl", pickle), ("a/data/0", &[0; 16])], CompressionMethod::STORE))
}

/// A pickle of a dict with one item, `x`.
fn item(value: &[u8]) -> Vec<u8> {
    [b"\x80\x02}X\x01\0\0\0x".as_slice(), value, b"s."].concat()
}

/// A tensor over storage `0`, whose offset, sizes and strides are pickled.
fn tensor(storage: &str, sizes: &[u8]) -> Vec<u8> {
    let start = format!("ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\n{storage}\nU\x010U\x03cpuK\x04tQ");
    [start.as_bytes(), sizes, b"\x89NtR"].concat()
}

#[test]
fn nothing_is_executed() {
    let call = |callee: &str| item(&[callee.as_bytes(), b"(U\x02ls", b"tR"].concat());
    for callee in ["cos\nsystem\n", "cbuiltins\neval\n", "ctorch\nload\n", "cnumpy.core.multiarray\n_reconstruct\n"] {
        let reason = of_pickle(&call(callee));
        let name = callee[1..].trim().replace('\n', ".");
        assert!(reason.contains(&format!("it asks for a call of `{name}` with 1 arguments")), "{reason}");
    }
    // Objects of classes: by INST, OBJ, NEWOBJ and BUILD.
    assert!(of_pickle(&item(b"(ios\nsystem\n")).contains("opcode 0x69"));
    assert!(of_pickle(&item(b"(cos\nsystem\no")).contains("opcode 0x6f"));
    assert!(of_pickle(&item(b"cos\nsystem\n)\x81")).contains("opcode 0x81"));
    assert!(of_pickle(&item(b"cos\nsystem\n}b")).contains("no dict and no tensor"));
}

#[test]
fn mistakes_in_pickles_are_named() {
    for (pickle, expected) in [
        (
            item(&tensor("FloatStorage", b"K\0K\x05\x85K\x01\x85")),
            "tensor `x` of shape [5] from element 0 on is not within",
        ),
        (item(&tensor("FloatStorage", b"K\x03K\x02\x85K\x01\x85")), "from element 3 on is not within the 16 bytes"),
        (
            item(&tensor("FloatStorage", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x01\x85K\x01\x85")),
            "is not within the 16 bytes",
        ),
        (item(&tensor("FloatStorage", b"J\xff\xff\xff\xffK\x01\x85K\x01\x85")), "-1, where a size is expected"),
        (item(&tensor("FloatStorage", b"K\0K\x02\x85K\x02\x85")), "has strides [2], with gaps or repetitions"),
        (item(&tensor("FloatStorage", b"K\0K\x02\x85K\0\x85")), "has strides [0]"),
        (item(&tensor("FloatStorage", b"K\0K\x02\x85)")), "of shape [2] has strides []"),
        (item(b"N"), "no name of its own"),
        (b"\x80\x02]. ".to_vec(), "it holds a list, and a state dict is expected"),
        (item(&tensor("FloatStorage", b"K\0K\x02\x85"))[..40].to_vec(), "of its pickle:"),
        (b"\x80\x02h\x05.".to_vec(), "it recalls value 5"),
        (b"\x80\x02R.".to_vec(), "empty stack"),
        (b"\x80\x02(K\x01u.".to_vec(), "what is no dict"),
        (b"\x80\x02X\xff\xff\xff\xffabc".to_vec(), "4294967295 bytes are to follow"),
        (b"\x80\x02\x8a\x09123456789.".to_vec(), "an integer of 9 bytes"),
        (b"".to_vec(), "1 bytes are to follow"),
    ] {
        if expected == "no name of its own" {
            // What is no tensor is passed over.
            let bytes = archive(&[("a/data.pkl", &pickle)], CompressionMethod::STORE);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("w.pt");
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(PytorchWeights::open([path]).unwrap().names().count(), 0);
            continue;
        }
        let reason = of_pickle(&pickle);
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
    // A dict that contains itself, and one that is in a hundred dicts, which are in a hundred each, and so on.
    assert!(of_pickle(b"\x80\x02}q\0X\x01\0\0\0xh\0s.").contains("contain themselves"));
    let mut many = b"\x80\x02}q\0".to_vec();
    for level in 1..=12 {
        many.extend(b"}(");
        for key in 0..100 {
            many.extend([b'K', key, b'h', level - 1]);
        }
        many.extend([b'u', b'q', level]);
    }
    many.push(b'.');
    assert!(of_pickle(&many).contains("contain themselves"));
}

#[test]
fn archives_that_are_none_are_refused() {
    let pickle = item(b"N");
    assert!(reason(b"PK\x03\x04").contains("it is no zip archive"));
    assert!(
        reason(&archive(&[("a/other", b"")], CompressionMethod::STORE)).contains("the archive has no `data.pkl`"),
        "no pickle"
    );
    let deflated = archive(&[("a/data.pkl", &pickle)], CompressionMethod::DEFLATE);
    assert!(reason(&deflated).contains("`a/data.pkl` of its archive is compressed"));
    let big = archive(&[("a/data.pkl", &pickle), ("a/byteorder", b"big")], CompressionMethod::STORE);
    assert!(reason(&big).contains("big-endian"));
    let lacks = item(&tensor("FloatStorage", b"K\0K\x02\x85K\x01\x85"));
    let lacks = archive(&[("a/data.pkl", &lacks)], CompressionMethod::STORE);
    assert!(reason(&lacks).contains("in storage `0`, which the archive does not have"));
    let whole = std::fs::read(saved()).unwrap();
    for cut in [4, 100, 1000, whole.len() - 30] {
        assert!(!reason(&whole[..cut]).is_empty());
    }
    // What is before PyTorch 1.6, or a pickle alone, begins otherwise.
    assert!(!reason(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.").is_empty());
}

#[test]
fn dtypes_that_there_are_not_are_named() {
    let pickle = item(&tensor("ComplexFloatStorage", b"K\0K\x01\x85K\x01\x85"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.pt");
    let files: [(&str, &[u8]); 2] = [("a/data.pkl", &pickle), ("a/data/0", &[0; 16])];
    std::fs::write(&path, archive(&files, CompressionMethod::STORE)).unwrap();
    let error = PytorchWeights::open([path]).unwrap().tensor("x").unwrap_err();
    assert!(error.to_string().contains("torch.ComplexFloatStorage"), "{error}");
}
