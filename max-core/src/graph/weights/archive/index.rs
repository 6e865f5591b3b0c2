//! The index of a model's shards, `model.safetensors.index.json`: JSON beside them that says in which file each weight is.
//! <https://huggingface.co/docs/safetensors>

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::de::{Error, IgnoredAny, MapAccess};
use serde_json::value::RawValue;

use super::header::LARGEST_HEADER;
use super::json;
use super::json::{Field, Object};
use crate::graph::weights::WeightsError;

/// What an index says.
pub(super) struct Index {
    path: PathBuf,
    /// The file of each weight, as it stands there.
    weights: BTreeMap<String, Arc<str>>,
    /// The files.
    files: BTreeSet<Arc<str>>,
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
        let index = parse(&text).map_err(|reason| WeightsError::Index { path: path.to_path_buf(), reason })?;
        let Files { of_weight, all, .. } = index.files.unwrap_or_default();
        Ok(Index { path: path.to_path_buf(), weights: of_weight, files: all, metadata: index.metadata.all })
    }

    /// Where a file is that the index names.
    fn place(&self, file: &str) -> PathBuf {
        // So spelled as its parts are, however it is there.
        self.path.parent().unwrap_or(Path::new("")).join(below(file).unwrap_or_default())
    }

    /// The files, each once, in the order of their paths.
    pub fn shards(&self) -> impl Iterator<Item = PathBuf> {
        let mut shards: Vec<PathBuf> = self.files.iter().map(|file| self.place(file)).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter()
    }

    /// Says of the failure to read a shard where that is named.
    pub fn explain(&self, error: WeightsError) -> WeightsError {
        match error {
            WeightsError::Io { path: shard, source } => {
                let first = self.weights.iter().find(|(_, file)| self.place(file) == shard);
                let weight = first.map(|(name, _)| name.clone()).unwrap_or_default();
                WeightsError::Shard { index: self.path.clone(), shard, weight, source }
            }
            error => error,
        }
    }

    /// Checks that every weight is in its file, given the file that each is in.
    pub fn check<'a>(&self, file_of: impl Fn(&str) -> Option<&'a Path>) -> Result<(), WeightsError> {
        let places = self.files.iter().map(|file| (&**file, self.place(file))).collect::<BTreeMap<&str, PathBuf>>();
        for (name, file) in &self.weights {
            let shard = places.get(&**file);
            if file_of(name) != shard.map(PathBuf::as_path) {
                let shard = shard.cloned().unwrap_or_default();
                return Err(WeightsError::NotInShard { name: name.clone(), shard, index: self.path.clone() });
            }
        }
        Ok(())
    }
}

/// What an index has been found to say.
#[derive(Default)]
struct IndexReader {
    /// Its `weight_map`, if that is an object.
    files: Option<Files>,
    metadata: Metadata,
    problem: Option<String>,
}

impl Object for IndexReader {
    fn member<'de, A: MapAccess<'de>>(&mut self, name: String, values: &mut A) -> Result<(), A::Error> {
        match &*name {
            "weight_map" => {
                let mut files = Files::default();
                self.files = self.inner(&mut files, values)?.then_some(files);
            }
            "metadata" => {
                let mut metadata = Metadata::default();
                if !self.inner(&mut metadata, values)? {
                    return self.refuse("its `metadata` is no object".to_owned());
                }
                self.metadata = metadata;
            }
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

/// The file of each weight. The name of a file is kept once.
#[derive(Default)]
struct Files {
    of_weight: BTreeMap<String, Arc<str>>,
    all: BTreeSet<Arc<str>>,
    problem: Option<String>,
}

impl Object for Files {
    fn member<'de, A: MapAccess<'de>>(&mut self, name: String, values: &mut A) -> Result<(), A::Error> {
        let Field::Text(file) = values.next_value()? else {
            return self.refuse(format!("the file of weight `{name}` is no string"));
        };
        if below(&file).is_none() {
            return self.refuse(format!("the file `{file}` of weight `{name}` does not lie in its folder"));
        }
        let file = self.all.get(&*file).cloned().unwrap_or_else(|| Arc::from(file));
        self.all.insert(file.clone());
        self.of_weight.insert(name, file);
        Ok(())
    }

    fn problem(&mut self) -> &mut Option<String> {
        &mut self.problem
    }
}

/// What else was written about the files; what is no text is kept as it stands there.
#[derive(Default)]
struct Metadata {
    all: BTreeMap<String, String>,
    problem: Option<String>,
}

impl Object for Metadata {
    fn member<'de, A: MapAccess<'de>>(&mut self, name: String, values: &mut A) -> Result<(), A::Error> {
        let value = values.next_value::<&RawValue>()?.get();
        let text = if value.starts_with('"') {
            serde_json::from_str(value).map_err(A::Error::custom)?
        } else {
            value.to_owned()
        };
        self.all.insert(name, text);
        Ok(())
    }

    fn problem(&mut self) -> &mut Option<String> {
        &mut self.problem
    }
}

fn parse(text: &[u8]) -> Result<IndexReader, String> {
    if text.len() as u64 > LARGEST_HEADER {
        return Err(format!("it has more than the {LARGEST_HEADER} bytes that are read"));
    }
    let mut index = IndexReader::default();
    json::read(text, &mut index).map_err(|reason| match reason.starts_with("is no JSON") {
        true => format!("it {reason}"),
        false => reason,
    })?;
    match &index.files {
        None => Err("it has no object `weight_map`".to_owned()),
        Some(files) if files.all.is_empty() => Err("its `weight_map` is empty".to_owned()),
        Some(_) => Ok(index),
    }
}

/// A path that does not lead out of a folder. (Where links lead is the affair of who made them: downloads are kept as links.)
fn below(path: &str) -> Option<PathBuf> {
    let parts = Path::new(path).components();
    let path = parts.map(|part| matches!(part, Component::Normal(_)).then_some(part)).collect::<Option<PathBuf>>()?;
    (!path.as_os_str().is_empty()).then_some(path)
}
