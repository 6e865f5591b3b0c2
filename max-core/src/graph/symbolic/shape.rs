//! [`Shape`]: the dims of a tensor, and the broadcast rule.

use std::fmt;
use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use super::dim::{Bindings, Dim, DimError, SymbolicDim};

/// The dims of a tensor, outermost first. Rank 0 is a scalar.
///
/// Made from an array, a slice, a `Vec`, or a tuple of anything that is a [`Dim`]:
///
/// ```
/// # use max_core::graph::Shape;
/// let shape = Shape::from(("batch", 128));
/// assert_eq!(shape.to_string(), "[batch, 128]");
/// assert_eq!(shape.num_elements().to_string(), "batch * 128");
/// assert_eq!(Shape::from([2, 3]).static_dims(), Some(vec![2, 3]));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Shape(SmallVec<[Dim; 4]>);

impl Shape {
    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The dims as a slice.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// Whether every dim is static.
    pub fn is_static(&self) -> bool {
        self.0.iter().all(Dim::is_static)
    }

    /// The sizes, when all of them are static.
    pub fn static_dims(&self) -> Option<Vec<i64>> {
        self.0.iter().map(Dim::as_static).collect()
    }

    /// The product of all dims: 1 for rank 0.
    pub fn num_elements(&self) -> Dim {
        self.0.iter().fold(Dim::Static(1), |product, dim| product * dim)
    }

    /// The names that the shape depends on, each once, sorted.
    pub fn parameters(&self) -> Vec<SymbolicDim> {
        let mut names: Vec<_> = self.0.iter().flat_map(Dim::parameters).collect();
        names.sort_by(|a, b| a.name().cmp(b.name()));
        names.dedup();
        names
    }

    /// The axis that `axis` means: counted from the end when negative. `None` when it is out of range.
    pub fn axis(&self, axis: i64) -> Option<usize> {
        normalize_axis(axis, self.rank())
    }

    /// The sizes for the given symbol sizes.
    ///
    /// # Errors
    /// As [`Dim::eval`], for the first dim that has no value.
    pub fn eval(&self, bindings: &Bindings) -> Result<Vec<i64>, DimError> {
        self.0.iter().map(|dim| dim.eval(bindings)).collect()
    }

    /// The shape that both broadcast to: axes are aligned at the end; of two different dims one has to be 1.
    ///
    /// ```
    /// # use max_core::graph::Shape;
    /// let shape = Shape::from(("batch", 1, 8)).broadcast(&Shape::from([4, 1]));
    /// assert_eq!(shape, Some(Shape::from(("batch", 4, 8))));
    /// assert_eq!(Shape::from([2]).broadcast(&Shape::from([3])), None);
    /// ```
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let one = Dim::Static(1);
        let dim = |shape: &Shape, axis: usize| (axis + shape.rank()).checked_sub(rank).map(|i| shape.0[i].clone());
        let dims = (0..rank).map(|axis| {
            let a = dim(self, axis).unwrap_or(Dim::Static(1));
            let b = dim(other, axis).unwrap_or(Dim::Static(1));
            match (a == one, b == one) {
                _ if a == b => Some(a),
                (true, _) => Some(b),
                (_, true) => Some(a),
                (false, false) => None,
            }
        });
        dims.collect::<Option<SmallVec<_>>>().map(Shape)
    }

    /// Whether a tensor of this shape can be broadcast to `target`.
    pub(crate) fn broadcasts_to(&self, target: &Shape) -> bool {
        self.broadcast(target).as_ref() == Some(target)
    }
}

pub(in crate::graph) fn normalize_axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis.checked_add(rank)? } else { axis };
    (0..rank).contains(&axis).then_some(axis as usize)
}

impl Deref for Shape {
    type Target = [Dim];

