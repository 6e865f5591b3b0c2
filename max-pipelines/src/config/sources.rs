//! [`PipelineConfigBuilder`]: settings from a file, the environment and flags, and who said what.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::PipelineConfig;
use crate::error::{PipelineError, Result};

/// What the names of variables begin with, as those of MAX's own do.
const PREFIX: &str = "MAX_SERVE_";

/// The most bytes of a file of settings.
const LARGEST: u64 = 1 << 20;

/// A value, and who said it.
#[derive(Clone, Debug)]
struct Said {
    value: Value,
    origin: String,
}

/// A configuration from several sources. A flag goes before a variable of the environment, that before a file, and that before the
/// default, in whichever order they are added.
///
/// | | `max_length` |
/// | --- | --- |
/// | a flag | `--max-length 2048` |
/// | a variable | `MAX_SERVE_MAX_LENGTH=2048` |
/// | a TOML file | `max_length = 2048` |
/// | a JSON file | `{"max_length": 2048}` |
///
/// ```
/// use max_pipelines::PipelineConfig;
///
/// let variables = [("MAX_SERVE_MAX_LENGTH", "2048"), ("MAX_SERVE_MAX_BATCH_SIZE", "many")];
/// let config = PipelineConfig::builder().variables(variables).flag("model_path", "models/llama");
/// assert_eq!(
///     config.clone().build().unwrap_err().to_string(),
///     "MAX_SERVE_MAX_BATCH_SIZE: many is not a whole number of 0 or more"
/// );
/// assert_eq!(config.flag("max_batch_size", 4).build()?.max_length, Some(2048));
/// # Ok::<(), max_pipelines::PipelineError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PipelineConfigBuilder {
    file: BTreeMap<String, Said>,
    variables: BTreeMap<String, Said>,
    flags: BTreeMap<String, Said>,
}

impl PipelineConfigBuilder {
    /// Adds the settings of a file: JSON if its name ends in `.json`, TOML otherwise.
    ///
    /// # Errors
    /// When it cannot be read, is larger than any such file, or has a setting that there is not.
    pub fn file(mut self, path: impl AsRef<Path>) -> Result<PipelineConfigBuilder> {
        let path = path.as_ref();
        let fail = |reason: String| PipelineError::File { path: path.into(), reason };
        let io_error = |source| PipelineError::Io { path: path.into(), source };
        let size = std::fs::metadata(path).map_err(io_error)?.len();
        if size > LARGEST {
            return Err(fail(format!("has {size} bytes, more than the {LARGEST} of any file of settings")));
        }
        let text = std::fs::read_to_string(path).map_err(io_error)?;
        let values: Map<String, Value> = match path.extension().is_some_and(|extension| extension == "json") {
            true => serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?,
            false => toml::from_str(&text).map_err(|error| fail(error.to_string()))?,
        };
        for (name, value) in values {
            if !PipelineConfig::NAMES.contains(&name.as_str()) {
                let known = PipelineConfig::NAMES.join(", ");
                return Err(fail(format!("`{name}` is no setting; there are {known}")));
            }
            let origin = format!("{}: `{name}`", path.display());
            self.file.insert(name, Said { value, origin });
        }
        Ok(self)
    }

    /// Adds the settings of this process's environment: `MAX_SERVE_` and the name in capitals.
    pub fn environment(self) -> PipelineConfigBuilder {
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let mut builder = self;
        for (name, value) in variables {
            builder = builder.variables([(name.as_str(), &*value.to_string_lossy())]);
        }
        builder
    }

