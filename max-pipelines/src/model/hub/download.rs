//! [`fetch`]: a model of Hugging Face's hub into the cache, by `hf-hub`; [`files`]: some files of one.
//!
//! Files are those of one commit, which becomes that of the revision when all of them are there: a download that was interrupted is
//! no model, and the next one goes on from where it was.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use super::{Repository, missing, shards};
use crate::error::Result;
use crate::model::files::{CONFIG, INDEX, is_weights_name};
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
    let files = Files::of(repository, variable, progress)?;
    files.get(CONFIG)?;
    let weights = files.weights()?;
    for name in BESIDE.iter().filter(|name| files.has(name)) {
        files.get(name)?;
    }
    // Last: a folder with its weights counts as a model.
    for name in weights {
        files.get(&name)?;
    }
    files.become_revision()?;
    Ok(repository.snapshot_of(&files.hash))
}

/// The names of all files of a model on the hub.
///
/// # Errors
/// When the model is not there, or the connection fails.
pub(super) fn names(repository: &Repository<'_>, variable: impl Fn(&str) -> Option<String>) -> Result<Vec<String>> {
    Ok(Files::of(repository, variable, None)?.names)
}

/// The paths of files of a model in the cache, those that it lacks downloaded, or all of them, up to `workers` at a time.
///
/// # Errors
/// When the model does not have one, or the connection fails.
pub(super) fn files(
    repository: &Repository<'_>,
    variable: impl Fn(&str) -> Option<String>,
    names: &[&str],
    force: bool,
    workers: usize,
    progress: Option<&DownloadProgress>,
) -> Result<Vec<PathBuf>> {
    let files = Files::of(repository, variable, progress)?;
    let next = AtomicUsize::new(0);
    let work = || -> Vec<(usize, Result<PathBuf>)> {
        let taken = std::iter::from_fn(|| {
            let at = next.fetch_add(1, Ordering::Relaxed);
            names.get(at).map(|name| (at, if force { files.download(name) } else { files.get(name) }))
        });
        taken.collect()
    };
    let mut found: Vec<(usize, Result<PathBuf>)> = thread::scope(|scope| {
        let others: Vec<_> = (1..workers.min(names.len())).map(|_| scope.spawn(work)).collect();
        let own = work();
        // A thread that panicked has said so.
        own.into_iter().chain(others.into_iter().flat_map(|other| other.join().unwrap_or_default())).collect()
    });
    found.sort_by_key(|(at, _)| *at);
    let paths: Vec<PathBuf> = found.into_iter().map(|(_, path)| path).collect::<Result<_>>()?;
    if paths.len() < names.len() {
        return Err(repository.failed("a thread that downloads ended before its file was there".into()));
    }
    // A model that can be used offline does not give way to one that lacks files.
    let is_whole = |snapshot: PathBuf| missing(&snapshot).is_none();
    if !repository.snapshot().is_some_and(is_whole) || is_whole(repository.snapshot_of(&files.hash)) {
        files.become_revision()?;
    }
    Ok(paths)
}

/// A revision as `hf-hub` names it.
fn repo(repository: &Repository<'_>, revision: &str) -> Repo {
    Repo::with_revision(format!("{}/{}", repository.org, repository.name), RepoType::Model, revision.to_owned())
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

impl<'a> Files<'a> {
    /// Asks the hub for those of a revision.
    fn of(
        repository: &'a Repository<'a>,
        variable: impl Fn(&str) -> Option<String>,
        progress: Option<&'a DownloadProgress>,
    ) -> Result<Files<'a>> {
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
        let named = api.repo(repo(repository, repository.revision));
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
        Ok(Files {
            repository,
            commit: api.repo(repo(repository, &info.sha)),
            hash: info.sha,
            names: info.siblings.into_iter().map(|file| file.rfilename).collect(),
            progress,
        })
    }

    /// Has the cache take this commit for the revision.
    fn become_revision(&self) -> Result<()> {
        let cache = Cache::new(self.repository.cache.into()).repo(repo(self.repository, self.repository.revision));
        cache.create_ref(&self.hash).map_err(|error| self.repository.failed(error.to_string()))
    }

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
        self.repository.within(name)?;
        let local = self.repository.snapshot_of(&self.hash).join(name);
        if local.is_file() { Ok(local) } else { self.download(name) }
    }

    /// A file from the hub.
    fn download(&self, name: &str) -> Result<PathBuf> {
        if !self.has(name) {
            return Err(self.repository.failed(format!("there is no {name} in the repository")));
        }
        self.repository.within(name)?;
        let local = self.repository.snapshot_of(&self.hash).join(name);
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
