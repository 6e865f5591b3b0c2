//! [`GgufWeights`]: weights in files of the format [GGUF](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), read here
//! and written in `write.rs`.
//!
//! A file has typed metadata, then the names, shapes and places of its tensors, then their bytes. It is read in the order
//! that it is written in; every count and length is compared with what is left of the file before memory is asked for.

pub(super) mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read as _};

use super::WeightsFormat;
use super::archive::gguf_convert::Converted;
use super::archive::header::{Entry, Header, HeaderError};
use super::archive::json::LARGEST_RANK;
use super::archive::private::Read;
use super::archive::{FileWeights, Format};
use crate::dtype::DType;
use crate::graph::quantization::QuantizationEncoding;

/// What GGUF files begin with.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";

/// The format GGUF, of llama.cpp.
pub enum Gguf {}

/// The weights in one GGUF file, or in all parts of a split one.
///
/// Names are llama.cpp's (`blk.0.attn_q.weight`). Sizes are in the order of this crate: the last one is that of what lies side
/// by side, while the format writes it first. A quantized weight is a tensor of bytes, whose
/// [encoding](FileWeights::quantization_encoding) says how to read them.
pub type GgufWeights = FileWeights<Gguf>;

/// A value that a file tells by name, such as `llama.context_length`.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum MetadataValue {
    /// A signed or unsigned integer of up to 64 bits.
    Int(i128),
    /// A float of 32 or 64 bits.
    Float(f64),
    /// A bool.
    Bool(bool),
    /// A string; bytes that are no UTF-8 are replaced.
    String(String),
    /// Values of one kind.
    Array(Vec<MetadataValue>),
}

impl MetadataValue {
    /// An integer that fits.
    pub fn as_usize(&self) -> Option<usize> {
        if let MetadataValue::Int(value) = self { usize::try_from(*value).ok() } else { None }
    }

    /// A number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            MetadataValue::Int(value) => Some(*value as f64),
            MetadataValue::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// A string.
    pub fn as_str(&self) -> Option<&str> {
        if let MetadataValue::String(value) = self { Some(value) } else { None }
    }

    /// An array.
    pub fn as_array(&self) -> Option<&[MetadataValue]> {
        if let MetadataValue::Array(values) = self { Some(values) } else { None }
    }
}

impl Read for Gguf {
    type Metadata = BTreeMap<String, MetadataValue>;

    fn header(file: &mut File, bytes: u64) -> Result<Header<Self::Metadata>, HeaderError> {
        read(&mut BufReader::new(file), bytes)
    }

    fn merge(all: &mut Self::Metadata, more: Self::Metadata) {
        all.extend(more);
    }

    fn format(_: &mut File) -> WeightsFormat {
        WeightsFormat::Gguf
    }
}

impl Format for Gguf {}

impl GgufWeights {
    /// What the files tell by name; of a name in several, the last value.
    ///
    /// ```no_run
    /// # use max_core as max;
    /// let weights = max::graph::weights::GgufWeights::open(["model.gguf"])?;
    /// let layers = weights.metadata().get("llama.block_count").and_then(|value| value.as_usize());
    /// # Ok::<(), max::Error>(())
    /// ```
    pub fn metadata(&self) -> &BTreeMap<String, MetadataValue> {
        self.told()
    }
}

