//! [`PytorchWeights`]: weights in files of `torch.save` (`.pt`, `.pth`, `.bin`): a zip archive with a [`pickle`] that says
//! of each tensor which part of which storage it is, and a file for each storage.

mod pickle;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read as _, Seek, SeekFrom};

use rawzip::{CompressionMethod, ZipArchive};

use self::pickle::{Id, Pickle, TensorPart, Value, kind};
use super::WeightsFormat;
use super::archive::header::{Entry, Header, HeaderError, LARGEST_HEADER};
use super::archive::private::Read;
use super::archive::{FileWeights, Format};

/// What zip archives begin with.
pub(super) const MAGIC: [u8; 4] = *b"PK\x03\x04";

/// The format of `torch.save`, since PyTorch 1.6.
pub enum Pytorch {}

/// The weights in one file that `torch.save` wrote of a state dict, or in several.
///
/// Nothing of the file is executed: a pickle that asks for a call of anything but what makes tensors is an error. Names of
/// nested dicts are joined by dots; what is no tensor is passed over. Tensors that share a storage share it in the file,
/// and are weights of their own here.
pub type PytorchWeights = FileWeights<Pytorch>;

impl Read for Pytorch {
    type Metadata = ();

    fn header(file: &mut File, _: u64) -> Result<Header<()>, HeaderError> {
        let tensors = read(file)?;
        Ok(Header { tensors, metadata: () })
    }

    fn merge(_: &mut (), (): ()) {}

    fn format(_: &mut File) -> WeightsFormat {
        WeightsFormat::Pytorch
    }
}

impl Format for Pytorch {}

/// More files in an archive are not read.
const LARGEST_COUNT: usize = 1 << 20;
/// More values of nested dicts are not looked at: one that is in many others counts in each.
const LARGEST_VISITS: usize = 1 << 22;
/// Dicts in dicts are looked into this deep.
const LARGEST_DEPTH: usize = 16;

fn fail<T>(reason: impl Into<String>) -> Result<T, HeaderError> {
    Err(HeaderError::Format(reason.into()))
}

/// Where a file of the archive lies.
struct Stored {
    start: u64,
    bytes: u64,
}

/// The tensors of a file.
fn read(file: &File) -> Result<BTreeMap<String, Entry>, HeaderError> {
    let files = stored_files(file)?;
    let Some((folder, found)) = files.iter().find_map(|(name, found)| Some((name.strip_suffix("data.pkl")?, found)))
    else {
        return fail("the archive has no `data.pkl`");
    };
    if found.bytes > LARGEST_HEADER {
        return fail(format!("its `data.pkl` has {} bytes, more than the {LARGEST_HEADER} that are read", found.bytes));
    }
    if let Some(order) = files.get(&format!("{folder}byteorder"))
        && bytes_of(file, order, 16)? == b"big"
    {
        return fail("its numbers are big-endian, which is not read");
    }
    let pickle = pickle::read(&bytes_of(file, found, LARGEST_HEADER)?).map_err(HeaderError::Format)?;
    let mut entries = BTreeMap::new();
    for (name, part) in tensors(&pickle)? {
        let entry = entry(&name, part, |key| files.get(&format!("{folder}data/{key}")))?;
        entries.insert(name, entry);
    }
    Ok(entries)
}

/// The files of the archive, none of which is compressed: so a tensor can be read where it lies.
fn stored_files(file: &File) -> Result<HashMap<String, Stored>, HeaderError> {
    let damaged = |error: rawzip::Error| HeaderError::Format(format!("it is no zip archive: {error}"));
    let mut buffer = vec![0; rawzip::RECOMMENDED_BUFFER_SIZE];
    let archive = ZipArchive::from_file(file.try_clone().map_err(HeaderError::Io)?, &mut buffer).map_err(damaged)?;
    let mut wayfinders = Vec::new();
    let mut entries = archive.entries(&mut buffer);
    while let Some(entry) = entries.next_entry().map_err(damaged)? {
        let name = String::from_utf8_lossy(entry.file_path().as_ref()).into_owned();
        if wayfinders.len() == LARGEST_COUNT {
            return fail(format!("its archive has more than the {LARGEST_COUNT} files that are read"));
        }
        if entry.compression_method() != CompressionMethod::STORE {
            return fail(format!("`{name}` of its archive is compressed, which `torch.save` does not do"));
        }
        wayfinders.push((name, entry.wayfinder()));
    }
    let length = file.metadata().map_err(HeaderError::Io)?.len();
    let mut files = HashMap::new();
    for (name, wayfinder) in wayfinders {
        let (start, end) = archive.get_entry(wayfinder).map_err(damaged)?.compressed_data_range();
        let Some(bytes) = end.checked_sub(start).filter(|_| end <= length) else {
            return fail(format!("`{name}` of its archive would end behind the file"));
        };
        files.insert(name, Stored { start, bytes });
    }
    Ok(files)
}

