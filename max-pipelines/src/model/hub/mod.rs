//! Models in the cache of Hugging Face's tools, by the names that they have on its hub.
//!
//! What is not there is downloaded on request alone, by `download.rs` with the feature `hf_hub`. `huggingface_repo.rs` has
//! a model by its name.
//!
//! The layout is that of `huggingface_hub`'s documentation ("Understand caching"): `models--ORG--NAME` has the commits of branches
//! and tags in `refs`, and the files of each commit in `snapshots`.

#[cfg(feature = "hf_hub")]
mod download;
pub(super) mod huggingface_repo;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use super::files::{CONFIG, INDEX, gguf_models, has_weights};
use crate::error::{PipelineError, Result};
use crate::progress::DownloadProgress;

/// The branch of a model without a revision.
pub(super) const MAIN: &str = "main";

/// The most letters of a model's name, and of a commit's.
const LONGEST: usize = 200;

/// The folder of all models: `HF_HUB_CACHE`, `HF_HOME/hub`, or `~/.cache/huggingface/hub`, of the variables that there are.
fn cache(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let direct = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));
    let home = || folder("HF_HOME").map(|home| home.join("hub"));
    let caches =
        || folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME").or_else(|| folder("USERPROFILE"))?.join(".cache")));
    direct.or_else(home).or_else(|| Some(caches()?.join("huggingface/hub")))
}

/// [`cache`] of this process's environment.
pub(super) fn environment_cache() -> Option<PathBuf> {
    cache(|name| std::env::var_os(name))
}

/// `ORG/NAME` as the hub allows it, or `None`.
pub(super) fn model_name(path: &Path) -> Option<(&str, &str)> {
    let allowed = |part: &str| {
        let letters = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        letters && !part.is_empty() && part.len() <= LONGEST && !part.starts_with('.') && !part.contains("--")
    };
    path.to_str()?.split_once('/').filter(|(org, name)| allowed(org) && allowed(name))
}

/// Whether a revision stays within the folder of those.
pub(super) fn is_revision(revision: &str) -> bool {
    let parts = revision.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    parts && revision.len() <= LONGEST && !revision.contains(['\\', ':', '\0'])
}

/// What a model that the cache lacks is downloaded with.
#[derive(Clone, Copy)]
pub(super) struct Download<'a> {
    /// Who hears of it.
    #[cfg_attr(not(feature = "hf_hub"), expect(dead_code, reason = "nothing is downloaded without `hf-hub`"))]
    pub progress: Option<&'a DownloadProgress>,
}

/// A revision of a model on the hub, and where the cache has it.
pub(super) struct Repository<'a> {
    pub cache: &'a Path,
    pub org: &'a str,
    pub name: &'a str,
    pub revision: &'a str,
}

impl Repository<'_> {
    fn folder(&self) -> PathBuf {
        self.cache.join(format!("models--{}--{}", self.org, self.name))
    }

    /// The folder of a commit.
    pub(super) fn snapshot_of(&self, commit: &str) -> PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    /// The folder of the revision, if there is one.
    pub(super) fn snapshot(&self) -> Option<PathBuf> {
        let commit = match std::fs::read_to_string(self.folder().join("refs").join(self.revision)) {
            Ok(commit) => commit.trim().to_owned(),
            Err(_) => self.revision.to_owned(),
        };
        Some(self.snapshot_of(&commit)).filter(|snapshot| is_revision(&commit) && snapshot.is_dir())
    }

    /// Whether a file of that name lies in the model's folder.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn within(&self, name: &str) -> Result<()> {
        let is_within = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        match is_within && !name.is_empty() {
            true => Ok(()),
            false => Err(self.failed(format!("`{name}` would lie outside of the model's folder"))),
        }
    }

    /// That the cache does not have the revision, and what gets it there.
    pub(super) fn absent(&self) -> String {
        format!("{}; {}", self.not_there(), self.commands())
    }

    fn not_there(&self) -> String {
        format!("there is no such folder, and no revision `{}` in {}", self.revision, self.folder().display())
    }

    /// That it could not be downloaded.
    pub(super) fn failed(&self, reason: String) -> PipelineError {
        let (repository, revision) = (format!("{}/{}", self.org, self.name), self.revision.to_owned());
        PipelineError::Download { repository, revision, reason }
    }

    /// What gets it into the cache.
    fn commands(&self) -> String {
        let revision = if self.revision == MAIN { String::new() } else { format!(" --revision {}", self.revision) };
        let flag = match cfg!(feature = "hf_hub") {
            true => "`--download` of `max generate` (the setting `download`)",
            false => "`--download` of `max generate`, in a build with the feature `hf_hub`,",
        };
        format!(
            "nothing is fetched unasked: {flag} or `hf download {}/{}{revision}` puts it there",
            self.org, self.name
        )
    }
}

