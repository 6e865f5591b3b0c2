//! [`fetch`]: a model of Hugging Face's hub into the cache, by `hf-hub`.
//!
//! Files are those of one commit, which becomes that of the revision when all of them are there: a download that was interrupted is
//! no model, and the next one goes on from where it was.

use std::path::{Component, Path, PathBuf};

use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use super::files::{CONFIG, INDEX, is_weights_name};
use super::hub::{Repository, shards};
use crate::error::Result;
use crate::progress::DownloadProgress;

/// What is read beside the configuration and the weights, if the model has it.
const BESIDE: [&str; 5] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "1_Pooling/config.json",
];

/// Downloads what the cache lacks of a model, and gives its folder. `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` of the variables
/// mean what they do for Hugging Face's tools.
///
/// # Errors
/// When the model is not there or has no files that are read here, or the connection fails.
pub(super) fn fetch(
    repository: &Repository<'_>,
    variable: impl Fn(&str) -> Option<String>,
    progress: Option<&DownloadProgress>,
) -> Result<PathBuf> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let is_true = |value: &String| matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE");
    if let Some(value) = variable("HF_HUB_OFFLINE").filter(is_true) {
        return Err(repository.failed(format!("HF_HUB_OFFLINE is {value}: unset it to download")));
    }
    let mut builder = ApiBuilder::from_cache(Cache::new(repository.cache.into()));
    builder = builder.with_progress(false).with_user_agent("max", env!("CARGO_PKG_VERSION"));
    if let Some(endpoint) = variable("HF_ENDPOINT") {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    if let Some(token) = variable("HF_TOKEN") {
        builder = builder.with_token(Some(token));
    }
    let api = builder.build().map_err(|error| repository.failed(error.to_string()))?;
    let of = |revision: &str| {
        let id = format!("{}/{}", repository.org, repository.name);
        Repo::with_revision(id, RepoType::Model, revision.to_owned())
    };
    let named = api.repo(of(repository.revision));
    let info = named.info().map_err(|error| {
        let place = named.info_request().uri_ref().map(ToString::to_string).unwrap_or_default();
        repository.failed(format!(
            "{place}: {error}; check both names, and give a token in HF_TOKEN if the model is private or gated"
        ))
    })?;
    // It is a part of paths.
    if info.sha.is_empty() || !info.sha.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(repository.failed(format!("`{}`, which the hub says, is no commit", info.sha)));
    }
    let files = Files {
        repository,
        commit: api.repo(of(&info.sha)),
        hash: info.sha,
        names: info.siblings.into_iter().map(|file| file.rfilename).collect(),
        progress,
    };
    files.get(CONFIG)?;
    let weights = files.weights()?;
    for name in BESIDE.iter().filter(|name| files.has(name)) {
        files.get(name)?;
    }
    // Last: a folder with its weights counts as a model.
    for name in weights {
        files.get(&name)?;
    }
    let cache = Cache::new(repository.cache.into()).repo(of(repository.revision));
    cache.create_ref(&files.hash).map_err(|error| repository.failed(error.to_string()))?;
    Ok(repository.snapshot_of(&files.hash))
}

/// The files of a commit.
struct Files<'a> {
    repository: &'a Repository<'a>,
    commit: ApiRepo,
    /// The commit's hash.
    hash: String,
    names: Vec<String>,
    progress: Option<&'a DownloadProgress>,
}

impl Files<'_> {
    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|file| file == name)
    }

    /// The weights: the shards of the index, or every file of weights.
    fn weights(&self) -> Result<Vec<String>> {
        let weights: Vec<String> = match self.has(INDEX) {
            false => self.names.iter().filter(|name| is_weights_name(name)).cloned().collect(),
            true => {
                let path = self.get(INDEX)?;
                let shards = std::fs::read_to_string(path).ok().and_then(|text| shards(&text));
                let shards = shards.ok_or_else(|| self.repository.failed(format!("{INDEX} is no index of weights")))?;
                shards.into_iter().collect()
            }
        };
        if weights.is_empty() {
            let others = self.names.join(", ");
            let reason = format!("there is no model*.safetensors, which is what is read here; there are {others}");
            return Err(self.repository.failed(reason));
        }
        Ok(weights)
    }

    /// A file, from the cache if that has it.
    fn get(&self, name: &str) -> Result<PathBuf> {
        if !self.has(name) {
            return Err(self.repository.failed(format!("there is no {name} in the repository")));
        }
        if !Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(self.repository.failed(format!("{name} would lie outside of the model's folder")));
        }
        let local = self.repository.snapshot_of(&self.hash).join(name);
        if local.is_file() {
            return Ok(local);
        }
        let reporter = Reporter { progress: self.progress, file: String::new(), received: 0, all: 0 };
        let url = self.commit.url(name);
        let path = self.commit.download_with_progress(name, reporter).map_err(|error| {
            self.repository.failed(format!(
                "{name} is missing: {url}: {error}; what has arrived stays in {}, and the same command fetches the rest (if it does not, \
                 delete the file there that ends in .part)",
                self.repository.cache.display()
            ))
        })?;
        // The hub says for each file of which commit it is.
        if path != local {
            return Err(self.repository.failed(format!("{url} is of another commit than {}", self.hash)));
        }
        Ok(path)
    }
}

/// Tells a [`DownloadProgress`] what `hf-hub` says.
struct Reporter<'a> {
    progress: Option<&'a DownloadProgress>,
    file: String,
    received: u64,
    all: u64,
}

impl Progress for Reporter<'_> {
    fn init(&mut self, size: usize, filename: &str) {
        (self.file, self.received, self.all) = (filename.to_owned(), 0, size as u64);
    }

    fn update(&mut self, size: usize) {
        self.received += size as u64;
        if let Some(progress) = self.progress {
            progress.report(&self.file, self.received, self.all);
        }
    }

    fn finish(&mut self) {}
}
