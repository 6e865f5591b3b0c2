//! [`ModelFiles`]: where a model's files are.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use max_core::graph::weights::{Weights, WeightsFormat, load_weights};

use super::HuggingFaceConfig;
use super::gguf;
use super::hub::{self, Download};
use super::lora::Lora;
use crate::config::PipelineConfig;
use crate::error::{PipelineError, Result};
use crate::progress::LoadProgress;

/// What a model's configuration is called.
pub(super) const CONFIG: &str = "config.json";
/// What the list of weights that lie in several files is called.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// The bytes that packed weights take beside the weights, which few rows read in place. Long prompts pack tiles as they need them,
/// in memory that all products share.
pub(crate) const PACKED_LIMIT: usize = 0;

/// The files of a model: a folder as a hub has it, or a GGUF file.
#[derive(Clone)]
pub struct ModelFiles {
    /// What was asked for.
    pub path: PathBuf,
    /// What the model's configuration says; for a GGUF file, what its metadata say, by the names that `config.json` has.
    pub config: HuggingFaceConfig,
    /// How texts are generated, if the model says so.
    pub generation_config: Option<HuggingFaceConfig>,
    /// The files of weights.
    pub weights: Vec<PathBuf>,
    /// The format of the weights.
    pub format: WeightsFormat,
    /// What is merged into the weights when they are loaded.
    pub(super) lora: Option<Arc<Lora>>,
    /// Who hears how far they are read.
    pub(super) progress: Option<LoadProgress>,
}

impl ModelFiles {
    /// Looks at a folder, a GGUF file, or a model (`org/name`) in the cache of Hugging Face's tools.
    ///
    /// # Errors
    /// When there is none, it has no `config.json` or no weights, or a file is damaged.
    pub fn find(path: impl AsRef<Path>) -> Result<ModelFiles> {
        ModelFiles::find_revision(path, None)
    }

    /// As [`find`](Self::find), of a branch, tag or commit of a model in that cache.
    ///
    /// # Errors
    /// As [`find`](Self::find); when a folder or a file is asked for a revision.
    pub fn find_revision(path: impl AsRef<Path>, revision: Option<&str>) -> Result<ModelFiles> {
        ModelFiles::open_located(&hub::locate(path.as_ref(), revision, None)?)
    }

    fn open_located(path: &Path) -> Result<ModelFiles> {
        let no_model = |reason: &str| PipelineError::NoModel { path: path.into(), reason: reason.into() };
        if path.is_file() {
            if !matches!(WeightsFormat::of(path)?, WeightsFormat::Gguf) {
                return Err(no_model("this file is no GGUF"));
            }
            return ModelFiles::open_gguf(path);
        }
        let file = path.join(CONFIG);
        if !file.is_file() || !has_weights(path) && !path.join(INDEX).is_file() {
            match &gguf_models(path)[..] {
                [] => {}
                [model] => return ModelFiles::open_gguf(model),
                models => {
                    let name = |model: &PathBuf| model.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    let names: Vec<String> = models.iter().map(name).collect();
                    return Err(no_model(&format!("there are several GGUF files, {}: name one", names.join(", "))));
                }
            }
        }
        if !file.is_file() {
            return Err(no_model("there is neither a config.json nor a GGUF file"));
        }
        let config = HuggingFaceConfig::load(file)?;
        let generation = path.join("generation_config.json");
        let generation_config = generation.is_file().then(|| HuggingFaceConfig::load(generation)).transpose()?;
        let index = path.join(INDEX);
        let weights = if index.is_file() {
            vec![index]
        } else {
            let entries = std::fs::read_dir(path).map_err(|source| PipelineError::Io { path: path.into(), source })?;
            let mut found: Vec<PathBuf> =
                entries.flatten().map(|entry| entry.path()).filter(|path| is_weights(path)).collect();
            found.sort();
            found
        };
        if weights.is_empty() {
            return Err(no_model("there is no model*.safetensors"));
        }
        let path = path.to_path_buf();
        Ok(ModelFiles::of(path, config, generation_config, weights, WeightsFormat::Safetensors))
    }

    /// A GGUF file, with its other parts.
    fn open_gguf(path: &Path) -> Result<ModelFiles> {
        let files = gguf_parts(path);
        if let Some(absent) = files.iter().find(|part| !part.is_file()) {
            let reason = format!("its part {} is not there", absent.display());
            return Err(PipelineError::File { path: path.into(), reason });
        }
        let config = gguf::config(path, &load_weights(&files)?)?;
        Ok(ModelFiles::of(path.to_path_buf(), config, None, files, WeightsFormat::Gguf))
    }

    fn of(
        path: PathBuf,
        config: HuggingFaceConfig,
        generation_config: Option<HuggingFaceConfig>,
        weights: Vec<PathBuf>,
        format: WeightsFormat,
    ) -> ModelFiles {
        ModelFiles { path, config, generation_config, weights, format, lora: None, progress: None }
    }

