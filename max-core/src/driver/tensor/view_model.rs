//! Property tests: chains of views against a model that lists every element.

use super::Tensor;
use crate::driver::{DriverError, SliceIndex};
use proptest::prelude::*;

fn counting(shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>() as i64;
    Tensor::arange(0, count, 1).unwrap().reshape(shape).unwrap()
}

/// All elements in row-major order.
#[derive(Clone, Debug)]
struct Model {
    shape: Vec<usize>,
    values: Vec<i64>,
}

impl Model {
    /// The model whose element at `index` is the element of `self` at `source(index)`.
    fn gather(&self, shape: Vec<usize>, source: impl Fn(&[usize]) -> Vec<usize>) -> Model {
        let value = |flat: usize| {
            let mut rest = flat;
            let mut index = vec![0; shape.len()];
            for axis in (0..shape.len()).rev() {
                index[axis] = rest % shape[axis];
                rest /= shape[axis];
            }
            let place = source(&index).iter().zip(&self.shape).fold(0, |flat, (&i, &size)| flat * size + i);
            self.values[place]
        };
        let values = (0..shape.iter().product()).map(value).collect();
        Model { shape, values }
    }

    /// Slicing by listing the positions that each index picks; `None` where it is an error.
    fn slice(&self, indices: &[SliceIndex]) -> Option<Model> {
        let taken = indices.iter().filter(|index| index.takes_axis()).count();
        let rest = vec![SliceIndex::ALL; self.shape.len().checked_sub(taken)?];
        let mut full = indices.to_vec();
        match indices.iter().position(|index| *index == SliceIndex::Ellipsis) {
            Some(at) => drop(full.splice(at..=at, rest)),
            None => full.extend(rest),
        }
        // For each axis of the source: the positions, and the axis of the result that runs over them.
        let mut picks = Vec::<(Vec<usize>, Option<usize>)>::new();
        let mut shape = Vec::new();
        for index in full {
            match index {
                SliceIndex::NewAxis => shape.push(1),
                SliceIndex::Index(i) => {
                    let size = self.shape[picks.len()] as isize;
                    let i = if i < 0 { i + size } else { i };
                    if i < 0 || i >= size {
                        return None;
                    }
                    picks.push((vec![i as usize], None));
                }
                SliceIndex::Range { start, stop, step } => {
                    let positions = python_range(start, stop, step, self.shape[picks.len()] as isize)?;
                    shape.push(positions.len());
                    picks.push((positions, Some(shape.len() - 1)));
                }
                SliceIndex::Ellipsis => unreachable!("replaced above"),
            }
        }
        Some(self.gather(shape, |index| {
            picks.iter().map(|(positions, axis)| positions[axis.map_or(0, |axis| index[axis])]).collect()
        }))
    }
}

/// The positions that Python's `range(*slice(start, stop, step).indices(size))` has.
fn python_range(start: Option<isize>, stop: Option<isize>, step: isize, size: isize) -> Option<Vec<usize>> {
    let from_front = |i: isize| if i < 0 { i + size } else { i };
    let (mut i, stop) = match step {
        0 => return None,
        1.. => (start.map_or(0, from_front).max(0), stop.map_or(size, from_front).min(size)),
        _ => (start.map_or(size - 1, from_front).min(size - 1), stop.map_or(-1, |i| from_front(i).max(-1))),
    };
    let mut positions = Vec::new();
    while if step > 0 { i < stop } else { i > stop } {
        positions.push(i as usize);
        i += step;
    }
    Some(positions)
}

/// One view, with arguments that may or may not fit.
#[derive(Clone, Debug)]
enum View {
    Slice(Vec<SliceIndex>),
    Transpose(isize, isize),
    Narrow(isize, usize, usize),
    Select(isize, isize),
    /// A new axis of this size in front.
    Broadcast(usize),
    /// To one axis, or with an axis of size 1 before each.
    Reshape(bool),
}

fn slice_index() -> impl Strategy<Value = SliceIndex> {
    let bound = || prop::option::of(-7..8isize);
    prop_oneof![
        3 => (bound(), bound(), prop_oneof![Just(1), -3..4isize])
            .prop_map(|(start, stop, step)| SliceIndex::Range { start, stop, step }),
        2 => (-5..5isize).prop_map(SliceIndex::Index),
        1 => Just(SliceIndex::NewAxis),
    ]
}

fn view() -> impl Strategy<Value = View> {
    let slice = (prop::collection::vec(slice_index(), 0..4), prop::option::of(0..4usize)).prop_map(
        |(mut indices, ellipsis)| {
            if let Some(at) = ellipsis {
                indices.insert(at.min(indices.len()), SliceIndex::Ellipsis);
            }
            View::Slice(indices)
        },
    );
    prop_oneof![
        4 => slice,
        1 => (-3..3isize, -3..3isize).prop_map(|(a, b)| View::Transpose(a, b)),
        1 => (-3..3isize, 0..5usize, 0..5usize).prop_map(|(a, s, l)| View::Narrow(a, s, l)),
        1 => (-3..3isize, -5..5isize).prop_map(|(a, i)| View::Select(a, i)),
        1 => (0..3usize).prop_map(View::Broadcast),
        1 => any::<bool>().prop_map(View::Reshape),
    ]
}

