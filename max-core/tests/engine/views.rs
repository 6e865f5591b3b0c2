//! Random chains of views, against the driver's tensors, whose views are tested on their own.

use crate::kernels::*;
use max::driver::{DeviceRef, SliceIndex, Tensor};
use max::dtype::DType;
use max::engine::{EngineError, MemoryOf};
use max::graph::{Dim, Graph, GraphError, TensorType, TensorValue, ops};
use proptest::prelude::*;

/// One view; what does not fit the shape at hand is made to.
#[derive(Clone, Debug)]
enum Step {
    Swap(usize, usize),
    Slice { axis: usize, start: usize, stop: usize, step: isize },
    Flatten(usize),
    Split(usize),
    Unsqueeze(usize),
    Repeat(usize),
    Relu,
    Concat(usize),
}

fn steps() -> impl Strategy<Value = Step> {
    let n = 0usize..5;
    prop_oneof![
        (n.clone(), n.clone()).prop_map(|(a, b)| Step::Swap(a, b)),
        (n.clone(), n.clone(), n.clone(), prop_oneof![Just(1isize), Just(2), Just(-1)])
            .prop_map(|(axis, start, stop, step)| Step::Slice { axis, start, stop, step }),
        n.clone().prop_map(Step::Flatten),
        n.clone().prop_map(Step::Split),
        n.clone().prop_map(Step::Unsqueeze),
        (1usize..3).prop_map(Step::Repeat),
        Just(Step::Relu),
        n.prop_map(Step::Concat),
    ]
}

/// The step on a driver tensor, and on a value with the same shape.
fn apply(step: &Step, x: &Tensor, value: &TensorValue) -> Option<(Tensor, Result<TensorValue, GraphError>)> {
    let shape = x.shape().to_vec();
    let rank = shape.len();
    let resized = |shape: Vec<usize>| {
        let y = x.contiguous().unwrap().reshape(&shape).unwrap();
        (y, value.reshape(shape.as_slice()))
    };
    if rank == 0 {
        return matches!(step, Step::Unsqueeze(_)).then(|| resized(vec![1]));
    }
    Some(match *step {
        Step::Swap(a, b) => {
            let (a, b) = ((a % rank) as isize, (b % rank) as isize);
            (x.transpose(a, b).unwrap(), value.transpose_axes(a, b))
        }
        Step::Slice { axis, start, stop, step } => {
            let axis = axis % rank;
            let size = shape[axis];
            let (start, stop) = (start.min(size), stop.min(size));
            let (start, stop) = if step > 0 { (Some(start as isize), Some(stop as isize)) } else { (None, None) };
            let mut indices = vec![SliceIndex::ALL; rank];
            indices[axis] = SliceIndex::Range { start, stop, step };
            (x.slice(&indices).unwrap(), value.slice_tensor(&indices))
        }
        Step::Flatten(axis) => {
            let axis = axis % rank;
            if axis + 1 == rank {
                return None;
            }
            let mut merged = shape.clone();
            merged[axis] *= merged.remove(axis + 1);
            resized(merged)
        }
        Step::Split(axis) => {
            let axis = axis % rank;
            if !shape[axis].is_multiple_of(2) || rank > 4 {
                return None;
            }
            let mut split = shape.clone();
            split[axis] /= 2;
            split.insert(axis + 1, 2);
            resized(split)
        }
        Step::Unsqueeze(axis) if rank <= 4 => {
            let mut wider = shape.clone();
            wider.insert(axis % (rank + 1), 1);
            resized(wider)
        }
        Step::Repeat(count) if rank <= 4 && x.num_elements() < 500 => {
            let wider: Vec<usize> = [count].into_iter().chain(shape).collect();
            (x.broadcast_to(&wider).unwrap(), value.broadcast_to(wider.as_slice()))
        }
        Step::Unsqueeze(_) | Step::Repeat(_) => return None,
        Step::Relu => {
            let positive: Vec<f32> = values(x).iter().map(|v| v.max(0.0)).collect();
            (Tensor::from_slice(&positive, &shape).unwrap(), ops::relu(value))
        }
        Step::Concat(axis) => {
            let axis = axis % rank;
            if x.num_elements() > 500 {
                return None;
            }
            let inner: usize = shape[axis..].iter().product();
            let all = values(x);
            let twice: Vec<f32> = match inner {
                0 => Vec::new(),
                _ => all.chunks(inner).flat_map(|rows| [rows, rows].concat()).collect(),
            };
            let mut longer = shape.clone();
            longer[axis] *= 2;
            (Tensor::from_slice(&twice, &longer).unwrap(), ops::concat([value, value], axis as i64))
        }
    })
}

trait TransposeAxes {
    fn transpose_axes(&self, a: isize, b: isize) -> Result<TensorValue, GraphError>;
}

impl TransposeAxes for TensorValue {
    fn transpose_axes(&self, a: isize, b: isize) -> Result<TensorValue, GraphError> {
        self.transpose(a as i64, b as i64)
    }
}