    /// The files of the model that a configuration names, with its adapter. The model is downloaded if the configuration says so and it
    /// is not there.
    ///
    /// # Errors
    /// As [`find_revision`](Self::find_revision); when the model cannot be downloaded, or the adapter is not there or not known.
    pub(crate) fn configured(config: &PipelineConfig) -> Result<ModelFiles> {
        let download = config.download.then_some(Download { progress: config.download_progress.as_ref() });
        let files = ModelFiles::open_located(&hub::locate(&config.model_path, config.revision.as_deref(), download)?)?;
        let lora = config.lora_path.as_deref().map(Lora::open).transpose()?.map(Arc::new);
        Ok(ModelFiles { lora, progress: config.load_progress.clone(), ..files })
    }

    /// A file beside the weights, if it is there.
    pub fn beside(&self, name: &str) -> Option<PathBuf> {
        let folder = if self.path.is_dir() { &self.path } else { self.path.parent()? };
        Some(folder.join(name)).filter(|path| path.is_file())
    }

    /// Opens the weights.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged.
    pub fn open(&self) -> Result<Weights> {
        Ok(load_weights(&self.weights)?)
    }

    /// How long the files of weights are, and when they were changed. Shards lie beside their index; a file that is not there, as
    /// where a link of a cache leads nowhere, has no version: whether it is missed is for [`open`](Self::open) to say.
    pub(crate) fn versions(&self) -> Result<Vec<FileVersion>> {
        let mut paths = self.weights.clone();
        if self.path.is_dir() {
            let entries = std::fs::read_dir(&self.path);
            let entries = entries.map_err(|source| PipelineError::Io { path: self.path.clone(), source })?;
            let shards = entries.flatten().map(|entry| entry.path());
            paths.extend(shards.filter(|path| path.extension().is_some_and(|end| end == "safetensors")));
        }
        let version = |path: PathBuf| FileVersion {
            version: path.metadata().ok().map(|metadata| (metadata.len(), metadata.modified().ok())),
            path,
        };
        Ok(paths.into_iter().map(version).collect())
    }

    /// Checks that no file of weights was changed since.
    ///
    /// # Errors
    /// When one was: what was read may be of both.
    pub(crate) fn unchanged_since(&self, before: &[FileVersion]) -> Result<()> {
        let now = self.versions()?;
        match before.iter().find(|file| !now.contains(file)) {
            None => Ok(()),
            Some(file) => Err(PipelineError::File {
                path: file.path.clone(),
                reason: "was changed while it was read; load the model again when the file is written".into(),
            }),
        }
    }

    /// The tokens that end a text.
    ///
    /// # Errors
    /// When a file says something else than tokens.
    pub fn eos_token_ids(&self) -> Result<Vec<u32>> {
        let mut tokens = self.config.tokens("eos_token_id")?;
        if let Some(config) = &self.generation_config {
            tokens.extend(config.tokens("eos_token_id")?);
        }
        tokens.sort_unstable();
        tokens.dedup();
        Ok(tokens)
    }
}

/// What a file was when it was looked at.
#[derive(PartialEq)]
pub(crate) struct FileVersion {
    path: PathBuf,
    /// Its bytes, and when it was changed.
    version: Option<(u64, Option<SystemTime>)>,
}

/// What the parts of a model in several GGUF files are called, as llama.cpp writes them: their numbers, from 1 on, and how many there are.
fn gguf_part(name: &str) -> Option<(&str, usize, usize)> {
    let (stem, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = stem.rsplit_once('-')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<usize>().ok())?;
    (number.len() == 5 && count.len() == 5).then_some((stem, digits(number)?, digits(count)?))
}

/// All parts of the model that a GGUF file is, or is a part of.
fn gguf_parts(path: &Path) -> Vec<PathBuf> {
    match path.file_name().and_then(|name| gguf_part(name.to_str()?)) {
        Some((stem, _, count)) => {
            (1..=count).map(|number| path.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"))).collect()
        }
        None => vec![path.to_path_buf()],
    }
}

/// The models in the GGUF files of a folder: of one in several files the first.
pub(super) fn gguf_models(folder: &Path) -> Vec<PathBuf> {
    let is_model = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.ends_with(".gguf") && gguf_part(name).is_none_or(|(_, number, _)| number == 1)
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut models: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_model).collect();
    models.sort();
    models
}

/// Whether a folder has weights without an index.
pub(super) fn has_weights(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(|entry| is_weights(&entry.path())))
}

fn is_weights(path: &Path) -> bool {
    is_weights_name(path.file_name().and_then(|name| name.to_str()).unwrap_or_default())
}

/// Whether a file of that name, in a model's folder, has weights.
pub(super) fn is_weights_name(name: &str) -> bool {
    name.starts_with("model") && name.ends_with(".safetensors") && !name.contains('/')
}
