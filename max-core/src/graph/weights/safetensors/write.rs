//! Writes safetensors files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::driver::{Device, Tensor};
use crate::graph::weights::WeightsError;
use crate::graph::weights::archive::header::DTYPES;

/// Writes tensors and texts as a [safetensors](https://huggingface.co/docs/safetensors) file. Tensors of GPUs are copied to the
/// host. The file takes the place of one that is there once all of it is written.
///
/// ```
/// # use max_core as max;
/// # let folder = std::env::temp_dir();
/// use std::collections::BTreeMap;
/// use max::driver::Tensor;
/// use max::graph::weights::{SafetensorWeights, save_safetensors};
///
/// let path = folder.join(format!("doc-{}.safetensors", std::process::id()));
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [2])?;
/// save_safetensors(&path, [("x", &x)], &BTreeMap::new())?;
/// assert_eq!(SafetensorWeights::open([&path])?.tensor("x")?.to_vec::<f32>()?, [1.0, 2.0]);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// When a tensor cannot be read, or its dtype is none of the format's; when two have one name; when the file cannot be written.
pub fn save_safetensors<'a, N: Into<String>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, &'a Tensor)>,
    metadata: &BTreeMap<String, String>,
) -> Result<(), WeightsError> {
    let path = path.as_ref();
    let failed = |error: io::Error| WeightsError::Write { path: path.to_path_buf(), reason: error.to_string() };
    let refuse = |reason: String| WeightsError::Write { path: path.to_path_buf(), reason };
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_owned(), serde_json::json!(metadata));
    }
    let (mut all, mut at) = (Vec::new(), 0);
    for (name, tensor) in tensors {
        let name = name.into();
        let host = tensor.to(&Device::cpu()).and_then(|tensor| tensor.contiguous());
        let host = host.map_err(|error| refuse(format!("`{name}`: {error}")))?;
        let Some((dtype, _)) = DTYPES.iter().find(|(_, dtype)| *dtype == host.dtype()) else {
            return Err(refuse(format!("`{name}` is {}, which the format does not have; cast it", host.dtype())));
        };
        let end = at + host.num_bytes();
        let entry = serde_json::json!({ "dtype": dtype, "shape": host.shape(), "data_offsets": [at, end] });
        at = end;
        if name == "__metadata__" || header.insert(name.clone(), entry).is_some() {
            return Err(refuse(format!("two tensors have the name `{name}`, or it is reserved")));
        }
        all.push(host);
    }
    let mut text = serde_json::Value::Object(header).to_string();
    // What follows begins at a multiple of 8 bytes.
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let partial = path.with_extension("partial");
    let write = || -> io::Result<()> {
        let mut file = BufWriter::new(File::create(&partial)?);
        file.write_all(&(text.len() as u64).to_le_bytes())?;
        file.write_all(text.as_bytes())?;
        for tensor in &all {
            // SAFETY: the memory of a contiguous host tensor, which nobody can write while it is borrowed.
            file.write_all(unsafe { std::slice::from_raw_parts(tensor.data_ptr(), tensor.num_bytes()) })?;
        }
        file.into_inner().map_err(|error| error.into_error())?.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().map_err(|error| {
        // Of what was not finished, nothing is kept.
        let _ = std::fs::remove_file(&partial);
        failed(error)
    })
}
