//! Indexing: `x.i((.., 1..3, -1))`.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use max_core::driver::SliceIndex;
use max_core::graph::{Dim, DimSlice};

use super::Tensor;
use crate::Result;
use crate::functional as f;

/// What [`Tensor::i`] takes: an integer, a range, a [`SliceIndex`] or [`DimSlice`], or a tuple, an array or a slice of such.
pub trait Indices {
    /// The indices, one for each axis from the first.
    fn indices(self) -> Vec<DimSlice>;
}

macro_rules! one_index {
    ($($ty:ty)*) => {$(
        impl Indices for $ty {
            fn indices(self) -> Vec<DimSlice> {
                vec![self.into()]
            }
        }
    )*};
}
one_index!(isize Range<isize> RangeFrom<isize> RangeTo<isize> RangeInclusive<isize> RangeToInclusive<isize> RangeFull);
one_index!(SliceIndex DimSlice Dim Range<Dim> RangeFrom<Dim> RangeTo<Dim>);

impl<T: Into<DimSlice>, const N: usize> Indices for [T; N] {
    fn indices(self) -> Vec<DimSlice> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<T: Into<DimSlice>> Indices for Vec<T> {
    fn indices(self) -> Vec<DimSlice> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<T: Into<DimSlice> + Clone> Indices for &[T] {
    fn indices(self) -> Vec<DimSlice> {
        self.iter().cloned().map(Into::into).collect()
    }
}

macro_rules! indices_of_tuples {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Into<DimSlice>),+> Indices for ($($name,)+) {
            fn indices(self) -> Vec<DimSlice> {
                vec![$(self.$index.into()),+]
            }
        }
    };
}
indices_of_tuples!(A 0);
indices_of_tuples!(A 0, B 1);
indices_of_tuples!(A 0, B 1, C 2);
indices_of_tuples!(A 0, B 1, C 2, D 3);
indices_of_tuples!(A 0, B 1, C 2, D 3, E 4);
indices_of_tuples!(A 0, B 1, C 2, D 3, E 4, F 5);

impl Tensor {
    /// A part of the tensor, as NumPy's basic indexing takes it: [`slice_tensor`](f::slice_tensor).
    ///
    /// ```
    /// # extern crate max_nn as max;
    /// # max_kernels::link();
    /// # use max::tensor::Tensor;
    /// let x = Tensor::arange(0, 12, 1)?.reshape([3, 4])?;
    /// assert_eq!(x.i((.., 1..3))?.to_vec::<f32>()?, [1.0, 2.0, 5.0, 6.0, 9.0, 10.0]);
    /// assert_eq!(x.i((-1, -1))?.item::<f32>()?, 11.0);
    /// # Ok::<(), max::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`slice_tensor`](f::slice_tensor).
    #[track_caller]
    pub fn i(&self, indices: impl Indices) -> Result<Tensor> {
        f::slice_tensor(self, indices)
    }
}
