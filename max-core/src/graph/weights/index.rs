//! The index of a model's shards, `model.safetensors.index.json`: JSON beside them that says in which file each weight is.
//! <https://huggingface.co/docs/safetensors>

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::WeightsError;
use super::header::LARGEST_HEADER;

/// What an index says.
pub(super) struct Index {
    path: PathBuf,
    /// The file of each weight.
    weights: BTreeMap<String, PathBuf>,
    /// What else was written about the files; numbers and the like as they stand there.
    pub metadata: BTreeMap<String, String>,
}

/// Whether a path is that of an index, and not of a file of weights.
pub(super) fn is_index(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

impl Index {
    pub fn read(path: &Path) -> Result<Index, WeightsError> {
        let io_error = |source| WeightsError::Io { path: path.to_path_buf(), source };
        let mut text = Vec::new();
        File::open(path).and_then(|file| file.take(LARGEST_HEADER + 1).read_to_end(&mut text)).map_err(io_error)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let (weights, metadata) =
            parse(&text, folder).map_err(|reason| WeightsError::Index { path: path.to_path_buf(), reason })?;
        Ok(Index { path: path.to_path_buf(), weights, metadata })
    }

    /// The files, each once, in the order of their paths.
    pub fn shards(&self) -> impl Iterator<Item = PathBuf> {
        let mut shards: Vec<PathBuf> = self.weights.values().cloned().collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter()
    }

    /// Says of the failure to read a shard where that is named.
    pub fn explain(&self, error: WeightsError) -> WeightsError {
        match error {
            WeightsError::Io { path: shard, source } => {
                let first = self.weights.iter().find(|(_, file)| **file == shard);
                let weight = first.map(|(name, _)| name.clone()).unwrap_or_default();
                WeightsError::Shard { index: self.path.clone(), shard, weight, source }
            }
            error => error,
        }
    }

    /// Checks that every weight is in its file, given the file that each is in.
    pub fn check<'a>(&self, file_of: impl Fn(&str) -> Option<&'a Path>) -> Result<(), WeightsError> {
        match self.weights.iter().find(|(name, shard)| file_of(name) != Some(shard.as_path())) {
            None => Ok(()),
            Some((name, shard)) => {
                Err(WeightsError::NotInShard { name: name.clone(), shard: shard.clone(), index: self.path.clone() })
            }
        }
    }
}

type Parsed = (BTreeMap<String, PathBuf>, BTreeMap<String, String>);

fn parse(text: &[u8], folder: &Path) -> Result<Parsed, String> {
    if text.len() as u64 > LARGEST_HEADER {
        return Err(format!("it has more than {LARGEST_HEADER} bytes"));
    }
    let mut index: Map<String, Value> =
        serde_json::from_slice(text).map_err(|error| format!("it is no JSON object: {error}"))?;
    let Some(Value::Object(files)) = index.remove("weight_map") else {
        return Err("it has no object `weight_map`".to_owned());
    };
    if files.is_empty() {
        return Err("its `weight_map` is empty".to_owned());
    }
    let file = |(name, file): (String, Value)| {
        let Value::String(file) = file else { return Err(format!("the file of weight `{name}` is no string")) };
        match below(&file) {
            Some(file) => Ok((name, folder.join(file))),
            None => Err(format!("the file `{file}` of weight `{name}` does not lie in its folder")),
        }
    };
    let weights = files.into_iter().map(file).collect::<Result<_, _>>()?;
    let metadata = match index.remove("metadata") {
        None => Map::new(),
        Some(Value::Object(metadata)) => metadata,
        Some(_) => return Err("its `metadata` is no object".to_owned()),
    };
    let text = |value| if let Value::String(text) = value { text } else { value.to_string() };
    Ok((weights, metadata.into_iter().map(|(key, value)| (key, text(value))).collect()))
}

/// A path that does not lead out of a folder. (Where links lead is the affair of who made them: downloads are kept as links.)
fn below(path: &str) -> Option<PathBuf> {
    let parts = Path::new(path).components();
    let path = parts.map(|part| matches!(part, Component::Normal(_)).then_some(part)).collect::<Option<PathBuf>>()?;
    (!path.as_os_str().is_empty()).then_some(path)
}
