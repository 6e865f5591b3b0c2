//! [`RequestId`]: the name of a request, and what has one.

use std::fmt;
use std::sync::Arc;

use crate::text_generation::GenerationStatus;

/// The name of a request, by which whoever asked knows its results. Whether two requests have the same is theirs to see to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The name as it is.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Of a request that nobody names.
impl Default for RequestId {
    fn default() -> RequestId {
        RequestId::from("")
    }
}

impl From<&str> for RequestId {
    fn from(name: &str) -> RequestId {
        RequestId(name.into())
    }
}

impl From<String> for RequestId {
    fn from(name: String) -> RequestId {
        RequestId(name.into())
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is asked for.
pub trait Request {
    /// Its name.
    fn request_id(&self) -> &RequestId;
}

/// What is kept of a request while it is computed.
pub trait BaseContext {
    /// The request's name.
    fn request_id(&self) -> &RequestId;

    /// Whether it is finished, and why.
    fn status(&self) -> GenerationStatus;

    /// Whether nothing is added any more.
    fn is_done(&self) -> bool {
        self.status().is_done()
    }
}
