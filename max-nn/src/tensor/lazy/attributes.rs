//! [`Attributes`]: what an op is given beside tensors, and [`Key`], the words by which a staged op is found again.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use max_core::driver::DeviceRef;
use max_core::dtype::DType;
use max_core::graph::ops::{
    AttentionOptions, ConvOptions, FoldOptions, GeluApproximation, InterpolationMode, Normalization, PadMode,
    PoolOptions,
};
use max_core::graph::quantization::QuantizationEncoding;
use max_core::graph::{Dim, DimSlice, Parameters, Scalar, Shape, TensorType};

/// The words that tell one op from another: two keys are equal exactly if name, attributes and operand types are.
#[derive(Default)]
pub(crate) struct Key(Vec<u64>);

/// What is known of keys: of ops, and of regions.
pub(crate) type KeyMap<T> = HashMap<Box<[u64]>, T, BuildHasherDefault<KeyHasher>>;

/// Stands before a dim that is not a plain size.
const SYMBOLIC: u64 = 1 << 63;

impl Key {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    #[inline]
    pub fn word(&mut self, value: u64) {
        self.0.push(value);
    }

    pub fn text(&mut self, value: &str) {
        self.word(value.len() as u64);
        for bytes in value.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.word(u64::from_le_bytes(word));
        }
    }

    /// As `Debug` prints it: for what is rare.
    fn debug(&mut self, value: &dyn fmt::Debug) {
        self.text(&format!("{value:?}"));
    }

    #[inline]
    pub fn ty(&mut self, ty: &TensorType) {
        self.kind(ty);
        ty.shape.iter().for_each(|dim| self.dim(dim));
    }

    /// A type without its sizes.
    #[inline]
    pub fn kind(&mut self, ty: &TensorType) {
        let device = u64::from(ty.device.id) << 1 | u64::from(ty.device.is_gpu());
        self.word(ty.dtype as u64 | (ty.rank() as u64) << 8 | device << 24);
    }

    fn device(&mut self, device: DeviceRef) {
        self.word(u64::from(device.id) << 1 | u64::from(device.is_gpu()));
    }

    fn shape(&mut self, shape: &Shape) {
        self.word(shape.rank() as u64);
        shape.iter().for_each(|dim| self.dim(dim));
    }

    #[inline]
    fn dim(&mut self, dim: &Dim) {
        match dim {
            Dim::Static(size) if *size as u64 != SYMBOLIC => self.word(*size as u64),
            symbolic => {
                self.word(SYMBOLIC);
                self.debug(symbolic);
            }
        }
    }
}

/// Hashes keys by words: a folded multiplication each.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl KeyHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        let product = u128::from((self.0.rotate_left(5) ^ word) | 1 << 63) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64 ^ word;
    }
}

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last).wrapping_add(0x2545_f491_4f6c_dd1d));
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What an op is given beside tensors: it is part of the key by which its compiled form is found.
pub(crate) trait Attributes: Clone + Send + Sync + 'static {
    fn write(&self, key: &mut Key);
}

macro_rules! attributes {
    ($($ty:ty: |$value:ident, $key:ident| $write:expr;)*) => {$(
        impl Attributes for $ty {
            fn write(&self, $key: &mut Key) {
                let $value = self;
                $write
            }
        }
    )*};
}
attributes! {
    (): |_value, _key| {};
    bool: |value, key| key.word(u64::from(*value));
    i64: |value, key| key.word(*value as u64);
    usize: |value, key| key.word(*value as u64);
    f64: |value, key| key.word(value.to_bits());
    DType: |value, key| key.word(*value as u64);
    DeviceRef: |value, key| key.device(*value);
    Shape: |value, key| key.shape(value);
    TensorType: |value, key| key.ty(value);
    Arc<str>: |value, key| key.text(value);
    Scalar: |value, key| key.debug(value);
    PadMode: |value, key| key.debug(value);
    InterpolationMode: |value, key| key.debug(value);
    Normalization: |value, key| key.word(*value as u64);
    GeluApproximation: |value, key| key.word(*value as u64);
    QuantizationEncoding: |value, key| key.text(value.name());
    Parameters: |value, key| key.debug(value);
    FoldOptions: |value, key| (value.stride, value.dilation, value.padding).write(key);
    PoolOptions: |value, key| {
        (value.stride, value.dilation, value.padding, value.ceil_mode).write(key);
        key.debug(&value.input_layout);
    };
    AttentionOptions: |value, key| (value.scale, value.causal, value.queries_last).write(key);
    DimSlice: |value, key| match value {
        DimSlice::Index(index) => {
            key.word(0);
            key.dim(index);
        }
        DimSlice::Range { start, stop, step } => {
            key.word(1);
            for end in [start, stop] {
                key.word(u64::from(end.is_some()));
                end.iter().for_each(|end| key.dim(end));
            }
            step.write(key);
        }
        DimSlice::Ellipsis => key.word(2),
        DimSlice::NewAxis => key.word(3),
        DimSlice::Value(_) | DimSlice::ValueRange { .. } => {
            key.word(4);
            key.debug(value);
        }
    };
}

