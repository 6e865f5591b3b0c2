//! [`HuggingFaceRepo`]: a model of Hugging Face's hub, its files in the cache and on the hub, and MAX's functions for these.

use std::path::{Path, PathBuf};

use crate::error::{PipelineError, Result};
use crate::model::hub::{self, Repository};

/// A revision of a model of Hugging Face's hub, and the cache of the hub's tools on this machine.
///
/// ```
/// use max_pipelines::HuggingFaceRepo;
///
/// let repo = HuggingFaceRepo::new("HuggingFaceTB/SmolLM2-135M", None)?.cache("none");
/// assert_eq!(repo.try_to_load_from_cache("config.json")?, None);
/// let error = repo.local_model_path().unwrap_err().to_string();
/// assert!(error.contains("no revision `main`") && error.contains("hf download HuggingFaceTB/SmolLM2-135M"), "{error}");
/// # Ok::<(), max_pipelines::PipelineError>(())
/// ```
#[derive(Clone, Debug)]
pub struct HuggingFaceRepo {
    org: String,
    name: String,
    revision: String,
    cache: PathBuf,
    #[cfg(feature = "hf_hub")]
    endpoint: Option<String>,
}

impl HuggingFaceRepo {
    /// The model `org/name`, of a branch, tag or commit (`main` without one), in the cache that the environment names.
    ///
    /// # Errors
    /// When the name or the revision is none, or there is no home for a cache.
    pub fn new(repo_id: &str, revision: Option<&str>) -> Result<HuggingFaceRepo> {
        let fail = |reason: String| PipelineError::NoModel { path: repo_id.into(), reason };
        let Some((org, name)) = hub::model_name(Path::new(repo_id)) else {
            return Err(fail("this is no name of a model on a hub, `org/name`".into()));
        };
        let revision = revision.unwrap_or(hub::MAIN);
        if !hub::is_revision(revision) {
            return Err(fail(format!("`{revision}` is no branch, tag or commit")));
        }
        let Some(cache) = hub::environment_cache() else {
            return Err(fail("there is no cache: set HF_HOME or HOME".into()));
        };
        Ok(HuggingFaceRepo {
            org: org.into(),
            name: name.into(),
            revision: revision.into(),
            cache,
            #[cfg(feature = "hf_hub")]
            endpoint: None,
        })
    }

    /// With another folder of models than the environment names.
    #[must_use]
    pub fn cache(self, cache: impl Into<PathBuf>) -> HuggingFaceRepo {
        HuggingFaceRepo { cache: cache.into(), ..self }
    }

    fn repository(&self) -> Repository<'_> {
        Repository { cache: &self.cache, org: &self.org, name: &self.name, revision: &self.revision }
    }

    /// The folder in which the cache has the revision, all files of the model or some.
    ///
    /// # Errors
    /// When the cache does not have it, with what gets it there.
    pub fn local_model_path(&self) -> Result<PathBuf> {
        let repository = self.repository();
        repository.snapshot().ok_or_else(|| PipelineError::NoModel {
            path: format!("{}/{}", self.org, self.name).into(),
            reason: repository.absent(),
        })
    }

    /// A file of the revision, if the cache has it.
    ///
    /// # Errors
    /// When the name is that of a file outside of the model's folder.
    pub fn try_to_load_from_cache(&self, filename: &str) -> Result<Option<PathBuf>> {
        let repository = self.repository();
        repository.within(filename)?;
        Ok(repository.snapshot().map(|snapshot| snapshot.join(filename)).filter(|path| path.is_file()))
    }
}

/// What asks the hub.
#[cfg(feature = "hf_hub")]
impl HuggingFaceRepo {
    /// With another hub than the environment names (`HF_ENDPOINT`).
    #[must_use]
    pub fn endpoint(self, endpoint: impl Into<String>) -> HuggingFaceRepo {
        HuggingFaceRepo { endpoint: Some(endpoint.into()), ..self }
    }

    fn variable(&self, name: &str) -> Option<String> {
        let own = if name == "HF_ENDPOINT" { self.endpoint.clone() } else { None };
        own.or_else(|| std::env::var(name).ok())
    }

    /// The files of the revision on the hub, which can be read: the model is there, and a token for it where it takes one.
    ///
    /// # Errors
    /// When it is not, with what to do; when the connection fails.
    pub fn files(&self) -> Result<Vec<String>> {
        super::download::names(&self.repository(), |name| self.variable(name))
    }

