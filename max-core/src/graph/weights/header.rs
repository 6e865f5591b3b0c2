//! The header of a safetensors file: 8 bytes with its length, then JSON that says of each tensor its dtype, its shape and
//! which bytes of the rest of the file it is. <https://huggingface.co/docs/safetensors>

use std::collections::BTreeMap;
use std::io::Read;

use serde_json::{Map, Value};

use super::WeightType;
use crate::dtype::DType;

/// Longer headers are refused, as by the format's own library.
pub(super) const LARGEST_HEADER: u64 = 100_000_000;

/// What a header says.
#[derive(Debug)]
pub(super) struct Header {
    pub tensors: BTreeMap<String, Entry>,
    /// What else was written about the file.
    pub metadata: BTreeMap<String, String>,
}

/// One tensor.
#[derive(Debug)]
pub(super) struct Entry {
    /// The dtype's name, and its meaning if it is one of ours.
    pub dtype: (String, Option<DType>),
    pub shape: Vec<usize>,
    /// Where it begins in the file, and how many bytes it has.
    pub start: u64,
    pub bytes: u64,
}

/// Why a file has no header that can be believed.
pub(super) enum HeaderError {
    Io(std::io::Error),
    Format(String),
}

impl Entry {
    pub fn ty(&self) -> Option<WeightType> {
        Some(WeightType { dtype: self.dtype.1?, shape: self.shape.clone() })
    }
}

/// The dtypes of the format, and what they are here.
fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "BOOL" => DType::Bool,
        "I8" => DType::I8,
        "I16" => DType::I16,
        "I32" => DType::I32,
        "I64" => DType::I64,
        "U8" => DType::U8,
        "U16" => DType::U16,
        "U32" => DType::U32,
        "U64" => DType::U64,
        "F8_E4M3" => DType::F8E4M3FN,
        "F8_E5M2" => DType::F8E5M2,
        "F8_E4M3FNUZ" => DType::F8E4M3FNUZ,
        "F8_E5M2FNUZ" => DType::F8E5M2FNUZ,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "F32" => DType::F32,
        "F64" => DType::F64,
        _ => return None,
    })
}

/// Reads the header of a file of that many bytes.
pub(super) fn read(file: &mut impl Read, file_bytes: u64) -> Result<Header, HeaderError> {
    let format = |reason: String| Err(HeaderError::Format(reason));
    if file_bytes < 8 {
        return format(format!("it has {file_bytes} bytes, and the length of its header takes 8"));
    }
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(HeaderError::Io)?;
    let length = u64::from_le_bytes(length);
    if length > LARGEST_HEADER || length > file_bytes - 8 {
        return format(format!("its header would have {length} bytes, but {} follow", file_bytes - 8));
    }
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text).map_err(HeaderError::Io)?;
    match serde_json::from_slice::<Map<String, Value>>(&text) {
        Ok(entries) => parse(entries, 8 + length, file_bytes - 8 - length).map_err(HeaderError::Format),
        Err(error) => format(format!("its header is no JSON object: {error}")),
    }
}

/// The header of a file with `data` bytes from `start` on.
fn parse(entries: Map<String, Value>, start: u64, data: u64) -> Result<Header, String> {
    let mut header = Header { tensors: BTreeMap::new(), metadata: BTreeMap::new() };
    let mut ranges = Vec::new();
    for (name, value) in entries {
        if name == "__metadata__" {
            let Value::Object(all) = value else { return Err("`__metadata__` is no object".to_owned()) };
            for (key, value) in all {
                let Value::String(value) = value else { return Err(format!("metadata `{key}` is no string")) };
                header.metadata.insert(key, value);
            }
            continue;
        }
        let (entry, range) = tensor(&value, start, data).map_err(|reason| format!("tensor `{name}`: {reason}"))?;
        ranges.push((range, name.clone()));
        header.tensors.insert(name, entry);
    }
    // Every byte belongs to one tensor: so nothing was cut off, and no name stood there twice.
    ranges.sort_unstable();
    let mut end = 0;
    for ([from, to], name) in &ranges {
        if *from != end {
            let what = if *from < end { "belong to another tensor too" } else { "before it belong to none" };
            let (a, b) = if *from < end { (*from, end.min(*to)) } else { (end, *from) };
            return Err(format!("tensor `{name}`: bytes {a}..{b} of the data {what}"));
        }
        end = *to;
    }
    if end != data {
        return Err(format!("its tensors take {end} bytes of data, but {data} follow the header"));
    }
    Ok(header)
}

fn tensor(value: &Value, start: u64, data: u64) -> Result<(Entry, [u64; 2]), String> {
    let numbers = |key: &str| -> Option<Vec<u64>> { value.get(key)?.as_array()?.iter().map(Value::as_u64).collect() };
    let name = value.get("dtype").and_then(Value::as_str).ok_or("it has no `dtype`")?;
    let sizes = numbers("shape").ok_or("its `shape` is no list of sizes")?;
    let offsets = numbers("data_offsets").ok_or("its `data_offsets` are no numbers")?;
    let [from, to] = offsets[..] else { return Err(format!("its `data_offsets` are {}, not two", offsets.len())) };
    if from > to || to > data {
        return Err(format!("it would take bytes {from}..{to} of the data, which has {data}"));
    }
    let shape = sizes.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<Vec<usize>>>();
    let elements = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
    let (Some(shape), Some(elements)) = (shape, elements) else {
        return Err(format!("shape {sizes:?} is larger than the address space"));
    };
    let dtype = dtype(name);
    if let Some(dtype) = dtype {
        let needed = elements.checked_mul(dtype.size_in_bytes() as u64);
        if needed != Some(to - from) {
            let needed = needed.map_or_else(|| "more than 2^64".to_owned(), |needed| needed.to_string());
            return Err(format!("{name} of shape {shape:?} takes {needed} bytes, but has {}", to - from));
        }
    }
    Ok((Entry { dtype: (name.to_owned(), dtype), shape, start: start + from, bytes: to - from }, [from, to]))
}
