//! The types of settings: what a file, a variable or a flag may say for them.

use std::path::PathBuf;

use max_core::dtype::DType;
use serde_json::Value;

/// A type that settings have.
pub(super) trait Setting: Sized {
    /// What is expected, for messages.
    const EXPECTED: &'static str;

    /// Of a value of a file, or of the text of a variable.
    fn read(value: &Value) -> Option<Self>;
}

impl Setting for usize {
    const EXPECTED: &'static str = "a whole number of 0 or more";

    fn read(value: &Value) -> Option<usize> {
        match value {
            Value::String(text) => text.trim().parse().ok(),
            number => usize::try_from(number.as_u64()?).ok(),
        }
    }
}

impl Setting for bool {
    const EXPECTED: &'static str = "true or false";

    fn read(value: &Value) -> Option<bool> {
        match value {
            Value::String(text) => text.trim().parse().ok(),
            value => value.as_bool(),
        }
    }
}

impl Setting for String {
    const EXPECTED: &'static str = "a text";

    fn read(value: &Value) -> Option<String> {
        value.as_str().map(str::to_owned)
    }
}

impl Setting for PathBuf {
    const EXPECTED: &'static str = "a path";

    fn read(value: &Value) -> Option<PathBuf> {
        value.as_str().filter(|path| !path.is_empty()).map(PathBuf::from)
    }
}

impl Setting for Vec<PathBuf> {
    const EXPECTED: &'static str = "a list of paths, or one";

    fn read(value: &Value) -> Option<Vec<PathBuf>> {
        match value {
            Value::Array(paths) => paths.iter().map(PathBuf::read).collect(),
            path => Some(vec![PathBuf::read(path)?]),
        }
    }
}

impl Setting for DType {
    const EXPECTED: &'static str = "a dtype, such as float32 or bfloat16";

    fn read(value: &Value) -> Option<DType> {
        value.as_str()?.parse().ok()
    }
}

impl<T: Setting> Setting for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    fn read(value: &Value) -> Option<Option<T>> {
        match value {
            Value::Null => Some(None),
            value => T::read(value).map(Some),
        }
    }
}