/// How the elements of a ggml type are stored.
enum Stored {
    Plain(DType),
    Blocks(QuantizationEncoding),
    /// Blocks that become others when they are read.
    Converted(Converted),
    /// One that is not read, with its name.
    Other(&'static str),
}

/// The ggml types, by their numbers.
fn stored(number: u32) -> Option<Stored> {
    Some(match number {
        0 => Stored::Plain(DType::F32),
        1 => Stored::Plain(DType::F16),
        2 => Stored::Blocks(QuantizationEncoding::Q4_0),
        3 => Stored::Converted(Converted::Q4_1),
        6 => Stored::Converted(Converted::Q5_0),
        7 => Stored::Converted(Converted::Q5_1),
        8 => Stored::Blocks(QuantizationEncoding::Q8_0),
        9 => Stored::Other("Q8_1"),
        10 => Stored::Converted(Converted::Q2_K),
        11 => Stored::Converted(Converted::Q3_K),
        12 => Stored::Blocks(QuantizationEncoding::Q4_K),
        13 => Stored::Blocks(QuantizationEncoding::Q5_K),
        14 => Stored::Blocks(QuantizationEncoding::Q6_K),
        15 => Stored::Other("Q8_K"),
        16 => Stored::Other("IQ2_XXS"),
        17 => Stored::Other("IQ2_XS"),
        18 => Stored::Other("IQ3_XXS"),
        19 => Stored::Other("IQ1_S"),
        20 => Stored::Converted(Converted::IQ4_NL),
        21 => Stored::Other("IQ3_S"),
        22 => Stored::Other("IQ2_S"),
        23 => Stored::Converted(Converted::IQ4_XS),
        24 => Stored::Plain(DType::I8),
        25 => Stored::Plain(DType::I16),
        26 => Stored::Plain(DType::I32),
        27 => Stored::Plain(DType::I64),
        28 => Stored::Plain(DType::F64),
        29 => Stored::Other("IQ1_M"),
        30 => Stored::Plain(DType::BF16),
        34 => Stored::Other("TQ1_0"),
        35 => Stored::Other("TQ2_0"),
        39 => Stored::Other("MXFP4"),
        _ => return None,
    })
}

/// The number of the ggml type of elements of a dtype, or of blocks.
pub(super) fn number_of(dtype: DType, encoding: Option<QuantizationEncoding>) -> Option<u32> {
    (0..64).find(|number| match (stored(*number), encoding) {
        (Some(Stored::Plain(plain)), None) => plain == dtype,
        (Some(Stored::Blocks(blocks)), Some(encoding)) => blocks == encoding,
        _ => false,
    })
}

/// The kinds of metadata, by their numbers.
pub(super) mod kind {
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;

    /// The least bytes that a value of a kind takes.
    pub fn least_bytes(kind: u32) -> Option<u64> {
        Some(match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            STRING | 10..=12 => 8,
            ARRAY => 12,
            _ => return None,
        })
    }
}

/// Arrays in arrays are read this deep.
const LARGEST_DEPTH: usize = 4;

/// Where tensors begin is a multiple of this, if the file says nothing else.
pub(super) const ALIGNMENT: u64 = 32;

/// Reads a file from its start, and knows how much is left of it.
struct Source<R> {
    from: R,
    at: u64,
    end: u64,
}

impl<R: std::io::Read> Source<R> {
    fn left(&self) -> u64 {
        self.end - self.at
    }

    fn fail<T>(&self, reason: impl Into<String>) -> Result<T, HeaderError> {
        Err(HeaderError::Format(reason.into()))
    }

    fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], HeaderError> {
        if self.left() < N as u64 {
            return self.fail(format!("it ends at byte {}, in {what}", self.end));
        }
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes).map_err(HeaderError::Io)?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, HeaderError> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, HeaderError> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    /// A number of things that take at least so many bytes each.
    fn count(&mut self, what: &str, least_bytes: u64) -> Result<usize, HeaderError> {
        let count = self.u64(what)?;
        if count > self.left() / least_bytes {
            let left = self.left();
            return self.fail(format!("it says that it has {count} of {what}, but {left} bytes are left"));
        }
        Ok(count as usize)
    }

    fn string(&mut self, what: &str) -> Result<String, HeaderError> {
        let length = self.count(what, 1)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|error| HeaderError::Io(error.into()))?;
        (&mut self.from).take(length as u64).read_to_end(&mut bytes).map_err(HeaderError::Io)?;
        self.at += length as u64;
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    fn value(&mut self, name: &str, kind: u32, depth: usize) -> Result<MetadataValue, HeaderError> {
        Ok(match kind {
            0 => MetadataValue::Int(u8::from_le_bytes(self.bytes(name)?).into()),
            1 => MetadataValue::Int(i8::from_le_bytes(self.bytes(name)?).into()),
            2 => MetadataValue::Int(u16::from_le_bytes(self.bytes(name)?).into()),
            3 => MetadataValue::Int(i16::from_le_bytes(self.bytes(name)?).into()),
            4 => MetadataValue::Int(self.u32(name)?.into()),
            5 => MetadataValue::Int(i32::from_le_bytes(self.bytes(name)?).into()),
            6 => MetadataValue::Float(f32::from_le_bytes(self.bytes(name)?).into()),
            7 => MetadataValue::Bool(self.bytes::<1>(name)? != [0]),
            kind::STRING => MetadataValue::String(self.string(name)?),
            kind::ARRAY => {
                if depth == LARGEST_DEPTH {
                    return self.fail(format!("metadata `{name}` has arrays more than {LARGEST_DEPTH} deep"));
                }
                let of = self.u32(name)?;
                let Some(least) = kind::least_bytes(of) else {
                    return self.fail(format!("metadata `{name}` is an array of kind {of}, which there is not"));
                };
                let count = self.count(name, least)?;
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.value(name, of, depth + 1)?);
                }
                MetadataValue::Array(values)
            }
            10 => MetadataValue::Int(self.u64(name)?.into()),
            11 => MetadataValue::Int(i64::from_le_bytes(self.bytes(name)?).into()),
            12 => MetadataValue::Float(f64::from_le_bytes(self.bytes(name)?)),
            _ => return self.fail(format!("metadata `{name}` is of kind {kind}, which there is not")),
        })
    }

    /// A tensor's entry, whose place is still counted from where the data begins.
    fn tensor(&mut self, name: &str) -> Result<Entry, HeaderError> {
        let what = format!("tensor `{name}`");
        let rank = self.u32(&what)? as usize;
        if rank > LARGEST_RANK {
            return self.fail(format!("{what} has {rank} dims, more than the {LARGEST_RANK} that are read"));
        }
        let mut shape = Vec::with_capacity(rank);
        for _ in 0..rank {
            let size = self.u64(&what)?;
            let Ok(size) = usize::try_from(size) else {
                return self.fail(format!("{what} has a dim of {size}, more than the address space"));
            };
            shape.push(size);
        }
        // What lies side by side comes first there, and last here.
        shape.reverse();
        let number = self.u32(&what)?;
        let start = self.u64(&what)?;
        let (dtype, encoding) = match stored(number) {
            Some(Stored::Plain(dtype)) => (Ok(dtype), None),
            Some(Stored::Blocks(encoding)) => (Ok(DType::U8), Some(encoding)),
            Some(Stored::Converted(kind)) => return self.converted(&what, kind, shape, start),
            Some(Stored::Other(name)) => (Err(name.to_owned()), None),
            None => (Err(format!("ggml type {number}")), None),
        };
        if let Some(encoding) = encoding {
            let elements = encoding.elements_per_block();
            let last = shape.last_mut().filter(|last| last.is_multiple_of(elements));
            let blocks = last.and_then(|last| {
                *last = (*last / elements).checked_mul(encoding.block_size())?;
                Some(())
            });
            if blocks.is_none() {
                return self
                    .fail(format!("{what} is {encoding}, in blocks of {elements}, but has rows of another size"));
            }
        }
        let element = dtype.as_ref().map_or(0, |dtype| dtype.size_in_bytes());
        let bytes = shape.iter().try_fold(element, |product, size| product.checked_mul(*size));
        let Some(bytes) = bytes else {
            return self.fail(format!("{what} of shape {shape:?} is larger than the address space"));
        };
        Ok(Entry { dtype, shape, start, bytes: bytes as u64, encoding, order: None, converted: None })
    }

    /// The entry of a tensor of blocks that become others, as which it is described.
    fn converted(&self, what: &str, kind: Converted, mut shape: Vec<usize>, start: u64) -> Result<Entry, HeaderError> {
        let (elements, encoding) = (kind.elements(), kind.encoding());
        let Some(last) = shape.last_mut().filter(|last| last.is_multiple_of(elements)) else {
            return self.fail(format!("{what} is {kind:?}, in blocks of {elements}, but has rows of another size"));
        };
        let blocks_of_row = *last / elements;
        *last = match encoding {
            Some(encoding) => blocks_of_row.saturating_mul(encoding.block_size()),
            None => *last,
        };
        // What it becomes has to fit, too.
        let rows = shape.iter().rev().skip(1).try_fold(1usize, |product, size| product.checked_mul(*size));
        let blocks = rows.and_then(|rows| rows.checked_mul(blocks_of_row));
        let largest = kind.block_size().max(kind.converted_size());
        let Some(blocks) = blocks.filter(|blocks| blocks.checked_mul(largest).is_some()) else {
            return self.fail(format!("{what} of shape {shape:?} is larger than the address space"));
        };
        let bytes = (blocks * kind.block_size()) as u64;
        Ok(Entry { dtype: Ok(kind.dtype()), shape, start, bytes, encoding, order: None, converted: Some(kind) })
    }
}

