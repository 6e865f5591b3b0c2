//! [`load_weights`]: weights in files whose format is found by what they begin with.

use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek};
use std::path::Path;

use super::archive::header::{Header, HeaderError};
use super::archive::private::Read;
use super::archive::{FileWeights, Format};
use super::gguf::{self, Gguf};
use super::pytorch::{self, Pytorch};
use super::safetensors::Safetensors;
use super::{MetadataValue, WeightsError};

/// A format of files of weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WeightsFormat {
    /// [safetensors](https://huggingface.co/docs/safetensors).
    Safetensors,
    /// [GGUF](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
    Gguf,
    /// The archives of [`torch.save`](https://docs.pytorch.org/docs/stable/generated/torch.save.html).
    Pytorch,
}

impl WeightsFormat {
    /// The format of a file, by what it begins with.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(path: impl AsRef<Path>) -> Result<WeightsFormat, WeightsError> {
        let path = path.as_ref();
        let io_error = |source| WeightsError::Io { path: path.to_owned(), source };
        found(&mut File::open(path).map_err(io_error)?).map_err(io_error)
    }

    /// As the types of its weights are called.
    pub(super) fn type_name(self) -> &'static str {
        match self {
            WeightsFormat::Safetensors => "Safetensor",
            WeightsFormat::Gguf => "Gguf",
            WeightsFormat::Pytorch => "Pytorch",
        }
    }
}

impl fmt::Display for WeightsFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WeightsFormat::Safetensors => "safetensors",
            WeightsFormat::Gguf => "GGUF",
            WeightsFormat::Pytorch => "PyTorch",
        })
    }
}

fn found(file: &mut File) -> std::io::Result<WeightsFormat> {
    let mut start = Vec::new();
    file.take(4).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(match &*start {
        start if start == gguf::MAGIC => WeightsFormat::Gguf,
        start if start == pytorch::MAGIC => WeightsFormat::Pytorch,
        _ => WeightsFormat::Safetensors,
    })
}

/// Any of the formats, each file by what it begins with.
pub enum AnyFormat {}

/// The weights in files of any format.
pub type Weights = FileWeights<AnyFormat>;

impl Read for AnyFormat {
    type Metadata = std::collections::BTreeMap<String, MetadataValue>;

    fn header(file: &mut File, bytes: u64) -> Result<Header<Self::Metadata>, HeaderError> {
        match found(file).map_err(HeaderError::Io)? {
            WeightsFormat::Gguf => Gguf::header(file, bytes),
            WeightsFormat::Pytorch => {
                let Header { tensors, metadata: () } = Pytorch::header(file, bytes)?;
                Ok(Header { tensors, metadata: Self::Metadata::new() })
            }
            WeightsFormat::Safetensors => {
                let Header { tensors, metadata } = Safetensors::header(file, bytes)?;
                let metadata = metadata.into_iter().map(|(name, text)| (name, MetadataValue::String(text)));
                Ok(Header { tensors, metadata: metadata.collect() })
            }
        }
    }

    fn merge(all: &mut Self::Metadata, more: Self::Metadata) {
        all.extend(more);
    }

    fn merge_index(all: &mut Self::Metadata, index: std::collections::BTreeMap<String, String>) {
        all.extend(index.into_iter().map(|(name, text)| (name, MetadataValue::String(text))));
    }

    fn format(file: &mut File) -> WeightsFormat {
        found(file).unwrap_or(WeightsFormat::Safetensors)
    }
}

impl Format for AnyFormat {}

impl Weights {
    /// What is told beside the tensors; of a name in several files, the last value.
    pub fn metadata(&self) -> &std::collections::BTreeMap<String, MetadataValue> {
        self.told()
    }
}

/// Opens files of weights, whatever their format: one file, all shards of a model, or the index of shards.
///
/// ```no_run
/// # use max_core as max;
/// let weights = max::graph::weights::load_weights(["model-q4_k.gguf"])?;
/// println!("{}: {:?}", weights.format(), weights.names().collect::<Vec<_>>());
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// Those of [`FileWeights::open`].
pub fn load_weights<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Weights, WeightsError> {
    Weights::open(paths)
}