    fn deref(&self) -> &[Dim] {
        &self.0
    }
}

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut [Dim] {
        &mut self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            write!(f, "{}{dim}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}

impl<D: Into<Dim>> FromIterator<D> for Shape {
    fn from_iter<I: IntoIterator<Item = D>>(dims: I) -> Self {
        Shape(dims.into_iter().map(Into::into).collect())
    }
}

impl<D: Into<Dim>, const N: usize> From<[D; N]> for Shape {
    fn from(dims: [D; N]) -> Self {
        dims.into_iter().collect()
    }
}

impl<D: Into<Dim>> From<Vec<D>> for Shape {
    fn from(dims: Vec<D>) -> Self {
        dims.into_iter().collect()
    }
}

impl<D: Into<Dim> + Clone> From<&[D]> for Shape {
    fn from(dims: &[D]) -> Self {
        dims.iter().cloned().collect()
    }
}

impl<D: Into<Dim> + Clone, const N: usize> From<&[D; N]> for Shape {
    fn from(dims: &[D; N]) -> Self {
        dims.iter().cloned().collect()
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl From<()> for Shape {
    /// The shape of a scalar.
    fn from((): ()) -> Self {
        Shape::default()
    }
}

macro_rules! shape_from_tuple {
    ($($name:ident)+) => {
        impl<$($name: Into<Dim>),+> From<($($name,)+)> for Shape {
            #[allow(non_snake_case, reason = "a variable is named after its type")]
            fn from(($($name,)+): ($($name,)+)) -> Self {
                Shape(SmallVec::from_iter([$($name.into()),+]))
            }
        }
    };
}
shape_from_tuple!(A);
shape_from_tuple!(A B);
shape_from_tuple!(A B C);
shape_from_tuple!(A B C D);
shape_from_tuple!(A B C D E);
shape_from_tuple!(A B C D E F);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_aligns_axes_at_the_end() {
        let scalar = Shape::from(());
        let cases = [
            (Shape::from([2, 3]), scalar.clone(), Some(Shape::from([2, 3]))),
            (Shape::from([3]), Shape::from([2, 3]), Some(Shape::from([2, 3]))),
            (Shape::from([0, 1]), Shape::from([1, 4]), Some(Shape::from([0, 4]))),
            (Shape::from(("n",)), Shape::from([1]), Some(Shape::from(("n",)))),
            (Shape::from(("n",)), Shape::from([4]), None),
            (Shape::from(("n",)), Shape::from(("m",)), None),
            (Shape::from([2, 3]), Shape::from([2]), None),
            (scalar.clone(), scalar.clone(), Some(scalar)),
        ];
        for (a, b, expected) in cases {
            assert_eq!(a.broadcast(&b), expected, "{a} with {b}");
            assert_eq!(b.broadcast(&a), expected, "{b} with {a}");
        }
    }

    #[test]
    fn a_shape_only_broadcasts_to_what_it_does_not_enlarge() {
        assert!(Shape::from([1, 3]).broadcasts_to(&Shape::from([2, 5, 3])));
        assert!(!Shape::from([2, 3]).broadcasts_to(&Shape::from([1, 3])));
        assert!(!Shape::from([2, 3]).broadcasts_to(&Shape::from([3])));
    }

    #[test]
    fn axes_count_from_either_end() {
        let shape = Shape::from([4, 5, 6]);
        assert_eq!(shape.axis(-1), Some(2));
        assert_eq!(shape.axis(0), Some(0));
        assert_eq!(shape.axis(3), None);
        assert_eq!(shape.axis(-4), None);
        assert_eq!(shape.axis(i64::MIN), None);
        assert_eq!(Shape::from(()).axis(0), None);
    }

    #[test]
    fn names_and_sizes() {
        let n = Dim::from("n");
        let shape = Shape::from([n.clone(), &n * 2 + Dim::from("a"), Dim::from(3)]);
        assert_eq!(shape.to_string(), "[n, a + n * 2, 3]");
        assert_eq!(shape.parameters().iter().map(SymbolicDim::name).collect::<Vec<_>>(), ["a", "n"]);
        assert_eq!(shape.eval(&Bindings::from([("n", 4), ("a", 1)])), Ok(vec![4, 9, 3]));
        assert_eq!(shape.static_dims(), None);
        assert_eq!(Shape::from(()).num_elements(), 1);
    }
}