impl<const D: usize> Attributes for ConvOptions<D> {
    fn write(&self, key: &mut Key) {
        (self.stride, self.dilation, self.padding, self.groups).write(key);
        key.debug(&(self.input_layout, self.filter_layout));
    }
}

impl<T: Attributes> Attributes for Option<T> {
    fn write(&self, key: &mut Key) {
        key.word(u64::from(self.is_some()));
        self.iter().for_each(|value| value.write(key));
    }
}

impl<T: Attributes> Attributes for Vec<T> {
    fn write(&self, key: &mut Key) {
        self.len().write(key);
        self.iter().for_each(|value| value.write(key));
    }
}

impl<T: Attributes, const N: usize> Attributes for [T; N] {
    fn write(&self, key: &mut Key) {
        self.iter().for_each(|value| value.write(key));
    }
}

macro_rules! attributes_of_tuples {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Attributes),+> Attributes for ($($name,)+) {
            fn write(&self, key: &mut Key) {
                $(self.$index.write(key);)+
            }
        }
    };
}
attributes_of_tuples!(A 0, B 1);
attributes_of_tuples!(A 0, B 1, C 2);
attributes_of_tuples!(A 0, B 1, C 2, D 3);
attributes_of_tuples!(A 0, B 1, C 2, D 3, E 4);

#[cfg(test)]
mod tests {
    use super::*;

    fn key(attributes: &impl Attributes) -> Vec<u64> {
        let mut key = Key::default();
        attributes.write(&mut key);
        key.0
    }

    #[test]
    fn keys_differ_where_attributes_do() {
        let keys = [
            key(&(1i64, vec![2i64, 3])),
            key(&(1i64, vec![2i64])),
            key(&(1i64, vec![3i64, 2])),
            key(&(None::<i64>, 1i64)),
            key(&(Some(1i64), 1i64)),
            key(&PadMode::Constant(Scalar::Float(0.0))),
            key(&PadMode::Constant(Scalar::Float(-0.0))),
            key(&PadMode::Constant(Scalar::Int(0))),
            key(&DimSlice::from(1..)),
            key(&DimSlice::from(..1)),
            key(&DimSlice::from(0..1)),
            key(&DimSlice::from(2..5)),
            key(&DimSlice::from(7)),
            key(&Shape::from([1, 2])),
            key(&Shape::from(("n", 2))),
            key(&Shape::from(("m", 2))),
        ];
        for (i, a) in keys.iter().enumerate() {
            for (j, b) in keys.iter().enumerate() {
                assert_eq!(a == b, i == j, "{i} and {j}");
            }
        }
    }

    #[test]
    fn hashes_of_near_keys_differ() {
        let hash = |bytes: &[u8]| {
            let mut hasher = KeyHasher::default();
            std::hash::Hash::hash(bytes, &mut hasher);
            hasher.finish()
        };
        let mut hashes: Vec<u64> =
            (0..=255u8).flat_map(|i| [hash(&[i]), hash(&[i, 0]), hash(&[7, 7, 7, 7, 7, 7, 7, 7, i])]).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 3 * 256);
    }
}
