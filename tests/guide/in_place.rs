//! The code of `docs/guide/09-in-place.md`.

use max::prelude::*;

use crate::f32s;

/// The running mean of what was seen: moves `mean` toward `x`, ever less.
#[kernel(op = "guide_running_mean")]
fn running_mean(mean: &mut f32, x: f32, #[param] seen: i64) {
    *mean += (x - *mean) / (seen as f32 + 1.0);
}

/// Writes a row into a cache, at a position that is known when it runs.
#[kernel(op = "guide_append", grid(1))]
fn append<T: Any>(cache: &mut Buffer<T, 2>, row: In<T, 1>, position: In<i64, 1>) {
    let at = position.at(0);
    row.enumerate().for_each(|(v, column)| cache.scatter([at, column], v));
}

/// Moves each row of `mean` toward that of `x`, by a part of the way.
#[kernel(op = "guide_blend_rows")]
fn blend_rows<T: Float>(mean: &mut Buffer<T, 2>, x: In<T, 2>, part: In<T, 1>) {
    let row = program_id(0);
    let (own, part) = (mean.row(row), part.at(0));
    own.write(own.read().zip(x.row(row)).map(|(old, new)| old + (new - old) * part));
}

fn append_row(model: &Model, cache: &mut Tensor, row: &Tensor, position: &Tensor) -> max::Result<Tensor> {
    Ok(model.execute((cache, row, position))?.remove(0))
}

fn cache() -> max::Result<Model> {
    let cache = BufferType::new(DType::F32, (4, 2), DeviceRef::CPU);
    let row = TensorType::new(DType::F32, (2,), DeviceRef::CPU);
    let position = TensorType::new(DType::I64, (1,), DeviceRef::CPU);
    let graph = Graph::build("cache", (cache, row, position), |_, inputs| {
        ops::inplace_custom("guide_append", DeviceRef::CPU, inputs, (), ())?;
        // After the append: what it wrote is in the sum.
        ops::sum(inputs[0].buffer()?.load()?, 0)
    })?;
    Ok(InferenceSession::new().load(&graph)?)
}

#[test]
fn elements_are_updated() {
    let mean = BufferType::new(DType::F32, (2,), DeviceRef::CPU);
    let x = TensorType::new(DType::F32, (2,), DeviceRef::CPU);
    let graph = Graph::build("mean", (mean, x), |_, inputs| {
        ops::inplace_custom("guide_running_mean", DeviceRef::CPU, inputs, (), [("seen", 3)]).map(drop)
    });
    let model = InferenceSession::new().load(&graph.unwrap()).unwrap();
    let mut mean = f32s(&[1.0, 2.0]);
    model.execute((&mut mean, &f32s(&[5.0, 2.0]))).unwrap();
    assert_eq!(mean.as_slice::<f32>().unwrap(), [2.0, 2.0]);
}

#[test]
fn rows_of_a_buffer_are_read() {
    let mean = BufferType::new(DType::F32, (2, 3), DeviceRef::CPU);
    let x = TensorType::new(DType::F32, (2, 3), DeviceRef::CPU);
    let part = TensorType::new(DType::F32, (1,), DeviceRef::CPU);
    let graph = Graph::build("blend", (mean, x, part), |_, inputs| {
        ops::inplace_custom("guide_blend_rows", DeviceRef::CPU, inputs, (), ()).map(drop)
    });
    let graph = graph.unwrap();
    for session in [InferenceSession::new(), InferenceSession::new().reference(true)] {
        let mut mean = Tensor::from_slice(&[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3]).unwrap();
        let x = Tensor::full(8.0f32, [2, 3]).unwrap();
        session.load(&graph).unwrap().execute((&mut mean, &x, &f32s(&[0.5]))).unwrap();
        assert_eq!(mean.as_slice::<f32>().unwrap(), [4.0, 4.5, 5.0, 5.5, 6.0, 6.5]);
    }
}

#[test]
fn caches_grow() {
    let model = cache().unwrap();
    let mut cache = Tensor::zeros(DType::F32, [4, 2], &Device::cpu()).unwrap();
    for (position, sum) in [(2i64, [1.0, 2.0]), (0, [2.0, 4.0]), (9, [2.0, 4.0])] {
        let position = Tensor::from_slice(&[position], [1]).unwrap();
        let y = append_row(&model, &mut cache, &f32s(&[1.0, 2.0]), &position).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), sum);
    }
    assert_eq!(cache.as_slice::<f32>().unwrap(), [1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
}

#[test]
fn tensors_are_not_changed() {
    let ty = TensorType::new(DType::F32, (2,), DeviceRef::CPU);
    let graph = Graph::build("wrong", [&ty, &ty], |_, inputs| {
        ops::custom("guide_running_mean", DeviceRef::CPU, inputs, (), [("seen", 3)])
    });
    assert!(graph.unwrap_err().to_string().contains("inplace_custom"));
}
