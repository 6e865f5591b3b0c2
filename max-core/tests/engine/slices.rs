//! Parts of symbolic axes: their sizes are expressions, and what cannot be known is checked at execution.

use crate::kernels::*;
use max::driver::{DeviceRef, SliceIndex, Tensor};
use max::dtype::DType;
use max::engine::EngineError;
use max::graph::{Dim, DimSlice, Graph, Shape, TensorType, ops};

/// What a model takes of `0, 1, … n - 1`.
fn part(index: &DimSlice, n: usize) -> Result<Tensor, EngineError> {
    let graph = Graph::build("g", [f32s(("n",))], |_, inputs| ops::relu(inputs[0].tensor()?.slice_tensor([index])?));
    Ok(load(&graph.unwrap()).execute(&count(&[n]))?.remove(0))
}

#[test]
fn parts_of_symbolic_axes_are_those_of_tensors() {
    let bounds = [None, Some(0), Some(1), Some(3), Some(-1), Some(-2), Some(-4)];
    for n in 0..6usize {
        for (start, stop) in bounds.iter().flat_map(|start| bounds.map(|stop| (*start, stop))) {
            for step in [1isize, 2, 3, -1, -2] {
                let index = SliceIndex::Range { start, stop, step };
                let at = |bound: isize| if bound < 0 { bound + n as isize } else { bound };
                let (first, last) = if step > 0 { (0, n as isize) } else { (n as isize - 1, -1) };
                let (first, last) = (start.map_or(first, at), stop.map_or(last, at));
                let (low, high) = if step > 0 { (0, n as isize) } else { (-1, n as isize - 1) };
                let inside = [first, last].iter().all(|end| (low..=high).contains(end));
                let forwards = (last - first) * step.signum() >= 0;
                match part(&index.into(), n) {
                    Ok(part) => {
                        assert_eq!(values(&part), values(&count(&[n]).slice(&[index]).unwrap()), "{n} {index:?}")
                    }
                    Err(error) => assert!(!(inside && forwards), "{n} {index:?}: {error}"),
                }
            }
        }
    }
}

#[test]
fn bounds_outside_of_the_axis_are_errors_at_the_line_of_the_slice() {
    let error = |index: DimSlice, n| part(&index, n).unwrap_err().to_string();
    let text = error((-1..).into(), 0);
    assert!(text.contains("`slice` at ") && text.contains("slices.rs:"), "{text}");
    assert!(text.contains("it takes 1 elements from -1 by steps of 1 of axis 0, which has 0"), "{text}");
    let text = error((1..).into(), 0);
    assert!(text.contains("its range starts at 1 and ends 1 steps of 1 before that, of axis 0, which has 0"), "{text}");
    let text = error((..4).into(), 3);
    assert!(text.contains("it takes 4 elements from 0 by steps of 1 of axis 0, which has 3"), "{text}");
    let n = Dim::from("n");
    assert!(error(DimSlice::range(&n * 2, &n + 3), 3).contains("it takes 0 elements from 6"));
}

#[test]
fn a_cache_is_cut_at_a_dim() {
    let buffer = f32_buffer((4, 2));
    let graph = Graph::build("g", (buffer, f32s(("seq", 2))), |_, inputs| {
        let (cache, x) = (inputs[0].buffer()?, inputs[1].tensor()?);
        let seq = x.shape()[0].clone();
        let before = cache.load()?.slice_tensor([..seq.clone()])?;
        let rest = cache.load()?.slice_tensor([seq.clone()..])?;
        cache.store(ops::concat([x, &rest], 0)?.rebind((4, 2), "")?)?;
        Ok([ops::add(&before, x)?, cache.load()?.slice_tensor([seq - 1])?])
    });
    let model = load(&graph.unwrap());
    for seq in 1..5 {
        let mut cache = Tensor::full(0.5f32, [4, 2]).unwrap();
        let outputs = model.execute((&mut cache, &count(&[seq, 2]))).unwrap();
        let x = values(&count(&[seq, 2]));
        assert_eq!(values(&outputs[0]), x.iter().map(|v| v + 0.5).collect::<Vec<_>>());
        assert_eq!(values(&outputs[1]), x[2 * seq - 2..]);
        assert_eq!(values(&cache), [&x[..], &[0.5; 8][2 * seq..]].concat());
    }
    let mut cache = Tensor::full(0.5f32, [4, 2]).unwrap();
    let error = model.execute((&mut cache, &count(&[5, 2]))).unwrap_err().to_string();
    assert!(error.contains("it takes 5 elements from 0 by steps of 1 of axis 0, which has 4"), "{error}");
    assert_eq!(values(&cache), [0.5; 8], "no buffer is changed");
}

