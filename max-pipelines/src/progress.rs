//! [`LoadProgress`]: how far a model's weights are read; [`DownloadProgress`]: how far its files have arrived.

use std::fmt;
use std::sync::Arc;

/// A function that hears how many bytes of a model's weights are read, and how many there are. Clones are the same function, and
/// only these are equal.
///
/// ```
/// use max_pipelines::{LoadProgress, PipelineConfig};
///
/// let progress = LoadProgress::new(|read, all| eprintln!("{read} of {all} bytes"));
/// let config = PipelineConfig { load_progress: Some(progress), ..PipelineConfig::new("models/llama") };
/// ```
#[derive(Clone)]
pub struct LoadProgress(Arc<dyn Fn(u64, u64) + Send + Sync>);

impl LoadProgress {
    /// Of a function.
    pub fn new(function: impl Fn(u64, u64) + Send + Sync + 'static) -> LoadProgress {
        LoadProgress(Arc::new(function))
    }

    pub(crate) fn report(&self, read: u64, all: u64) {
        (self.0)(read, all);
    }
}

impl fmt::Debug for LoadProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoadProgress")
    }
}

impl PartialEq for LoadProgress {
    fn eq(&self, other: &LoadProgress) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What hears of a download.
type Downloading = dyn Fn(&str, u64, u64) + Send + Sync;

/// A function that hears how a download goes: the name of a file, how many bytes of it have arrived, and how many it has. Clones are
/// the same function, and only these are equal.
#[derive(Clone)]
pub struct DownloadProgress(Arc<Downloading>);

impl DownloadProgress {
    /// Of a function.
    pub fn new(function: impl Fn(&str, u64, u64) + Send + Sync + 'static) -> DownloadProgress {
        DownloadProgress(Arc::new(function))
    }

    #[cfg(feature = "hf_hub")]
    pub(crate) fn report(&self, file: &str, received: u64, all: u64) {
        (self.0)(file, received, all);
    }
}

impl fmt::Debug for DownloadProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DownloadProgress")
    }
}

impl PartialEq for DownloadProgress {
    fn eq(&self, other: &DownloadProgress) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
