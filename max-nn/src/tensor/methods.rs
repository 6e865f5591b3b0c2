//! Methods of [`Tensor`] beside those that come with the tables of [`functional`](crate::functional).

use max_core::driver::DeviceRef;
use max_core::dtype::DType;
use max_core::graph::Shape;

use super::Tensor;
use crate::Result;
use crate::functional as f;

impl Tensor {
    /// The elements converted to another dtype: [`cast`](f::cast).
    ///
    /// # Errors
    /// As [`cast`](f::cast).
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        f::cast(self, dtype)
    }

    /// The tensor on another device: [`transfer_to`](f::transfer_to).
    ///
    /// # Errors
    /// As [`transfer_to`](f::transfer_to).
    #[track_caller]
    pub fn to(&self, device: DeviceRef) -> Result<Tensor> {
        f::transfer_to(self, device)
    }

    /// The same elements in another shape, of which one dim may be -1: [`reshape`](f::reshape).
    ///
    /// # Errors
    /// As [`reshape`](f::reshape).
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        f::reshape(self, shape)
    }

    /// With the axes in another order: [`permute`](f::permute).
    ///
    /// # Errors
    /// As [`permute`](f::permute).
    #[track_caller]
    pub fn permute(&self, dims: impl AsRef<[i64]>) -> Result<Tensor> {
        f::permute(self, dims)
    }

    /// With two axes exchanged: [`transpose`](f::transpose).
    ///
    /// # Errors
    /// As [`transpose`](f::transpose).
    #[track_caller]
    pub fn transpose(&self, dim1: i64, dim2: i64) -> Result<Tensor> {
        f::transpose(self, dim1, dim2)
    }

    /// With the last two axes exchanged: MAX's `T`.
    ///
    /// # Errors
    /// When it has fewer than two axes.
    #[track_caller]
    pub fn t(&self) -> Result<Tensor> {
        f::transpose(self, -2, -1)
    }

    /// With a new axis of size 1: [`unsqueeze`](f::unsqueeze).
    ///
    /// # Errors
    /// As [`unsqueeze`](f::unsqueeze).
    #[track_caller]
    pub fn unsqueeze(&self, axis: i64) -> Result<Tensor> {
        f::unsqueeze(self, axis)
    }

    /// Without an axis of size 1: [`squeeze`](f::squeeze).
    ///
    /// # Errors
    /// As [`squeeze`](f::squeeze).
    #[track_caller]
    pub fn squeeze(&self, axis: i64) -> Result<Tensor> {
        f::squeeze(self, axis)
    }

    /// Some axes as one: [`flatten`](f::flatten).
    ///
    /// # Errors
    /// As [`flatten`](f::flatten).
    #[track_caller]
    pub fn flatten(&self, start_dim: i64, end_dim: i64) -> Result<Tensor> {
        f::flatten(self, start_dim, end_dim)
    }

    /// Repeated to a shape: [`broadcast_to`](f::broadcast_to).
    ///
    /// # Errors
    /// As [`broadcast_to`](f::broadcast_to).
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        f::broadcast_to(self, shape)
    }
}