#[test]
fn parts_of_buffers_are_overwritten() {
    let all = || SliceIndex::from(..);
    let indices: [(&[SliceIndex], &[i64]); 9] = [
        (&[], &[4, 3, 5]),
        (&[SliceIndex::from(1..3)], &[2, 3, 5]),
        (&[SliceIndex::Index(-1)], &[3, 5]),
        (&[SliceIndex::Ellipsis, SliceIndex::from(..2)], &[4, 3, 2]),
        (&[all(), SliceIndex::Range { start: None, stop: None, step: -1 }], &[4, 3, 5]),
        (&[all(), SliceIndex::Index(1), SliceIndex::Range { start: Some(4), stop: Some(-6), step: -2 }], &[4, 3]),
        (&[SliceIndex::NewAxis, SliceIndex::Range { start: Some(1), stop: None, step: 2 }], &[1, 2, 3, 5]),
        (&[SliceIndex::Index(0), SliceIndex::Index(2), SliceIndex::Index(3)], &[]),
        (&[SliceIndex::from(2..2)], &[0, 3, 5]),
    ];
    for (indices, shape) in indices {
        let part: Shape = shape.iter().map(|dim| Dim::Static(*dim)).collect();
        let graph = Graph::build("g", (f32_buffer((4, 3, 5)), f32s(part)), |_, inputs| {
            inputs[0].buffer()?.store_slice(inputs[1].tensor()?, indices)
        });
        let mut buffer = Tensor::full(-1.0f32, [4, 3, 5]).unwrap();
        let x = count(&shape.iter().map(|dim| *dim as usize).collect::<Vec<_>>());
        load(&graph.unwrap()).execute((&mut buffer, &x)).unwrap();
        assert_eq!(values(&buffer.slice(indices).unwrap()), values(&x), "{indices:?}");
        let rest = values(&buffer).iter().filter(|v| **v == -1.0).count();
        assert_eq!(rest, 60 - values(&x).len(), "{indices:?}");
    }
}

#[test]
fn tokens_are_put_behind_those_of_a_cache() {
    let [past, new] = ["past", "new"].map(Dim::from);
    let graph = Graph::build("g", (f32_buffer((5, 2)), f32s(("past", 1)), f32s(("new", 2))), |_, inputs| {
        let cache = inputs[0].buffer()?;
        cache.store_slice(inputs[2].tensor()?, [DimSlice::range(past.clone(), &past + &new)])?;
        // What is loaded is what the cache was then, and may be stored where it overlaps.
        let all = cache.load()?;
        cache.store_slice(all.slice_tensor([..4])?, [1..])?;
        Ok([all, inputs[1].tensor()?.clone()])
    });
    let model = load(&graph.unwrap());
    let execute = |past: usize, new: usize| {
        let mut cache = Tensor::full(-1.0f32, [5, 2]).unwrap();
        let outputs = model.execute((&mut cache, &count(&[past, 1]), &count(&[new, 2])));
        (outputs.map(|outputs| values(&outputs[0])), values(&cache))
    };
    for (past, new) in [(0, 5), (1, 2), (4, 1), (3, 0), (5, 0)] {
        let (outputs, cache) = execute(past, new);
        let stored = [vec![-1.0; 2 * past], values(&count(&[new, 2])), vec![-1.0; 10 - 2 * (past + new)]].concat();
        assert_eq!(outputs.unwrap(), stored, "{new} behind {past}");
        assert_eq!(cache, [&stored[..2], &stored[..8]].concat(), "{new} behind {past}");
    }
    let (outputs, cache) = execute(3, 3);
    let text = outputs.unwrap_err().to_string();
    assert!(text.contains("`buffer_store_slice` at ") && text.contains("slices.rs:"), "{text}");
    assert!(text.contains("it takes 3 elements from 3 by steps of 1 of axis 0, which has 5"), "{text}");
    assert_eq!(cache, [-1.0; 10], "no buffer is changed");
}

#[test]
fn parts_of_constants_at_a_dim_are_not_computed_at_load() {
    let graph = Graph::build("g", [f32s(("n",))], |graph, inputs| {
        let table = ops::constant(graph, [1.0, 2.0, 3.0, 4.0], DType::F32, DeviceRef::CPU)?;
        let last = ops::relu(table.slice_tensor([Dim::from("n") - 1])?)?;
        let ones = ops::constant(graph, [1.0], DType::F32, DeviceRef::CPU)?;
        Ok([last, ops::sum(ones.broadcast_to(("n",))?, 0)?, inputs[0].tensor()?.clone()])
    });
    let model = load(&graph.unwrap());
    for n in 1..5 {
        let outputs = model.execute(&count(&[n])).unwrap();
        assert_eq!([values(&outputs[0]), values(&outputs[1])], [[n as f32], [n as f32]]);
    }
    assert!(model.execute(&count(&[5])).is_err());
}

#[test]
fn static_axes_are_clamped_still() {
    let ty = TensorType::new(DType::F32, (3,), DeviceRef::CPU);
    let graph =
        Graph::build("g", [ty], |_, inputs| inputs[0].tensor()?.slice_tensor([SliceIndex::from(-9..9)])).unwrap();
    assert_eq!(values(&load(&graph).execute(&count(&[3])).unwrap()[0]), [0.0, 1.0, 2.0]);
}