    /// The paths of files of the revision, in order. Those that the cache lacks are downloaded to it, up to `max_workers` at a time; all of
    /// them are, if `force_download` says so.
    ///
    /// # Errors
    /// When the hub does not have a file, or the connection fails: what has arrived stays in the cache.
    pub fn download(
        &self,
        filenames: &[&str],
        force_download: bool,
        max_workers: usize,
        progress: Option<&crate::DownloadProgress>,
    ) -> Result<Vec<PathBuf>> {
        let known =
            filenames.iter().map(|name| self.try_to_load_from_cache(name)).collect::<Result<Option<Vec<_>>>>()?;
        match known.filter(|_| !force_download) {
            Some(paths) => Ok(paths),
            None => {
                let variable = |name: &str| self.variable(name);
                super::download::files(&self.repository(), variable, filenames, force_download, max_workers, progress)
            }
        }
    }
}

/// The folder in which the cache of the hub's tools has a revision of a model, `org/name`: [`HuggingFaceRepo::local_model_path`].
///
/// # Errors
/// When the cache does not have it.
pub fn generate_local_model_path(repo_id: &str, revision: &str) -> Result<PathBuf> {
    HuggingFaceRepo::new(repo_id, Some(revision))?.local_model_path()
}

/// A file of a model, `org/name`, if the cache of the hub's tools has it: [`HuggingFaceRepo::try_to_load_from_cache`]. The hub is not
/// asked.
///
/// # Errors
/// When a name is not possible.
pub fn try_to_load_from_cache(repo_id: &str, filename: &str, revision: &str) -> Result<Option<PathBuf>> {
    HuggingFaceRepo::new(repo_id, Some(revision))?.try_to_load_from_cache(filename)
}

/// Asks the hub whether a revision of a model can be read.
///
/// # Errors
/// When it cannot, with what to do.
#[cfg(feature = "hf_hub")]
pub fn validate_hf_repo_access(repo_id: &str, revision: &str) -> Result<()> {
    HuggingFaceRepo::new(repo_id, Some(revision))?.files().map(drop)
}

/// Files of a model, `org/name`, which are downloaded if the cache lacks them: [`HuggingFaceRepo::download`].
///
/// # Errors
/// When the hub does not have one, or the connection fails.
#[cfg(feature = "hf_hub")]
pub fn download_weight_files(
    huggingface_model_id: &str,
    filenames: &[&str],
    revision: Option<&str>,
    force_download: bool,
    max_workers: usize,
) -> Result<Vec<PathBuf>> {
    HuggingFaceRepo::new(huggingface_model_id, revision)?.download(filenames, force_download, max_workers, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_in_the_cache_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("models--org--a");
        std::fs::create_dir_all(model.join("snapshots/c0ffee/sub")).unwrap();
        std::fs::create_dir_all(model.join("refs")).unwrap();
        std::fs::write(model.join("refs/main"), "c0ffee").unwrap();
        std::fs::write(model.join("snapshots/c0ffee/sub/x.json"), "{}").unwrap();
        let repo = HuggingFaceRepo::new("org/a", None).unwrap().cache(folder.path());
        assert_eq!(repo.local_model_path().unwrap(), model.join("snapshots/c0ffee"));
        let found = repo.try_to_load_from_cache("sub/x.json").unwrap();
        assert_eq!(found, Some(model.join("snapshots/c0ffee/sub/x.json")));
        assert_eq!(repo.try_to_load_from_cache("sub").unwrap(), None);
        for name in ["../refs/main", "/etc/passwd", ""] {
            let error = repo.try_to_load_from_cache(name).unwrap_err().to_string();
            assert!(error.contains("outside of the model's folder"), "{error}");
        }
        for (id, revision, part) in [
            ("a", None, "`org/name`"),
            ("org/../a", None, "`org/name`"),
            ("org/a", Some("../x"), "`../x` is no branch"),
        ] {
            let error = HuggingFaceRepo::new(id, revision).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(generate_local_model_path("org/no-such-model-anywhere", "main").is_err());
        assert_eq!(try_to_load_from_cache("org/no-such-model-anywhere", "x", "main").unwrap(), None);
    }
}