/// Reads the header of a file of that many bytes.
fn read(file: &mut impl std::io::Read, end: u64) -> Result<Header<BTreeMap<String, MetadataValue>>, HeaderError> {
    let mut source = Source { from: file, at: 0, end };
    let magic: [u8; 4] = source.bytes("the letters GGUF")?;
    if magic != MAGIC {
        return source.fail(format!("it begins with bytes {magic:02x?}, not with the letters GGUF"));
    }
    match source.u32("the version")? {
        2 | 3 => {}
        version @ 1 => return source.fail(format!("its version is {version}, and 2 and 3 are read; write it anew")),
        version if version.swap_bytes() <= 3 => return source.fail("its numbers are big-endian, which is not read"),
        version => return source.fail(format!("its version is {version}, and 2 and 3 are read")),
    }
    // A tensor has at least a name's length, rank, type and place; a pair a name's length, a kind and a byte.
    let (tensors, pairs) = (source.count("tensors", 24)?, source.count("pairs of metadata", 13)?);
    let mut metadata = BTreeMap::new();
    for _ in 0..pairs {
        let name = source.string("a name of metadata")?;
        let kind = source.u32(&name)?;
        let value = source.value(&name, kind, 0)?;
        if metadata.insert(name.clone(), value).is_some() {
            return source.fail(format!("metadata `{name}` stands there twice"));
        }
    }
    let mut entries = BTreeMap::new();
    for _ in 0..tensors {
        let name = source.string("a tensor's name")?;
        let entry = source.tensor(&name)?;
        if entries.insert(name.clone(), entry).is_some() {
            return source.fail(format!("tensor `{name}` stands there twice"));
        }
    }
    let alignment = match metadata.get("general.alignment") {
        None => ALIGNMENT,
        Some(value) => match value.as_usize().filter(|value| value.is_power_of_two()) {
            Some(value) => value as u64,
            None => return source.fail("its `general.alignment` is no power of two"),
        },
    };
    let Some(data) = source.at.checked_next_multiple_of(alignment).filter(|data| *data <= end || entries.is_empty())
    else {
        return source.fail(format!("it ends at byte {end}, before its data"));
    };
    for (name, entry) in &mut entries {
        let place = data.checked_add(entry.start);
        let Some(start) = place.filter(|start| start.checked_add(entry.bytes).is_some_and(|last| last <= end)) else {
            let (at, bytes) = (entry.start, entry.bytes);
            return source
                .fail(format!("tensor `{name}` would take {bytes} bytes from {at} of the data on, beyond its end"));
        };
        entry.start = start;
    }
    disjoint(&entries).map_err(HeaderError::Format)?;
    Ok(Header { tensors: entries, metadata })
}

/// That no byte belongs to two tensors.
fn disjoint(entries: &BTreeMap<String, Entry>) -> Result<(), String> {
    let mut ranges: Vec<_> =
        entries.iter().map(|(name, entry)| (entry.start, entry.start + entry.bytes, name)).collect();
    ranges.sort_unstable();
    let overlap = ranges.windows(2).find(|pair| pair[0].1 > pair[1].0);
    overlap.map_or(Ok(()), |pair| Err(format!("tensors `{}` and `{}` share bytes", pair[0].2, pair[1].2)))
}
