//! [`WeightsError`]: why a weight is not there, or a file of weights cannot be read.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::WeightsFormat;
use crate::driver::{DriverError, Tensor};
use crate::dtype::DType;
use crate::graph::quantization::QuantizationEncoding;

/// Dtype and shape of a weight; prints as `float32[3, 4]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WeightType {
    /// The type of its elements.
    pub dtype: DType,
    /// Its sizes.
    pub shape: Vec<usize>,
}

impl WeightType {
    pub(super) fn of(tensor: &Tensor) -> WeightType {
        WeightType { dtype: tensor.dtype(), shape: tensor.shape().to_vec() }
    }

    /// Checks that this is the type expected of the weight of that name.
    pub(super) fn require(self, expected: &WeightType, name: &str, path: Option<&Path>) -> Result<(), WeightsError> {
        if self == *expected {
            return Ok(());
        }
        let (name, path) = (name.to_owned(), path.map(Path::to_path_buf));
        Err(WeightsError::Mismatch { name, path, expected: expected.clone(), actual: self })
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

/// Why a weight is not there, or a file of weights cannot be read. `Debug` prints the message, so that an `unwrap` reads
/// well.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// No file was given.
    #[error("no files of weights were given; name one file, all shards of a model, or their index")]
    NoFiles,
    /// A file that cannot be read.
    #[error("weights {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that cannot be written.
    #[error("{}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A weight that could not be brought into another dtype.
    #[error("weight `{name}` of {} could not be cast to {dtype}: {reason}", path.display())]
    Cast {
        /// The name.
        name: String,
        /// The file, or the folder.
        path: PathBuf,
        /// The dtype.
        dtype: DType,
        /// Why.
        reason: String,
    },
    /// A file that is damaged, or of another format.
    #[error("weights {}: {reason}; the file is damaged, or no {format} file", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What it was taken for.
        format: WeightsFormat,
        /// What is wrong.
        reason: String,
    },
    /// An index of shards that is damaged, or names a file elsewhere.
    #[error("weights {}: {reason}; give the `.safetensors.index.json` of a model, beside its shards", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A shard that an index names, and that cannot be read.
    #[error("weights {}: the shard {} of weight `{weight}`: {source}", index.display(), shard.display())]
    Shard {
        /// The index.
        index: PathBuf,
        /// The shard.
        shard: PathBuf,
        /// The first weight that it is to have.
        weight: String,
        /// Why.
        source: io::Error,
    },
    /// A weight that is not in the shard that an index names.
    #[error("weights {}: weight `{name}` is not in {}; are index and shards of one model?", index.display(), shard.display())]
    NotInShard {
        /// The name.
        name: String,
        /// Where it should be.
        shard: PathBuf,
        /// The index.
        index: PathBuf,
    },
    /// A name that stands in two files.
    #[error("weight `{name}` is in {} and in {}; give each shard once, and shards of one model", first.display(), second.display())]
    Twice {
        /// The name.
        name: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A name that there is not.
    #[error("there is no weight `{name}`{}", near(nearest, *count))]
    Missing {
        /// The name.
        name: String,
        /// The names most similar to it, best first.
        nearest: Vec<String>,
        /// How many weights there are.
        count: usize,
    },
    /// A weight of another dtype or shape than expected.
    #[error("weight `{name}`{} is {actual}, but {expected} was declared; {}", of_file(path.as_deref()), mend(expected, actual))]
    Mismatch {
        /// The name.
        name: String,
        /// The file, if it is in one.
        path: Option<PathBuf>,
        /// What was declared.
        expected: WeightType,
        /// What there is.
        actual: WeightType,
    },
    /// A weight that is quantized otherwise than expected.
    #[error("weight `{name}` of {} {}, but {} was asked for; ask for what the file has, or convert it", path.display(), quantized(*actual), encoded(*expected))]
    Quantization {
        /// The name.
        name: String,
        /// The file.
        path: PathBuf,
        /// What was asked for.
        expected: Option<QuantizationEncoding>,
        /// How it is quantized.
        actual: Option<QuantizationEncoding>,
    },
    /// A weight that was allocated as elements, and is to be allocated as bytes, or the other way round.
    #[error("weight `{name}` was allocated as {} before; use one of both for all graphs that these weights are for", if *as_bytes { "bytes" } else { "elements" })]
    Allocated {
        /// The name.
        name: String,
        /// Whether as bytes before.
        as_bytes: bool,
    },
    /// A weight of a dtype that there is not here.
    #[error(
        "weight `{name}`{} has dtype {dtype}, which is none of this crate's; convert the file",
        of_file(Some(path))
    )]
    DType {
        /// The name.
        name: String,
        /// The file.
        path: PathBuf,
        /// The dtype, as it stands in the file.
        dtype: String,
    },
    /// A weight that is to become what is no float.
    #[error("weight `{name}`: it cannot be made {dtype}, only a float; cast it in the graph")]
    AsType {
        /// The name.
        name: String,
        /// The dtype that was asked for.
        dtype: DType,
    },
    /// A weight whose bytes cannot be a tensor, or without memory for it.
    #[error("weight `{name}`{}: {source}", of_file(path.as_deref()))]
    Tensor {
        /// The name.
        name: String,
        /// The file, if it is in one.
        path: Option<PathBuf>,
        /// Why.
        source: DriverError,
    },
}

impl WeightsError {
    /// That there is no such name among these.
    pub(super) fn missing<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> WeightsError {
        let mut count = 0;
        let mut near: Vec<(usize, &str)> = Vec::new();
        for known in names {
            count += 1;
            // Names of models are long and alike: one that only lacks a prefix or has one more is near too.
            let part = name.ends_with(known) || known.ends_with(name);
            let distance = if part { 0 } else { strsim::damerau_levenshtein(name, known) };
            if distance <= known.len().max(name.len()) / 3 {
                near.push((distance, known));
            }
        }
        near.sort_unstable();
        near.truncate(3);
        let nearest = near.into_iter().map(|(_, known)| known.to_owned()).collect();
        WeightsError::Missing { name: name.to_owned(), nearest, count }
    }
}

fn near(nearest: &[String], count: usize) -> String {
    match (nearest, count) {
        (_, 0) => ": no weights were given; load the graph by `load_with_weights`".to_owned(),
        ([], _) => format!(" among {count}, nor a similar one"),
        (names, _) => {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            format!(" among {count}; did you mean {}?", names.join(" or "))
        }
    }
}

fn of_file(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| format!(" of {}", path.display()))
}

fn encoded(encoding: Option<QuantizationEncoding>) -> &'static str {
    encoding.map_or("no quantization", QuantizationEncoding::name)
}

fn quantized(encoding: Option<QuantizationEncoding>) -> String {
    encoding.map_or_else(|| "is not quantized".to_owned(), |encoding| format!("is quantized as {encoding}"))
}

fn mend(expected: &WeightType, actual: &WeightType) -> String {
    let reversed = || expected.shape.iter().rev().eq(&actual.shape);
    if expected.dtype != actual.dtype {
        return format!("declare it as {}, and cast it in the graph", actual.dtype);
    }
    match expected.shape.len() {
        2 if reversed() => "declare it as it lies, and transpose it in the graph".to_owned(),
        _ => "is it another model's?".to_owned(),
    }
}