/// The folder of a model: `path` itself if it is there, or that of its revision in the cache, where it is downloaded to if that is
/// asked for and it is not there.
///
/// # Errors
/// When there is neither, with where it was looked for and how it gets there; when it cannot be downloaded.
pub(super) fn locate(path: &Path, revision: Option<&str>, download: Option<Download<'_>>) -> Result<PathBuf> {
    locate_in(path, revision, environment_cache(), download)
}

fn locate_in(
    path: &Path,
    revision: Option<&str>,
    cache: Option<PathBuf>,
    download: Option<Download<'_>>,
) -> Result<PathBuf> {
    let no_model = |reason: String| Err(PipelineError::NoModel { path: path.into(), reason });
    if path.exists() {
        return match revision {
            None => Ok(path.into()),
            Some(_) => no_model("this is a file or folder, which has no revisions: leave out `revision`".into()),
        };
    }
    let (Some((org, name)), Some(cache)) = (model_name(path), &cache) else {
        return no_model("there is no such file or folder".into());
    };
    let repository = Repository { cache, org, name, revision: revision.unwrap_or(MAIN) };
    let revision = repository.revision;
    if !is_revision(revision) {
        return no_model(format!("`{revision}` is no branch, tag or commit"));
    }
    let problem = match repository.snapshot() {
        Some(snapshot) => match missing(&snapshot) {
            None => return Ok(snapshot),
            Some(file) => format!("revision `{revision}` in {} lacks {file}", snapshot.display()),
        },
        None => repository.not_there(),
    };
    match download {
        Some(download) => fetch(&repository, download),
        None => no_model(format!("{problem}; {}", repository.commands())),
    }
}

/// A file that a model in the cache cannot do without and that is not there, as when a download was interrupted.
pub(super) fn missing(snapshot: &Path) -> Option<String> {
    if !snapshot.join(CONFIG).is_file() && !gguf_models(snapshot).is_empty() {
        return None;
    }
    if !snapshot.join(CONFIG).is_file() {
        return Some(CONFIG.to_owned());
    }
    // An index that cannot be read is for whoever opens the weights to report.
    let shards = std::fs::read_to_string(snapshot.join(INDEX)).ok().and_then(|text| shards(&text));
    match shards {
        Some(shards) => shards.into_iter().find(|shard| !snapshot.join(shard).is_file()),
        None if snapshot.join(INDEX).is_file() || has_weights(snapshot) => None,
        None => Some("model*.safetensors".to_owned()),
    }
}

/// The files that an index of weights names.
pub(super) fn shards(index: &str) -> Option<BTreeSet<String>> {
    let index: serde_json::Value = serde_json::from_str(index).ok()?;
    index.get("weight_map")?.as_object()?.values().map(|shard| shard.as_str().map(str::to_owned)).collect()
}

#[cfg(feature = "hf_hub")]
fn fetch(repository: &Repository<'_>, download: Download<'_>) -> Result<PathBuf> {
    download::fetch(repository, |name| std::env::var(name).ok(), download.progress)
}