impl View {
    /// `None` where it is an error.
    fn of_model(&self, model: &Model) -> Option<Model> {
        let rank = model.shape.len() as isize;
        let axis = |axis: isize| {
            let axis = if axis < 0 { axis + rank } else { axis };
            (0..rank).contains(&axis).then_some(axis as usize)
        };
        match self {
            View::Slice(indices) => model.slice(indices),
            &View::Transpose(a, b) => {
                let (a, b) = (axis(a)?, axis(b)?);
                let swap = |index: &[usize]| {
                    let mut index = index.to_vec();
                    index.swap(a, b);
                    index
                };
                Some(model.gather(swap(&model.shape), swap))
            }
            &View::Narrow(a, start, length) => {
                let a = axis(a)?;
                let mut shape = model.shape.clone();
                if start + length > shape[a] {
                    return None;
                }
                shape[a] = length;
                Some(model.gather(shape, |index| {
                    let mut index = index.to_vec();
                    index[a] += start;
                    index
                }))
            }
            &View::Select(a, i) => {
                let mut indices = vec![SliceIndex::ALL; axis(a)?];
                indices.push(SliceIndex::Index(i));
                model.slice(&indices)
            }
            &View::Broadcast(size) => {
                let shape = [&[size], &model.shape[..]].concat();
                Some(model.gather(shape, |index| index[1..].to_vec()))
            }
            &View::Reshape(flat) => {
                let spread = || model.shape.iter().flat_map(|&size| [1, size]).collect();
                let shape = if flat { vec![model.values.len()] } else { spread() };
                Some(Model { shape, values: model.values.clone() })
            }
        }
    }

    fn of_tensor(&self, tensor: &Tensor, model: &Model) -> Result<Tensor, DriverError> {
        match self {
            View::Slice(indices) => tensor.slice(indices),
            &View::Transpose(a, b) => tensor.transpose(a, b),
            &View::Narrow(a, start, length) => tensor.narrow(a, start, length),
            &View::Select(a, i) => tensor.select(a, i),
            &View::Broadcast(size) => tensor.broadcast_to([&[size], tensor.shape()].concat()),
            View::Reshape(_) => {
                let shape = self.of_model(model).unwrap().shape;
                match tensor.reshape(&shape) {
                    Err(DriverError::NotContiguous { .. }) => tensor.contiguous()?.reshape(&shape),
                    other => other,
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn views_agree_with_the_model(
        shape in prop::collection::vec(0..5usize, 0..4),
        views in prop::collection::vec(view(), 0..6),
    ) {
        let mut tensor = counting(&shape);
        let mut model = Model { values: (0..tensor.num_elements() as i64).collect(), shape };
        for view in views {
            let expected = view.of_model(&model);
            let result = view.of_tensor(&tensor, &model);
            prop_assert_eq!(result.is_ok(), expected.is_some(), "{:?} {:?}", view, result);
            let (Ok(result), Some(expected)) = (result, expected) else { continue };
            (tensor, model) = (result, expected);
            prop_assert_eq!(tensor.shape(), &model.shape[..]);
            prop_assert_eq!(tensor.num_elements(), model.values.len());
            prop_assert_eq!(&tensor.to_vec::<i64>().unwrap(), &model.values);
            prop_assert_eq!(&tensor.iter::<i64>().unwrap().collect::<Vec<_>>(), &model.values);
            let contiguous = tensor.contiguous().unwrap();
            prop_assert!(contiguous.is_contiguous());
            prop_assert_eq!(contiguous.as_slice::<i64>().unwrap(), &model.values[..]);
        }
    }

    /// A tensor whose elements are equally spaced can be flattened without a copy, and only such a tensor can.
    #[test]
    fn reshape_refuses_only_when_it_must(
        shape in prop::collection::vec(1..4usize, 1..4),
        step in 1..3isize,
        (a, b) in (0..3usize, 0..3usize),
    ) {
        let rank = shape.len();
        let tensor = counting(&shape).transpose((a % rank) as isize, (b % rank) as isize).unwrap();
        let tensor = tensor.slice(&[SliceIndex::ALL.step_by(step)]).unwrap();
        let values = tensor.to_vec::<i64>().unwrap();
        let regular = values.windows(2).all(|pair| pair[1] - pair[0] == values[1] - values[0]);
        match tensor.reshape([values.len()]) {
            Ok(view) => {
                prop_assert!(regular);
                prop_assert_eq!(view.to_vec::<i64>().unwrap(), values);
            }
            Err(DriverError::NotContiguous { .. }) => prop_assert!(!regular),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
