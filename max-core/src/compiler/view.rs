//! [`View`]: how a value lies in a buffer, as sizes, strides and an offset that may be symbolic.
//!
//! Views are compared as expressions: two that are equal for every size of the symbols are equal here, and anything that
//! depends on the sizes counts as different, which costs a copy and never a wrong result.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::graph::{Dim, SliceAxis, Window};

/// Sizes or strides, one for each axis.
pub(crate) type Dims = SmallVec<[Dim; 4]>;

/// Where the elements of a value lie in a buffer. Many steps read one value, so views are shared.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct View(Arc<Layout>);

/// What a view says. Offset and strides count elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Layout {
    pub offset: Dim,
    pub dims: Dims,
    pub strides: Dims,
}

impl Deref for View {
    type Target = Layout;

    fn deref(&self) -> &Layout {
        &self.0
    }
}

const ONE: Dim = Dim::Static(1);

/// The product of sizes.
pub(crate) fn product(dims: &[Dim]) -> Dim {
    dims.iter().fold(ONE, |all, dim| all * dim)
}

/// Row-major strides.
fn row_major(dims: &[Dim]) -> Dims {
    let mut strides = Dims::from_elem(ONE, dims.len());
    // The size of the first axis, which is most often the symbolic one, is in no stride.
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = &strides[axis] * &dims[axis];
    }
    strides
}

impl View {
    pub fn new(offset: Dim, dims: Dims, strides: Dims) -> View {
        View(Arc::new(Layout { offset, dims, strides }))
    }

    /// A buffer in row-major order from an offset on.
    fn contiguous_from(offset: &Dim, dims: &[Dim]) -> View {
        View::new(offset.clone(), dims.into(), row_major(dims))
    }

    /// A whole buffer in row-major order.
    pub fn contiguous(dims: &[Dim]) -> View {
        View::contiguous_from(&Dim::Static(0), dims)
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = ONE;
        let mut inner = &ONE;
        for (dim, stride) in self.dims.iter().zip(&self.strides).rev().filter(|(dim, _)| **dim != 1) {
            expected = expected * inner;
            if *stride != expected {
                return self.is_empty();
            }
            inner = dim;
        }
        true
    }

    /// Whether it is known to have no elements.
    pub fn is_empty(&self) -> bool {
        self.dims.iter().any(|dim| *dim == 0)
    }

    /// Whether it is row-major from the buffer's first element on.
    pub fn is_whole(&self) -> bool {
        self.offset == 0 && self.is_contiguous()
    }

    /// The view with its axes in another order: axis i is `axes[i]` of this one.
    pub fn permute(&self, axes: &[usize]) -> View {
        let pick = |of: &Dims| axes.iter().map(|&axis| of[axis].clone()).collect();
        View::new(self.offset.clone(), pick(&self.dims), pick(&self.strides))
    }

    /// The view repeated to `dims`, which it is known to broadcast to.
    pub fn broadcast_to(&self, dims: &[Dim]) -> View {
        let new_axes = dims.len().saturating_sub(self.dims.len());
        let stride = |axis: usize| match axis.checked_sub(new_axes) {
            Some(own) if self.dims[own] == dims[axis] => self.strides[own].clone(),
            _ => Dim::Static(0),
        };
        View::new(self.offset.clone(), dims.into(), (0..dims.len()).map(stride).collect())
    }

    /// A part of the view, with the sizes `dims`.
    pub fn slice(&self, axes: &[SliceAxis], dims: &[Dim]) -> View {
        let (mut offset, mut strides) = (self.offset.clone(), self.strides.clone());
        for (axis, stride) in axes.iter().zip(&mut strides) {
            offset = offset + &axis.start * &*stride;
            *stride = &*stride * axis.step;
        }
        View::new(offset, dims.into(), strides)
    }

    /// Windows along an axis of the view: `dims` are all sizes, with that of windows behind their number.
    pub fn windows(&self, window: &Window, dims: &[Dim]) -> View {
        let mut strides = self.strides.clone();
        strides.insert(window.axis + 1, &strides[window.axis] * window.dilation);
        strides[window.axis] = &strides[window.axis] * window.step;
        View::new(self.offset.clone(), dims.into(), strides)
    }