#[cfg(not(feature = "hf_hub"))]
fn fetch(repository: &Repository<'_>, _: Download<'_>) -> Result<PathBuf> {
    let reason = format!(
        "this build downloads nothing, since it lacks the feature `hf_hub`; `hf download {}/{}` fetches the model",
        repository.org, repository.name
    );
    Err(repository.failed(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_where_variables_say() {
        let with = |variables: &[(&str, &str)]| {
            let found =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
            cache(found).map(|path| path.to_str().unwrap().replace('\\', "/"))
        };
        let home = ("HOME", "/home/a");
        assert_eq!(with(&[home]).as_deref(), Some("/home/a/.cache/huggingface/hub"));
        assert_eq!(with(&[home, ("XDG_CACHE_HOME", "/c")]).as_deref(), Some("/c/huggingface/hub"));
        assert_eq!(with(&[home, ("HF_HOME", "/hf")]).as_deref(), Some("/hf/hub"));
        assert_eq!(with(&[home, ("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/hub")]).as_deref(), Some("/hub"));
        assert_eq!(with(&[("HF_HOME", "")]), None);
    }

    #[test]
    fn models_are_found_by_name_and_revision() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("models--org--a.model");
        for commit in ["c0ffee", "beef"] {
            std::fs::create_dir_all(model.join("snapshots").join(commit)).unwrap();
        }
        std::fs::create_dir_all(model.join("refs/pr")).unwrap();
        for (name, commit) in [("main", "c0ffee\n"), ("pr/1", "beef"), ("gone", "dead"), ("out", "../../x")] {
            std::fs::write(model.join("refs").join(name), commit).unwrap();
        }
        for file in ["config.json", "model.safetensors"] {
            for commit in ["c0ffee", "beef"] {
                std::fs::write(model.join("snapshots").join(commit).join(file), "{}").unwrap();
            }
        }
        let find = |name: &str, revision| locate_in(Path::new(name), revision, Some(folder.path().into()), None);
        let found = |revision| find("org/a.model", revision).unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(
            (found(None), found(Some("pr/1")), found(Some("beef"))),
            ("c0ffee".into(), "beef".into(), "beef".into())
        );
        for (name, revision, part) in [
            ("org/other", None, "nothing is fetched unasked"),
            ("org/other", None, "`hf download org/other` puts it there"),
            ("org/a.model", Some("v2"), "`hf download org/a.model --revision v2`"),
            ("org/a.model", Some("gone"), "no revision `gone`"),
            ("org/a.model", Some("out"), "no revision `out`"),
            ("org/a.model", Some("../main"), "`../main` is no branch"),
            ("org/../b", None, "there is no such file or folder"),
            ("../b", None, "there is no such file or folder"),
            ("/org/b", None, "there is no such file or folder"),
        ] {
            let error = find(name, revision).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = find(folder.path().to_str().unwrap(), Some("main")).unwrap_err().to_string();
        assert!(error.contains("leave out `revision`"), "{error}");
    }

    #[test]
    fn interrupted_downloads_are_not_taken_for_models() {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = folder.path().join("models--org--a/snapshots/main");
        std::fs::create_dir_all(&snapshot).unwrap();
        let find = || locate_in(Path::new("org/a"), None, Some(folder.path().into()), None);
        let lacks = |file: &str| {
            let error = find().unwrap_err().to_string();
            assert!(error.contains(&format!("lacks {file};")) && error.contains("hf download org/a"), "{error}");
        };
        lacks("config.json");
        std::fs::write(snapshot.join("config.json"), "{}").unwrap();
        lacks("model*.safetensors");
        let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        std::fs::write(snapshot.join("model.safetensors.index.json"), index).unwrap();
        std::fs::write(snapshot.join("model-1.safetensors"), "").unwrap();
        lacks("model-2.safetensors");
        std::fs::write(snapshot.join("model-2.safetensors"), "").unwrap();
        assert_eq!(find().unwrap(), snapshot);
    }

    #[cfg(not(feature = "hf_hub"))]
    #[test]
    fn without_its_feature_nothing_is_downloaded() {
        let folder = tempfile::tempdir().unwrap();
        let download = Some(Download { progress: None });
        let found = locate_in(Path::new("org/a"), Some("v1"), Some(folder.path().into()), download);
        let error = found.unwrap_err().to_string();
        assert!(error.contains("`org/a`, revision `v1`: this build downloads nothing"), "{error}");
    }
}