/// Views of a tensor of shape [4, 3, 2], and one without elements.
fn strided(x: &Tensor) -> Vec<Tensor> {
    let backwards = SliceIndex::ALL.step_by(-1);
    let views = [
        x.permute(&[2, 0, 1]),
        x.slice(&[backwards, SliceIndex::ALL, backwards]),
        x.slice(&[(1..3).into(), SliceIndex::Index(-1), SliceIndex::ALL.step_by(2)]),
        x.select(2, 1).unwrap().broadcast_to([2, 4, 3]),
        x.transpose(0, 2).unwrap().narrow(1, 1, 0),
    ];
    views.map(Result::unwrap).into()
}

#[test]
fn inputs_of_all_dtypes_may_be_strided() {
    for dtype in DType::ALL {
        let size = 24 * dtype.size_in_bytes();
        // Of bytes that are bools too.
        let bytes: Vec<u8> = (0..size).map(|i| (i * i / 3 % 2) as u8).collect();
        for view in strided(&Tensor::from_slice(&bytes, [size]).unwrap().view(dtype, Some(&[4, 3, 2])).unwrap()) {
            let ty = TensorType::new(dtype, view.shape(), DeviceRef::CPU);
            let graph = Graph::build("same", [ty], |_, inputs| Ok(inputs[0].clone())).unwrap();
            let result = load(&graph).execute(&view).unwrap().remove(0);
            let bytes = |x: &Tensor| x.contiguous().unwrap().view(DType::U8, None).unwrap().to_vec::<u8>().unwrap();
            assert!(result.is_contiguous(), "{dtype}");
            assert_eq!((result.shape(), bytes(&result)), (view.shape(), bytes(&view)), "{dtype}");
        }
    }
}

#[test]
fn inputs_may_be_strided_where_dims_are_symbols_and_others_are_buffers() {
    let graph = Graph::build("g", (f32_buffer(("n", "m")), f32s(("n", "m")), f32s(("n", 1))), |_, inputs| {
        inputs[0].buffer()?.store(inputs[1].tensor()?)?;
        ops::add(&inputs[1], &inputs[2])
    });
    let model = load(&graph.unwrap());
    let (x, y) =
        (count(&[2, 3]).transpose(0, 1).unwrap(), count(&[6, 1]).slice(&[SliceIndex::ALL.step_by(-2)]).unwrap());
    let mut buffer = count(&[3, 2]);
    let results = model.execute((&mut buffer, &x, &y)).unwrap();
    assert_eq!(values(&buffer), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(values(&results[0]), [5.0, 8.0, 4.0, 7.0, 3.0, 6.0]);
    // Passed as `&mut`, but only read: a view shares its memory, and need not be writable.
    let mut x = x;
    assert_eq!(values(&model.execute((&mut buffer, &mut x, &y)).unwrap()[0]), [5.0, 8.0, 4.0, 7.0, 3.0, 6.0]);
}

#[test]
fn a_view_too_large_to_copy_is_named() {
    let graph = Graph::build("g", [f32s(("n", "m"))], |_, inputs| ops::sum(&inputs[0], 1));
    let view = count(&[1, 1]).broadcast_to([1 << 30, 1 << 28]).unwrap();
    let error = load(&graph.unwrap()).execute(&view).unwrap_err();
    let EngineError::Memory { of: Some(of), .. } = &error else { panic!("{error}") };
    assert!(matches!(&**of, MemoryOf::InputCopy(input) if input.index == 0));
    let text = error.to_string();
    let named = "model `g`, a copy of input 0 (`input0`: float32[n, m]): out of memory on cpu:0";
    assert!(text.starts_with(named), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn chains_of_views_have_the_elements_of_tensors(
        shape in prop::collection::vec(0usize..5, 0..4),
        chain in prop::collection::vec(steps(), 0..8),
    ) {
        let mut x = count(&shape);
        let input = x.clone();
        let graph = Graph::new("views", [f32s(shape.as_slice())]);
        let mut value = graph.inputs()[0].tensor().unwrap().clone();
        for step in &chain {
            if let Some((tensor, result)) = apply(step, &x, &value) {
                x = tensor;
                value = result.unwrap();
                prop_assert_eq!(value.shape(), &x.shape().iter().map(|&n| Dim::from(n)).collect());
            }
        }
        // As it is, through a kernel that walks strides, and through one that does not.
        let mut outputs = vec![value.clone(), ops::relu(&value).unwrap()];
        if value.rank() > 0 {
            outputs.push(ops::sum(&value, -1).unwrap());
        }
        graph.output(outputs).unwrap();
        let results = load(&graph).execute(&input).unwrap();
        prop_assert_eq!(results[0].shape(), x.shape());
        prop_assert_eq!(values(&results[0]), values(&x));
        prop_assert_eq!(values(&results[1]), values(&x));
        if let Some(sums) = results.get(2) {
            let last = x.shape()[x.rank() - 1];
            let rows = x.num_elements().checked_div(last).unwrap_or(sums.num_elements());
            let all = values(&x);
            let expected = (0..rows).map(|row| all[row * last..][..last].iter().sum::<f32>());
            prop_assert_eq!(values(sums), expected.collect::<Vec<_>>());
        }
        // The view as an input.
        let graph = Graph::build("whole", [f32s(x.shape())], |_, inputs| ops::relu(&inputs[0])).unwrap();
        let results = load(&graph).execute(&x).unwrap();
        prop_assert!(results[0].is_contiguous() && results[0].shape() == x.shape());
        prop_assert_eq!(values(&results[0]), values(&x));
    }
}
