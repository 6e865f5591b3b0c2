//! [`Header`]: what the header of a file of weights says; and that of a safetensors file: 8 bytes with its length, then JSON that says of each tensor its dtype, its shape and
//! which bytes of the rest of the file it is. <https://huggingface.co/docs/safetensors>

use std::collections::BTreeMap;
use std::io::Read;

use serde::de::{IgnoredAny, MapAccess};

use super::gguf_convert::Converted;
use super::json;
use super::json::{Field, LARGEST_RANK, Numbers, Object};
use crate::dtype::DType;
use crate::graph::quantization::QuantizationEncoding;
use crate::graph::weights::WeightType;

/// Longer headers are refused, as by the format's own library.
pub(in crate::graph::weights) const LARGEST_HEADER: u64 = 100_000_000;

/// What a header says.
#[derive(Debug)]
pub struct Header<M> {
    pub(in crate::graph::weights) tensors: BTreeMap<String, Entry>,
    /// What else was written about the file.
    pub(in crate::graph::weights) metadata: M,
}

/// One tensor.
#[derive(Debug)]
pub(in crate::graph::weights) struct Entry {
    /// The dtype, or the name of one that is none of ours.
    pub dtype: Result<DType, String>,
    pub shape: Vec<usize>,
    /// Where it begins in the file, and how many bytes it has.
    pub start: u64,
    pub bytes: u64,
    /// How its bytes are quantized, if they are: dtype and shape are those of the bytes then.
    pub encoding: Option<QuantizationEncoding>,
    /// Its axes in the order in which they lie in the file, where that is not their own.
    pub order: Option<Vec<usize>>,
    /// What its blocks in the file are, where dtype, shape and encoding are those of what they become.
    pub converted: Option<Converted>,
}

/// Why a file has no header that can be believed.
pub enum HeaderError {
    Io(std::io::Error),
    Format(String),
}

impl Entry {
    pub fn ty(&self) -> Option<WeightType> {
        Some(WeightType { dtype: *self.dtype.as_ref().ok()?, shape: self.shape.clone() })
    }
}

/// The dtypes of the format, and what they are here.
pub(in crate::graph::weights) const DTYPES: [(&str, DType); 17] = [
    ("BOOL", DType::Bool),
    ("I8", DType::I8),
    ("I16", DType::I16),
    ("I32", DType::I32),
    ("I64", DType::I64),
    ("U8", DType::U8),
    ("U16", DType::U16),
    ("U32", DType::U32),
    ("U64", DType::U64),
    ("F8_E4M3", DType::F8E4M3FN),
    ("F8_E5M2", DType::F8E5M2),
    ("F8_E4M3FNUZ", DType::F8E4M3FNUZ),
    ("F8_E5M2FNUZ", DType::F8E5M2FNUZ),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("F32", DType::F32),
    ("F64", DType::F64),
];

/// Reads the header of a file of that many bytes.
pub(in crate::graph::weights) fn read(
    file: &mut impl Read,
    file_bytes: u64,
) -> Result<Header<BTreeMap<String, String>>, HeaderError> {
    let format = |reason: String| Err(HeaderError::Format(reason));
    if file_bytes < 8 {
        return format(format!("it has {file_bytes} bytes, and the length of its header takes 8"));
    }
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(HeaderError::Io)?;
    let length = u64::from_le_bytes(length);
    if length > file_bytes - 8 {
        return format(format!("its header would have {length} bytes, but {} follow", file_bytes - 8));
    }
    if length > LARGEST_HEADER {
        return format(format!("its header has {length} bytes, more than the {LARGEST_HEADER} that are read"));
    }
    let mut text = Vec::new();
    text.try_reserve_exact(length as usize).map_err(|error| HeaderError::Io(error.into()))?;
    file.take(length).read_to_end(&mut text).map_err(HeaderError::Io)?;
    parse(&text, 8 + length, file_bytes - 8 - length).map_err(HeaderError::Format)
}

/// The header of a file with `data` bytes from `start` on.
fn parse(text: &[u8], start: u64, data: u64) -> Result<Header<BTreeMap<String, String>>, String> {
    let header = Header { tensors: BTreeMap::new(), metadata: BTreeMap::new() };
    let mut reader = HeaderReader { header, start, data, problem: None };
    json::read(text, &mut reader).map_err(|reason| match reason.strip_prefix("is no JSON") {
        Some(rest) => format!("its header is no JSON{rest}"),
        None => reason,
    })?;
    let header = reader.header;
    // Every byte belongs to one tensor: so nothing was cut off, and no name stood there twice.
    let range = |(name, entry): (_, &Entry)| (entry.start - start, entry.start - start + entry.bytes, name);
    let mut ranges: Vec<(u64, u64, &String)> = header.tensors.iter().map(range).collect();
    ranges.sort_unstable();
    let mut end = 0;
    for (from, to, name) in ranges {
        if from != end {
            let what = if from < end { "belong to another tensor too" } else { "before it belong to none" };
            let (a, b) = if from < end { (from, end.min(to)) } else { (end, from) };
            return Err(format!("tensor `{name}`: bytes {a}..{b} of the data {what}"));
        }
        end = to;
    }
    if end != data {
        return Err(format!("its tensors take {end} bytes of data, but {data} follow the header"));
    }
    Ok(header)
}

