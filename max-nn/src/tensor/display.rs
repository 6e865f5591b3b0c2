//! How tensors print: `Display` the values as NumPy does, with dtype, shape and device; `Debug` also whether they are realized.

use std::fmt;

use super::{Repr, Tensor};

impl fmt::Display for Tensor {
    /// The values, aligned, of large tensors those at the ends of each axis, and then the type. Computes them first. Of what
    /// cannot be computed, the error.
    #[track_caller]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Repr::Graph(value) = &self.0 {
            return write!(f, "{value:?}");
        }
        match self.host_value("print") {
            // It says its dtype and shape itself.
            Ok(value) if value.num_elements() == 0 => {
                write!(f, "[] {}{} on {}", self.dtype(), self.shape(), self.device())
            }
            Ok(value) => write!(f, "{value} {}{} on {}", self.dtype(), self.shape(), self.device()),
            Err(error) => write!(f, "<no value: {error}>"),
        }
    }
}

impl fmt::Debug for Tensor {
    /// `Tensor(float32[5] on cpu:0, unrealized: relu)`: nothing is computed for it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensor = match &self.0 {
            Repr::Graph(value) => return write!(f, "Tensor({value:?}, of a graph)"),
            Repr::Eager(tensor) => tensor,
        };
        write!(f, "Tensor({}{} on {}, ", self.dtype(), self.shape(), self.device())?;
        match tensor.call.outcome() {
            Some(Ok(_)) => f.write_str("realized)"),
            Some(Err(error)) => write!(f, "failed: {error})"),
            None => write!(f, "unrealized: {} at {})", tensor.call.op().map_or("?", |op| op.op), tensor.call.location),
        }
    }
}
