//! [`HuggingFaceConfig`]: what `config.json` says.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{PipelineError, Result};

/// The largest size of a model: of its vocabulary, or of a vector.
const LARGEST_SIZE: usize = 1 << 24;

/// The most layers, or experts of a layer.
const LARGEST_COUNT: usize = 1 << 12;

/// The values of a `config.json`, by their names there. What is missing or of another kind is an error that names the file and
/// the key.
///
/// ```
/// use max_pipelines::HuggingFaceConfig;
///
/// let config = HuggingFaceConfig::parse("config.json", r#"{"hidden_size": 64, "rope_scaling": null}"#)?;
/// assert_eq!(config.usize("hidden_size")?, 64);
/// assert!(config.section("rope_scaling").is_none());
/// assert_eq!(config.usize("heads").unwrap_err().to_string(), "config.json: `heads` is missing");
/// # Ok::<(), max_pipelines::PipelineError>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct HuggingFaceConfig {
    path: PathBuf,
    /// The name of the object within the file, with a dot; empty for the whole file.
    prefix: String,
    values: Map<String, Value>,
}

impl HuggingFaceConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or holds no JSON object.
    pub fn load(path: impl AsRef<Path>) -> Result<HuggingFaceConfig> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| PipelineError::Io { path: path.into(), source })?;
        HuggingFaceConfig::parse(path, &text)
    }

    /// The text of a file, whose path is for messages.
    ///
    /// # Errors
    /// When it holds no JSON object.
    pub fn parse(path: impl AsRef<Path>, text: &str) -> Result<HuggingFaceConfig> {
        let path = path.as_ref();
        let fail = |reason| PipelineError::File { path: path.into(), reason };
        match serde_json::from_str(text) {
            Ok(Value::Object(values)) => Ok(HuggingFaceConfig::of(path, values)),
            Ok(_) => Err(fail("a JSON object is expected".into())),
            Err(error) => Err(fail(error.to_string())),
        }
    }

    pub(crate) fn of(path: &Path, values: Map<String, Value>) -> HuggingFaceConfig {
        HuggingFaceConfig { path: path.into(), prefix: String::new(), values }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file says, as it is.
    pub fn values(&self) -> &Map<String, Value> {
        &self.values
    }

    /// A value that is there and not `null`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// An object within, if it is there.
    pub fn section(&self, key: &str) -> Option<HuggingFaceConfig> {
        let Value::Object(values) = self.get(key)? else { return None };
        let prefix = format!("{}{key}.", self.prefix);
        Some(HuggingFaceConfig { path: self.path.clone(), prefix, values: values.clone() })
    }

    /// An error about a key of this file.
    pub fn error(&self, key: &str, reason: impl std::fmt::Display) -> PipelineError {
        PipelineError::File { path: self.path.clone(), reason: format!("`{}{key}` {reason}", self.prefix) }
    }

    fn read<'a, T>(&'a self, key: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.error(key, format!("is {value}, not {expected}"))),
        }
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.error(key, "is missing"))
    }

    /// A size, if it is there.
    ///
    /// # Errors
    /// When it is no number of 0 or more.
    pub fn opt_usize(&self, key: &str) -> Result<Option<usize>> {
        self.read(key, "a size", |value| {
            let whole =
                |number: f64| (number.fract() == 0.0 && (0.0..1e15).contains(&number)).then_some(number as usize);
            value.as_u64().and_then(|size| usize::try_from(size).ok()).or_else(|| value.as_f64().and_then(whole))
        })
    }

    /// A size above 0, and not beyond that of any model: products of sizes stay numbers.
    ///
    /// # Errors
    /// When it is missing, 0, too large or no size.
    pub fn usize(&self, key: &str) -> Result<usize> {
        self.at_most(key, LARGEST_SIZE)
    }

    /// A number of parts above 0, each of which is made: layers, or experts.
    ///
    /// # Errors
    /// When it is missing, 0, too large or no number.
    pub fn count(&self, key: &str) -> Result<usize> {
        self.at_most(key, LARGEST_COUNT)
    }

    fn at_most(&self, key: &str, largest: usize) -> Result<usize> {
        match self.required(key, self.opt_usize(key)?)? {
            0 => Err(self.error(key, "is 0")),
            size if size > largest => Err(self.error(key, format!("is {size}, more than the {largest} of any model"))),
            size => Ok(size),
        }
    }

    /// A number, if it is there.
    ///
    /// # Errors
    /// When it is no number.
    pub fn opt_f64(&self, key: &str) -> Result<Option<f64>> {
        self.read(key, "a number", Value::as_f64)
    }

    /// A number.
    ///
    /// # Errors
    /// When it is missing or no number.
    pub fn f64(&self, key: &str) -> Result<f64> {
        self.required(key, self.opt_f64(key)?)
    }

    /// A bool, or `default` if it is not there.
    ///
    /// # Errors
    /// When it is no bool.
    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.read(key, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// A string, if it is there.
    ///
    /// # Errors
    /// When it is no string.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>> {
        self.read(key, "a string", Value::as_str)
    }

    /// Numbers, if they are there.
    ///
    /// # Errors
    /// When it is no list of numbers.
    pub fn opt_f64s(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.read(key, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    /// Strings, if they are there.
    ///
    /// # Errors
    /// When it is no list of strings.
    pub fn opt_strs(&self, key: &str) -> Result<Option<Vec<&str>>> {
        self.read(key, "a list of strings", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// One token, or several, if they are there.
    ///
    /// # Errors
    /// When it is neither.
    pub fn tokens(&self, key: &str) -> Result<Vec<u32>> {
        let token = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let tokens = self.read(key, "a token or a list of tokens", |value| match value {
            Value::Array(tokens) => tokens.iter().map(token).collect::<Option<Vec<u32>>>(),
            value => token(value).map(|token| vec![token]),
        })?;
        Ok(tokens.unwrap_or_default())
    }

    /// The name of the architecture: the first of `architectures`.
    ///
    /// # Errors
    /// When there is none.
    pub fn architecture(&self) -> Result<&str> {
        let names = self.opt_strs("architectures")?;
        self.required("architectures", names.and_then(|names| names.first().copied()))
    }
}