    /// As [`environment`](Self::environment), of these variables. Others than those of settings mean nothing here.
    pub fn variables<'a>(mut self, variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> PipelineConfigBuilder {
        for (variable, value) in variables {
            let Some(name) = variable.strip_prefix(PREFIX).map(str::to_ascii_lowercase) else { continue };
            let said = Said { value: value.into(), origin: variable.to_owned() };
            self.variables.insert(name, said);
        }
        self
    }

    /// Adds a flag, by the name of its setting; its own has `-` in the place of `_`.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl Into<Value>) -> PipelineConfigBuilder {
        let origin = format!("--{}", name.replace('_', "-"));
        self.flags.insert(name.to_owned(), Said { value: value.into(), origin });
        self
    }

    /// Adds a flag that may not be given.
    #[must_use]
    pub fn flag_if<T: Into<Value>>(self, name: &str, value: Option<T>) -> PipelineConfigBuilder {
        match value {
            Some(value) => self.flag(name, value),
            None => self,
        }
    }

    /// The configuration.
    ///
    /// # Errors
    /// When a value is none of its setting, with who said it; when nobody says which model.
    pub fn build(&self) -> Result<PipelineConfig> {
        let mut config = PipelineConfig::new("");
        for name in PipelineConfig::NAMES {
            let sources = [&self.flags, &self.variables, &self.file];
            let Some(Said { value, origin }) = sources.iter().find_map(|source| source.get(*name)) else { continue };
            config.set(name, value).map_err(|expected| PipelineError::Setting {
                origin: origin.clone(),
                value: value.as_str().map_or_else(|| value.to_string(), str::to_owned),
                expected,
            })?;
        }
        if config.model_path.as_os_str().is_empty() {
            return Err(PipelineError::WhichModel);
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use max_core::dtype::DType;

    use super::*;

    fn written(name: &str, text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn flags_go_before_variables_and_these_before_files() {
        let toml = "model_path = 'a'\nmax_length = 1\nmax_batch_size = 1\nprefill_chunk_size = 1\ndtype = 'bfloat16'\n";
        let (_folder, path) = written("max.toml", toml);
        let variables = [("MAX_SERVE_MAX_BATCH_SIZE", "2"), ("MAX_SERVE_PREFILL_CHUNK_SIZE", "2"), ("HOME", "x")];
        let builder = PipelineConfig::builder().flag("prefill_chunk_size", 3).variables(variables).file(path).unwrap();
        let config = builder.flag_if("num_threads", None::<usize>).build().unwrap();
        let expected = PipelineConfig {
            max_length: Some(1),
            max_batch_size: 2,
            prefill_chunk_size: 3,
            dtype: Some(DType::BF16),
            ..PipelineConfig::new("a")
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn json_is_read_too() {
        let (_folder, path) = written("max.json", r#"{"model_path": "a", "chat_template": "b", "max_length": null}"#);
        let config = PipelineConfig::builder().file(path).unwrap().build().unwrap();
        assert_eq!(config, PipelineConfig { chat_template: Some("b".into()), ..PipelineConfig::new("a") });
    }

    #[test]
    fn errors_name_the_source() {
        let fails = |name: &str, text: &str, parts: &[&str]| {
            let (_folder, path) = written(name, text);
            let built = PipelineConfig::builder().file(&path).and_then(|builder| builder.build());
            let error = built.unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{error}");
            }
        };
        fails("a.toml", "max_length = 'long'", &["a.toml: `max_length`: long is not a whole number"]);
        fails("a.json", r#"{"max_length": -1}"#, &["a.json: `max_length`: -1 is not a whole number"]);
        fails("a.toml", "max_lenght = 1", &["a.toml", "`max_lenght` is no setting", "max_length"]);
        fails("a.toml", "max_length = ", &["a.toml", "TOML parse error"]);
        fails("a.json", "[1]", &["a.json", "invalid type"]);
        fails("a.toml", "dtype = 'float31'", &["`dtype`: float31 is not a dtype"]);
        fails("a.toml", "", &["no model is given", "MAX_SERVE_MODEL_PATH"]);
        let error = PipelineConfig::builder().file("/nowhere.toml").unwrap_err().to_string();
        assert!(error.contains("/nowhere.toml"), "{error}");
    }
}