/// The bytes of a file of the archive, no more than so many.
fn bytes_of(file: &File, stored: &Stored, most: u64) -> Result<Vec<u8>, HeaderError> {
    let mut file = file;
    file.seek(SeekFrom::Start(stored.start)).map_err(HeaderError::Io)?;
    let mut bytes = Vec::new();
    file.take(Ord::min(stored.bytes, most)).read_to_end(&mut bytes).map_err(HeaderError::Io)?;
    Ok(bytes)
}

/// All tensors of a pickle, by their names.
fn tensors(pickle: &Pickle) -> Result<Vec<(String, &TensorPart)>, HeaderError> {
    let root = &pickle.values[pickle.root];
    if !matches!(root, Value::Dict(_)) {
        return fail(format!("it holds {}, and a state dict is expected: save `model.state_dict()`", kind(root)));
    }
    let mut found = Vec::new();
    let mut visits = 0;
    // Depth first, the first item first.
    let mut open: Vec<(String, Id, usize)> = vec![(String::new(), pickle.root, 0)];
    while let Some((name, id, depth)) = open.pop() {
        match &pickle.values[id] {
            Value::Tensor(part) => found.push((name, part)),
            Value::Dict(pairs) => {
                visits += pairs.len();
                if depth == LARGEST_DEPTH || visits > LARGEST_VISITS {
                    return fail(format!(
                        "dicts in `{name}` are more than {LARGEST_DEPTH} deep or have more than {LARGEST_VISITS} items, or contain \
                         themselves"
                    ));
                }
                for (key, value) in pairs.iter().rev() {
                    let key = match &pickle.values[*key] {
                        Value::Str(key) => key.clone(),
                        Value::Int(key) => key.to_string(),
                        _ => continue,
                    };
                    let is_of_interest = matches!(pickle.values[*value], Value::Tensor(_) | Value::Dict(_));
                    if is_of_interest {
                        let name = if name.is_empty() { key } else { format!("{name}.{key}") };
                        open.push((name, *value, depth + 1));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Where a tensor lies in the file.
fn entry<'a>(
    name: &str,
    part: &TensorPart,
    storage: impl FnOnce(&str) -> Option<&'a Stored>,
) -> Result<Entry, HeaderError> {
    let TensorPart { dtype, offset, shape, strides, storage: key } = part;
    let Some(stored) = storage(key) else {
        return fail(format!("tensor `{name}` is in storage `{key}`, which the archive does not have"));
    };
    let size = dtype.as_ref().map_or(1, |dtype| dtype.size_in_bytes());
    let elements = shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
    let range = elements.and_then(|elements| {
        let (start, bytes) = (offset.checked_mul(size)?, elements.checked_mul(size)?);
        let end = u64::try_from(start.checked_add(bytes)?).ok()?;
        (end <= stored.bytes).then_some((stored.start.checked_add(start as u64)?, bytes as u64))
    });
    let Some((start, bytes)) = range else {
        return fail(format!(
            "tensor `{name}` of shape {shape:?} from element {offset} on is not within the {} bytes of its storage",
            stored.bytes
        ));
    };
    let Some(order) = order(shape, strides) else {
        return fail(format!(
            "tensor `{name}` of shape {shape:?} has strides {strides:?}, with gaps or repetitions; save it `.contiguous()`"
        ));
    };
    Ok(Entry { dtype: dtype.clone(), shape: shape.clone(), start, bytes, encoding: None, order, converted: None })
}

/// The axes in the order in which they lie in memory, if that is another than their own; `None` for strides with gaps or
/// repetitions.
fn order(shape: &[usize], strides: &[usize]) -> Option<Option<Vec<usize>>> {
    if shape.contains(&0) {
        return Some(None);
    }
    let mut axes: Vec<usize> = (0..shape.len()).collect();
    // Strides of axes of size 1 mean nothing: these stay where they are, before what is as large.
    axes.sort_by_key(|&axis| std::cmp::Reverse(if shape[axis] == 1 { usize::MAX } else { strides[axis] }));
    let mut expected = 1_usize;
    for &axis in axes.iter().rev() {
        if shape[axis] != 1 && strides[axis] != expected {
            return None;
        }
        expected = expected.checked_mul(shape[axis])?;
    }
    // Without those of size 1, is it their own order?
    let others: Vec<usize> = axes.iter().copied().filter(|&axis| shape[axis] != 1).collect();
    Some(if others.is_sorted() { None } else { Some(axes) })
}
