//! [`Error`]: any error of this crate, for programs that do not tell them apart.

use std::fmt;
use std::panic::Location;

use crate::driver::{CudaError, DriverError, ParseDeviceRefError};
use crate::dtype::ParseDTypeError;
use crate::engine::{EngineError, OperandError};
use crate::graph::ops::{Mismatch, SignatureError};
use crate::graph::weights::WeightsError;
use crate::graph::{BindError, DimError, GraphError, GraphErrorKind};
use crate::kernel::ir::{ParseError, VerifyError};
use crate::kernel::ptx::PtxError;
use crate::kernel::{GpuError, KernelError};

/// A result with any error of this crate: what `main` returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error of this crate, and the line of the program that got it: that of the `?` (or `into`) which made it one.
///
/// `Debug`, by which a `main` that returns it prints it, adds what caused it.
///
/// ```
/// # use max_core as max;
/// fn numbers() -> max::Result<max::driver::Tensor> {
///     Ok(max::driver::Tensor::from_slice(&[1.0f32, 2.0, 3.0], [2, 2])?)
/// }
///
/// let error = numbers().unwrap_err();
/// assert!(matches!(error.kind(), max::ErrorKind::Driver(_)));
/// assert_eq!(error.to_string(), format!("{}: {}", error.location(), error.kind()));
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    location: &'static Location<'static>,
}

/// Whose error an [`Error`] is.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Of devices, memory and tensors.
    #[error(transparent)]
    Driver(DriverError),
    /// Of the kernel library.
    #[error(transparent)]
    Kernel(KernelError),
    /// Of building a graph. It names the op's line itself.
    #[error(transparent)]
    Graph(GraphError),
    /// Of files of weights.
    #[error(transparent)]
    Weights(WeightsError),
    /// Of loading and executing models.
    #[error(transparent)]
    Engine(EngineError),
}

impl Error {
    /// Whose error it is.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The same, to keep.
    pub fn into_kind(self) -> ErrorKind {
        self.0.kind
    }

    /// The line of the program that got it.
    pub fn location(&self) -> &'static Location<'static> {
        self.0.location
    }
}

macro_rules! from {
    ($($kind:ident $error:ident)*) => { $(
        impl From<$error> for Error {
            #[track_caller]
            fn from(error: $error) -> Error {
                Error(Box::new(Inner { kind: ErrorKind::$kind(error), location: Location::caller() }))
            }
        }
    )* };
}
from! { Driver DriverError Kernel KernelError Graph GraphError Weights WeightsError Engine EngineError }

/// `Debug` of every error is its message, so that an `unwrap` and a `main` that returns it read well.
macro_rules! debug_is_the_message {
    ($($error:ty)*) => { $(
        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )* };
}
debug_is_the_message! {
    ErrorKind DriverError CudaError ParseDeviceRefError ParseDTypeError
    GraphError GraphErrorKind SignatureError Mismatch DimError BindError WeightsError EngineError OperandError
    KernelError GpuError PtxError ParseError VerifyError
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, location } = &*self.0;
        match kind {
            ErrorKind::Graph(error) => write!(f, "{error}"),
            ErrorKind::Driver(_) | ErrorKind::Kernel(_) | ErrorKind::Weights(_) | ErrorKind::Engine(_) => {
                write!(f, "{location}: {kind}")
            }
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let message = error.to_string();
            // Some errors quote what caused them.
            if !text.contains(&message) {
                text = format!("{text}\n  caused by: {message}");
            }
            cause = error.source();
        }
        f.write_str(&text)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.0.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{DeviceRef, MapMode, Tensor};
    use crate::dtype::DType;
    use crate::graph::TensorType;

    #[test]
    fn the_line_is_that_of_the_question_mark() {
        fn fails() -> Result<Tensor> {
            let data = [0u8; 3];
            Ok(Tensor::from_slice(&data, [2, 2])?)
        }
        let error = fails().unwrap_err();
        assert_eq!(error.location().file(), file!());
        assert_eq!(error.location().line(), line!() - 4);
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("{}: ", error.location())) && text.ends_with(&error.kind().to_string()),
            "{text}"
        );
    }

    #[test]
    fn debug_of_an_error_is_its_message() {
        let tensor = Tensor::from_slice(&[0u8; 3], [2, 2]).unwrap_err();
        assert_eq!(format!("{tensor:?}"), "from_slice: 3 elements do not fill shape [2, 2], which has 4");
        let device = "cup".parse::<DeviceRef>().unwrap_err();
        assert_eq!(format!("{device:?}"), device.to_string());
        let ty = TensorType::new(DType::F32, (2,), DeviceRef::CPU);
        let graph = crate::graph::Graph::build("g", [ty], |_, x| crate::graph::ops::softmax(&x[0], 5)).unwrap_err();
        let text = format!("{graph:?}");
        assert!(
            text.starts_with(&format!("`softmax` at {}:", file!())) && text.contains("axis 5 is out of range"),
            "{text}"
        );
        assert_eq!(format!("{:?}", graph.kind()), "axis 5 is out of range for rank 1; axes are -1 to 0");
        let unfinished = crate::engine::InferenceSession::new().load(&crate::graph::Graph::new("g", ())).unwrap_err();
        assert_eq!(format!("{unfinished:?}"), unfinished.to_string());
        let kernel = crate::kernel::KernelLibrary::linked().get("no such kernel").map(drop).unwrap_err();
        assert_eq!(format!("{kernel:?}"), kernel.to_string());
    }

    #[test]
    fn causes_are_printed_once() {
        let missing = || -> Result<Tensor> {
            let path = std::path::Path::new("there is no such file");
            // SAFETY: nobody changes a file that is not there.
            Ok(unsafe { Tensor::mmap(path, DType::U8, [1], MapMode::ReadOnly, 0) }?)
        };
        let text = format!("{:?}", missing().unwrap_err());
        assert_eq!(text.matches("os error").count(), 1, "{text}");
    }

    #[test]
    fn errors_of_graphs_name_their_line_once() {
        let failed = || -> Result<()> {
            crate::graph::Graph::build("g", [TensorType::new(DType::F32, (2,), DeviceRef::CPU)], |_, x| {
                crate::graph::ops::softmax(&x[0], 5)
            })?;
            Ok(())
        };
        let text = failed().unwrap_err().to_string();
        assert_eq!(text.matches(file!()).count(), 1, "{text}");
    }
}
