//! [`DriverError`]: what can go wrong with devices, memory and tensors.

use super::{CudaError, DeviceRef, LaunchedOps};
use crate::dtype::DType;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// An error of the driver. Every variant holds the operation and the values that did not fit.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message of each variant names its fields")]
pub enum DriverError {
    // Devices.
    #[error("there is no accelerator {id}: {count} found on this machine{}; use `Device::cpu()`", because(source.as_deref()))]
    NoAccelerator { id: u32, count: u32, source: Option<Box<CudaError>> },
    #[error("{op} on {device}: {source}")]
    Cuda { op: &'static str, device: DeviceRef, source: Box<CudaError> },
    #[error("{op}: {device} is lost, and with it all of its memory, since {source}{}", blame(launched))]
    DeviceLost { op: &'static str, device: DeviceRef, source: Box<CudaError>, launched: Arc<LaunchedOps> },
    #[error("{op}: {device} is not an accelerator; ask `Device::is_host` first")]
    NotAnAccelerator { op: &'static str, device: DeviceRef },
    #[error("there is no device {device}: the host is the one device `cpu:0`")]
    NoSuchDevice { device: DeviceRef },
    #[error("{op}: the tensor is on {device}; copy it with `.to(&Device::cpu())` first")]
    NotOnHost { op: &'static str, device: DeviceRef },
    #[error(
        "the grid of kernel `{kernel}` has {extent} programs along axis {axis}, and the limit is 2147483647: see the parameters and \
         dims that it is computed from"
    )]
    EnormousGrid { kernel: &'static str, axis: usize, extent: i64 },

    // Memory.
    #[error(
        "out of memory on {device}: {requested} bytes requested, {in_use} in use by tensors; drop tensors or use smaller shapes"
    )]
    OutOfMemory { device: DeviceRef, requested: usize, in_use: usize },
    #[error("{op}: a {dtype} tensor of shape {shape:?} is larger than the address space")]
    SizeOverflow { op: &'static str, dtype: DType, shape: Vec<usize> },
    #[error(
        "{op}: the tensor's memory is shared by {handles} handles (clones and views), so it cannot be written in place; \
         drop the others, or call `make_unique` to write to a copy"
    )]
    StorageShared { op: &'static str, handles: usize },
    #[error(
        "{op}: the tensor's memory is read-only (static data or a read-only map); call `make_unique` to write to a copy"
    )]
    ReadOnly { op: &'static str },

    // Element types and values.
    #[error(
        "{op}: the tensor is {actual}, but {expected} was asked for; cast it, or use `view` to reinterpret its bytes"
    )]
    DTypeMismatch { op: &'static str, expected: DType, actual: DType },
    #[error("{op}: byte {value:#04x} at element {index} is not a bool; a bool is stored as 0 or 1")]
    InvalidBool { op: &'static str, index: usize, value: u8 },
    #[error("{op}: the data is not aligned for {dtype}: it must be at a multiple of {align} bytes; call `copy` first", align = dtype.align())]
    Misaligned { op: &'static str, dtype: DType },
    #[error("arange: a step of 0 or NaN does not lead from {start} to {stop}")]
    InvalidStep { start: f64, stop: f64, step: f64 },

    // Shapes.
    #[error("{op}: {actual} elements do not fill shape {shape:?}, which has {expected}")]
    ElementCount { op: &'static str, shape: Vec<usize>, expected: usize, actual: usize },
    #[error("{op}: shape {shape:?} has rank {}, but rank {expected} was expected", shape.len())]
    RankMismatch { op: &'static str, expected: usize, shape: Vec<usize> },
    #[error("{op}: shapes {lhs:?} and {rhs:?} differ")]
    ShapeMismatch { op: &'static str, lhs: Vec<usize>, rhs: Vec<usize> },
    #[error("{op}: axis {axis} is out of range for shape {shape:?}")]
    AxisOutOfRange { op: &'static str, axis: isize, shape: Vec<usize> },
    #[error("{op}: {axes:?} is not a permutation of the axes of shape {shape:?}")]
    InvalidPermutation { op: &'static str, axes: Vec<isize>, shape: Vec<usize> },
    #[error(
        "broadcast_to: shape {from:?} does not broadcast to {to:?}; each size must be equal or 1, counted from the last axis"
    )]
    NotBroadcastable { from: Vec<usize>, to: Vec<usize> },
    #[error("{op}: the tensor of shape {shape:?} and strides {strides:?} is not contiguous; call `contiguous` first")]
    NotContiguous { op: &'static str, shape: Vec<usize>, strides: Vec<isize> },
    #[error(
        "{op}: the last axis of shape {shape:?} does not hold a whole number of {dtype} elements when read as {from} bytes each"
    )]
    ViewSize { op: &'static str, shape: Vec<usize>, from: usize, dtype: DType },

    // Indices.
    #[error("{op}: index {index} is out of range for axis {axis} of size {size}")]
    IndexOutOfRange { op: &'static str, axis: usize, index: isize, size: usize },
    #[error("{op}: {count} indices for a tensor of shape {shape:?}")]
    TooManyIndices { op: &'static str, count: usize, shape: Vec<usize> },
    #[error("slice: more than one ellipsis; write at most one")]
    RepeatedEllipsis,
    #[error("slice: the step of axis {axis} is 0")]
    ZeroStep { axis: usize },

    // Files.
    #[error("{op}: cannot read {path}: {source}", path = path.display())]
    Io { op: &'static str, path: PathBuf, source: io::Error },
    #[error("mmap: {path} has {found} bytes, but {needed} bytes from offset {offset} were asked for", path = path.display())]
    ShortFile { path: PathBuf, offset: u64, needed: usize, found: u64 },
}

fn blame(launched: &LaunchedOps) -> String {
    if let Some(op) = launched.only() {
        return format!(" in {op}; start the program again");
    }
    let first = if launched.ops.is_empty() { String::new() } else { format!(" in one of {launched}") };
    format!("{first}; start the program again, and look for the kernel at fault with `MAX_GPU_SYNC=1`")
}

fn because(source: Option<&CudaError>) -> String {
    source.map_or_else(String::new, |source| format!(" ({source})"))
}
