//! Files that are cut off, contradict themselves, or say that they have more than they are long.

use std::path::PathBuf;

use max::graph::weights::{GgufWeights, WeightsError, WeightsFormat};

/// A GGUF file under construction.
struct Writer(Vec<u8>);

impl Writer {
    fn new(version: u32, tensors: u64, pairs: u64) -> Writer {
        let mut writer = Writer(b"GGUF".to_vec());
        writer.u32(version).u64(tensors).u64(pairs);
        writer
    }

    fn u32(&mut self, value: u32) -> &mut Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn string(&mut self, text: &str) -> &mut Writer {
        self.u64(text.len() as u64).0.extend(text.as_bytes());
        self
    }

    fn tensor(&mut self, name: &str, shape: &[u64], ty: u32, offset: u64) -> &mut Writer {
        self.string(name).u32(shape.len() as u32);
        shape.iter().for_each(|size| _ = self.u64(*size));
        self.u32(ty).u64(offset)
    }

    /// With zeros up to the data, and so many bytes of it.
    fn data(&mut self, bytes: usize) -> &mut Writer {
        let end = self.0.len().next_multiple_of(32) + bytes;
        self.0.resize(end, 0);
        self
    }

    /// What is said of it, without the path.
    fn reason(&self) -> String {
        reason(&self.0)
    }
}

fn opened(bytes: &[u8]) -> Result<GgufWeights, WeightsError> {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("w.gguf");
    std::fs::write(&path, bytes).unwrap();
    GgufWeights::open([path])
}

fn reason(bytes: &[u8]) -> String {
    match opened(bytes).expect_err("an error") {
        WeightsError::Format { format: WeightsFormat::Gguf, reason, .. } => reason,
        error => panic!("{error}"),
    }
}

#[test]
fn contradictions_are_named() {
    let two = |ty: u32, shape: &[u64], second: u64| {
        let mut writer = Writer::new(3, 2, 0);
        writer.tensor("a", shape, ty, 0).tensor("b", shape, ty, second).data(64);
        writer
    };
    assert_eq!(opened(&two(0, &[4], 32).0).unwrap().names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(two(0, &[4], 8).reason(), "tensors `a` and `b` share bytes");
    assert_eq!(two(0, &[4], 49).reason(), "tensor `b` would take 16 bytes from 49 of the data on, beyond its end");
    assert_eq!(two(2, &[33], 0).reason(), "tensor `a` is q4_0, in blocks of 32, but has rows of another size");
    assert_eq!(two(2, &[], 0).reason(), "tensor `a` is q4_0, in blocks of 32, but has rows of another size");
    assert_eq!(two(0, &[1 << 62, 16], 0).reason().split(" of shape").next(), Some("tensor `a`"));
    assert_eq!(
        Writer::new(3, 2, 0).tensor("a", &[4], 0, 0).tensor("a", &[4], 0, 32).data(64).reason(),
        "tensor `a` stands there twice"
    );
    // A type that is not read is no damage: the others are there.
    let other = opened(&two(16, &[256], 0).0).unwrap();
    let error = other.tensor("a").unwrap_err().to_string();
    assert!(error.contains("has dtype IQ2_XXS"), "{error}");
    // Of one that becomes another, the blocks in the file are counted.
    assert_eq!(two(6, &[33], 0).reason(), "tensor `a` is Q5_0, in blocks of 32, but has rows of another size");
    assert_eq!(two(6, &[64], 0).reason(), "tensors `a` and `b` share bytes");
    let bytes = "tensor `a` would take 84 bytes from 0 of the data on, beyond its end";
    assert_eq!(two(10, &[256], 0).reason(), bytes);
    assert_eq!(two(10, &[1 << 60, 256], 0).reason().split(" of shape").next(), Some("tensor `a`"));
}

#[test]
fn counts_are_compared_with_the_file() {
    assert_eq!(
        Writer::new(3, u64::MAX, 0).reason(),
        "it says that it has 18446744073709551615 of tensors, but 8 bytes are left"
    );
    let many = Writer::new(3, 0, 1).string("x").u32(9).u32(8).u64(1 << 40).reason();
    assert_eq!(many, "it says that it has 1099511627776 of x, but 0 bytes are left");
    let long = Writer::new(3, 0, 1).u64(1 << 50).data(64).reason();
    assert!(long.starts_with("it says that it has 1125899906842624 of a name of metadata, but"), "{long}");
    // Arrays in arrays in arrays.
    let mut deep = Writer::new(3, 0, 1);
    deep.string("x").u32(9);
    (0..40).for_each(|_| _ = deep.u32(9).u64(1));
    assert_eq!(deep.reason(), "metadata `x` has arrays more than 4 deep");
}

#[test]
fn other_files_are_refused() {
    assert_eq!(reason(b"GGU"), "it ends at byte 3, in the letters GGUF");
    assert_eq!(reason(b"PK\x03\x04"), "it begins with bytes [50, 4b, 03, 04], not with the letters GGUF");
    assert_eq!(Writer::new(1, 0, 0).reason(), "its version is 1, and 2 and 3 are read; write it anew");
    assert_eq!(Writer::new(3 << 24, 0, 0).reason(), "its numbers are big-endian, which is not read");
    let alignment = |value| Writer::new(3, 0, 1).string("general.alignment").u32(4).u32(value).data(64).reason();
    assert_eq!([alignment(3), alignment(0)], ["its `general.alignment` is no power of two"; 2]);
    assert_eq!(
        Writer::new(3, 0, 1).string("x").u32(13).u64(0).reason(),
        "metadata `x` is of kind 13, which there is not"
    );
}

#[test]
fn every_end_and_every_byte_is_an_error_or_weights() {
    let file = std::fs::read([env!("CARGO_MANIFEST_DIR"), "weights/blocks.gguf"].iter().collect::<PathBuf>()).unwrap();
    let header = file.len() - 23 * 1024;
    for end in 0..header {
        assert!(opened(&file[..end]).is_err(), "{end} bytes");
    }
    for at in (0..header).step_by(3) {
        let mut changed = file.clone();
        changed[at] ^= 0x80;
        if let Ok(weights) = opened(&changed) {
            for name in weights.names() {
                _ = weights.data(name).map(|data| data.logical_shape());
            }
        }
    }
}