    /// The part with the sizes `dims` that begins at `start` along an axis, and at 0 along the others.
    pub fn part(&self, axis: usize, start: &Dim, dims: &[Dim]) -> View {
        let offset = &self.offset + start * &self.strides[axis];
        View::new(offset, dims.into(), self.strides.clone())
    }

    /// Whether two views are of the same sizes and elements: strides of axes with one element do not count.
    pub fn is_same(&self, other: &View) -> bool {
        let strides = self.strides.iter().zip(&other.strides).zip(&self.dims);
        self.offset == other.offset && self.dims == other.dims && { strides }.all(|((a, b), dim)| *dim == 1 || a == b)
    }

    /// The same sizes under other names: those that a `rebind` asserts.
    pub fn renamed(&self, dims: &[Dim]) -> View {
        if self.is_contiguous() {
            return View::contiguous_from(&self.offset, dims);
        }
        View::new(self.offset.clone(), dims.into(), self.strides.clone())
    }

    /// The same elements in the same order under other sizes, where strides can say that for every size.
    pub fn reshape(&self, dims: &[Dim]) -> Option<View> {
        if self.is_contiguous() {
            return Some(View::contiguous_from(&self.offset, dims));
        }
        // Runs of axes that are walked without a jump: the number of elements of each, and its stride.
        let mut runs: SmallVec<[(Dim, Dim); 4]> = SmallVec::new();
        for (dim, stride) in self.dims.iter().zip(&self.strides).filter(|(dim, _)| **dim != 1) {
            match runs.last_mut() {
                Some((elements, inner)) if *inner == stride * dim => {
                    *elements = &*elements * dim;
                    *inner = stride.clone();
                }
                _ => runs.push((dim.clone(), stride.clone())),
            }
        }
        // Each run must be a product of neighbouring new axes.
        let mut strides = Dims::from_elem(ONE, dims.len());
        let mut next = 0;
        for (elements, inner) in runs {
            let first = next;
            let mut covered = ONE;
            while covered != elements {
                covered = covered * dims.get(next)?;
                next += 1;
            }
            let mut stride = inner;
            for axis in (first..next).rev() {
                strides[axis] = stride.clone();
                stride = stride * &dims[axis];
            }
        }
        let rest_is_one = dims[next..].iter().all(|dim| *dim == 1);
        rest_is_one.then(|| View::new(self.offset.clone(), dims.into(), strides))
    }

    /// The axes in the order that a row kernel takes: `axis` last.
    pub fn rows_order(rank: usize, axis: usize) -> SmallVec<[usize; 4]> {
        (0..rank).filter(|&other| other != axis).chain([axis]).collect()
    }

    /// The view as a matrix whose rows lie along `axis`, where strides can say that.
    pub fn rows(&self, axis: usize) -> Option<View> {
        let ordered = self.permute(&View::rows_order(self.dims.len(), axis));
        let (row, others) = ordered.dims.split_last()?;
        let matrix = [product(others), row.clone()];
        ordered.reshape(&matrix)
    }

    /// The same with the last two axes exchanged; a view of at least two.
    pub fn t(&self) -> View {
        let n = self.dims.len();
        let mut order: SmallVec<[usize; 4]> = (0..n).collect();
        order.swap(n - 2, n - 1);
        self.permute(&order)
    }

    /// The view with a last stride of 1, which tile programs read at full speed, if it has that.
    pub fn with_unit_rows(mut self) -> Option<View> {
        let (Some(dim), Some(stride)) = (self.dims.last(), self.strides.last()) else { return Some(self) };
        if *stride != 1 {
            if *dim != 1 && !self.is_empty() {
                return None;
            }
            Arc::make_mut(&mut self.0).strides.last_mut().into_iter().for_each(|stride| *stride = ONE);
        }
        Some(self)
    }
}