/// What a header has been found to say.
struct HeaderReader {
    header: Header<BTreeMap<String, String>>,
    start: u64,
    data: u64,
    problem: Option<String>,
}

impl Object for HeaderReader {
    fn member<'de, A: MapAccess<'de>>(&mut self, name: String, values: &mut A) -> Result<(), A::Error> {
        if name == "__metadata__" {
            let mut metadata = Metadata::default();
            let is_object = self.inner(&mut metadata, values)?;
            self.header.metadata.extend(metadata.all);
            return if is_object { Ok(()) } else { self.refuse("`__metadata__` is no object".to_owned()) };
        }
        let mut fields = TensorFields::default();
        self.inner(&mut fields, values)?;
        match fields.entry(self.start, self.data) {
            Ok(entry) => self.header.tensors.insert(name, entry),
            Err(reason) => return self.refuse(format!("tensor `{name}`: {reason}")),
        };
        Ok(())
    }

    fn problem(&mut self) -> &mut Option<String> {
        &mut self.problem
    }
}

#[derive(Default)]
struct Metadata {
    all: BTreeMap<String, String>,
    problem: Option<String>,
}

impl Object for Metadata {
    fn member<'de, A: MapAccess<'de>>(&mut self, name: String, values: &mut A) -> Result<(), A::Error> {
        match values.next_value()? {
            Field::Text(value) => self.all.insert(name, value),
            Field::Number(_) | Field::Numbers(_) | Field::Other => {
                return self.refuse(format!("metadata `{name}` is no string"));
            }
        };
        Ok(())
    }

    fn problem(&mut self) -> &mut Option<String> {
        &mut self.problem
    }
}

/// What stands there of one tensor.
#[derive(Default)]
struct TensorFields {
    dtype: Option<String>,
    shape: Option<Numbers>,
    data_offsets: Option<Numbers>,
    problem: Option<String>,
}

impl Object for TensorFields {
    fn member<'de, A: MapAccess<'de>>(&mut self, name: String, values: &mut A) -> Result<(), A::Error> {
        let numbers = |field| if let Field::Numbers(numbers) = field { Some(numbers) } else { None };
        match &*name {
            "dtype" => self.dtype = if let Field::Text(name) = values.next_value()? { Some(name) } else { None },
            "shape" => self.shape = numbers(values.next_value()?),
            "data_offsets" => self.data_offsets = numbers(values.next_value()?),
            _ => {
                values.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn problem(&mut self) -> &mut Option<String> {
        &mut self.problem
    }
}

impl TensorFields {
    fn entry(self, start: u64, data: u64) -> Result<Entry, String> {
        let name = self.dtype.ok_or("it has no `dtype`")?;
        let Numbers { first: sizes, count: rank } = self.shape.ok_or("its `shape` is no list of sizes")?;
        let offsets = self.data_offsets.ok_or("its `data_offsets` are no numbers")?;
        let [from, to] = offsets.first[..] else {
            return Err(format!("its `data_offsets` are {}, not two", offsets.count));
        };
        if from > to || to > data {
            return Err(format!("it would take bytes {from}..{to} of the data, which has {data}"));
        }
        if rank > LARGEST_RANK {
            return Err(format!("its `shape` has {rank} dims, more than the {LARGEST_RANK} that are read"));
        }
        let shape = sizes.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<Vec<usize>>>();
        let elements = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let (Some(shape), Some(elements)) = (shape, elements) else {
            return Err(format!("shape {sizes:?} is larger than the address space"));
        };
        let known = DTYPES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype);
        if let Some(dtype) = known {
            let needed = elements.checked_mul(dtype.size_in_bytes() as u64);
            if needed != Some(to - from) {
                let needed = needed.map_or_else(|| "more than 2^64".to_owned(), |needed| needed.to_string());
                return Err(format!("{name} of shape {shape:?} takes {needed} bytes, but has {}", to - from));
            }
        }
        Ok(Entry {
            dtype: known.ok_or(name),
            shape,
            start: start + from,
            bytes: to - from,
            encoding: None,
            order: None,
            converted: None,
        })
    }
}