impl fmt::Display for View {
    /// `[batch, 4]`, and what is not row-major from the start.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |dims: &Dims| dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "[{}]", list(&self.dims))?;
        if !self.is_contiguous() {
            write!(f, " strides [{}]", list(&self.strides))?;
        }
        if self.offset != 0 {
            write!(f, " from {}", self.offset)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims<const N: usize>(sizes: [&str; N]) -> Dims {
        sizes.iter().map(|text| text.parse::<i64>().map_or_else(|_| Dim::from(*text), Dim::from)).collect()
    }

    #[test]
    fn reshapes_that_strides_can_say() {
        let x = View::contiguous(&dims(["n", "4", "6"]));
        assert_eq!(x.reshape(&dims(["n", "2", "12"])).map(|v| v.to_string()).as_deref(), Some("[n, 2, 12]"));
        let transposed = x.permute(&[1, 0, 2]);
        assert_eq!(transposed.to_string(), "[4, n, 6] strides [6, 24, 1]");
        assert_eq!(transposed.reshape(&dims(["24", "n"])), None);
        let split = transposed.reshape(&dims(["2", "1", "2", "n", "3", "2", "1"])).unwrap();
        assert_eq!(split.strides, dims(["12", "12", "6", "24", "2", "1", "1"]));
        // A broadcast axis splits and merges with others that repeat.
        let repeated = View::contiguous(&dims(["1", "6"])).broadcast_to(&dims(["2", "n", "6"]));
        assert_eq!(repeated.reshape(&[Dim::from("n") * 2, Dim::from(6)]).unwrap().strides, dims(["0", "1"]));
        assert_eq!(repeated.reshape(&[Dim::from("n") * 12]), None);
    }

    #[test]
    fn views_without_elements_are_contiguous() {
        let x = View::contiguous(&dims(["0", "n", "3"])).permute(&[2, 1, 0]);
        assert!(x.is_contiguous());
        assert!(x.reshape(&dims(["0", "7"])).is_some());
    }

    #[test]
    fn rows_along_an_axis() {
        let x = View::contiguous(&dims(["a", "b", "c"]));
        assert_eq!(x.rows(2).unwrap().to_string(), "[a * b, c]");
        assert_eq!(x.rows(1), None);
        assert_eq!(x.rows(0).unwrap().to_string(), "[b * c, a] strides [1, b * c]");
        assert_eq!(x.rows(0).unwrap().with_unit_rows(), None);
        // A reduced axis: its result is written in place, whichever axis it is.
        let reduced = View::contiguous(&dims(["a", "1", "c"])).rows(1).unwrap().with_unit_rows().unwrap();
        assert_eq!(reduced.strides, dims(["1", "1"]));
        assert_eq!(View::contiguous(&dims(["n"])).rows(0).unwrap().dims, dims(["1", "n"]));
    }

    #[test]
    fn windows_overlap() {
        let x = View::contiguous(&dims(["n", "8", "3"]));
        let windows = x.windows(&Window { axis: 1, step: 2, dilation: 1 }, &dims(["n", "3", "4", "3"]));
        assert_eq!(windows.to_string(), "[n, 3, 4, 3] strides [24, 6, 3, 1]");
        // The elements of a window are neighbours, and so one axis; windows share them, and are not.
        assert_eq!(windows.reshape(&dims(["n", "3", "12"])).unwrap().strides, dims(["24", "6", "1"]));
        assert_eq!(windows.reshape(&dims(["n", "12", "3"])), None);
        let apart = x.windows(&Window { axis: 1, step: 1, dilation: 3 }, &dims(["n", "2", "3", "3"]));
        assert_eq!(
            (apart.to_string(), apart.reshape(&dims(["n", "2", "9"]))),
            ("[n, 2, 3, 3] strides [24, 3, 9, 1]".into(), None)
        );
    }

    #[test]
    fn slices_move_the_offset() {
        let axes = [SliceAxis { start: Dim::from("n") - 1, step: -1 }, SliceAxis { start: Dim::from(1), step: 2 }];
        let part = View::contiguous(&dims(["n", "6"])).slice(&axes, &dims(["n", "3"]));
        assert_eq!(part.to_string(), "[n, 3] strides [-6, 2] from n * 6 - 5");
    }
}
