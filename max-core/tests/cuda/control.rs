//! Branches, loops, sizes and parameters that the host reads, on a GPU.

use crate::ops::*;
use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::EngineError;
use max::graph::{Dim, Graph, Parameters, TensorType, ops};
use max::kernel;

#[kernel(op = "greater", dtypes(T = [f32, i32]))]
fn greater<T: Number>(x: T, y: T) -> bool {
    x > y
}

/// How far into an image of `width` columns each element is.
#[kernel(op = "t_place", dtypes(T = [f32]))]
fn place<T: Number>(y: Out<T, 1>, x: In<T, 1>, #[param] width: i64) {
    let row = program_id(0);
    y.set(row, x.at(row) + (row / width) as T);
}

#[kernel(op = "t_by", dtypes(T = [f32]))]
fn by<T: Number>(x: T, #[param] by: i64) -> T {
    x * T::from_i64(by)
}

fn i64s(shape: impl Into<max::graph::Shape>, device: DeviceRef) -> TensorType {
    TensorType::new(DType::I64, shape, device)
}

gpu_test! {
    /// Doubles rows until their largest sum is over a limit; the predicate is computed on the GPU, and so is what a branch
    /// changes.
    fn loops_and_branches_run_on_a_gpu() {
        let types = (f32s(("n", 2), GPU).as_buffer(), f32s(("n", 2), GPU), f32s((1, 1), GPU));
        let graph = Graph::build("grow", types, |_, inputs| {
            let (buffer, limit) = (inputs[0].buffer()?, inputs[2].tensor()?);
            let results = ops::while_loop(
                &inputs[1],
                |v| ops::greater(limit, ops::sum(ops::sum(&v[0], 1)?, 0)?),
                |v| {
                    let large = ops::greater(ops::sum(ops::sum(&v[0], 1)?, 0)?, 10.0)?;
                    ops::cond(&large, (), || buffer.store(ops::add(buffer.load()?, 1.0)?), || Ok(()))?;
                    ops::mul(&v[0], 2.0)
                },
            )?;
            Ok((results[0].clone(), ops::relu(&results[0])?))
        });
        let model = load(&graph.unwrap());
        for (limit, factor, large) in [(1.0f32, 1.0f32, 0.0f32), (7.0, 2.0, 0.0), (100.0, 32.0, 3.0)] {
            let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, -2.0], [2, 2]).unwrap();
            let mut buffer = Tensor::full(0.5f32, [2, 2]).unwrap().to(&gpu()).unwrap();
            let limit = Tensor::full(limit, [1, 1]).unwrap().to(&gpu()).unwrap();
            let results = model.execute((&mut buffer, &x.to(&gpu()).unwrap(), &limit)).unwrap();
            let expected: Vec<f32> = values(&x).iter().map(|v| v * factor).collect();
            assert_eq!(values(&results[0]), expected);
            assert_eq!(values(&results[1]), expected.iter().map(|v| v.max(0.0)).collect::<Vec<_>>());
            assert_eq!(values(&buffer), [0.5 + large; 4]);
        }
    }

    fn sizes_and_parameters_are_read_back() {
        let types = [f32s(("h", "w"), GPU), i64s((1,), GPU)];
        let graph = Graph::build("sizes", types, |_, inputs| {
            let flat = ops::reshape(&inputs[0], (-1,))?;
            let ty = flat.ty().clone();
            let placed = ops::custom("t_place", GPU, &flat, [&ty], Parameters::new().with("width", Dim::from("w")))?;
            let scaled = ops::custom("t_by", GPU, &flat, [&ty], Parameters::new().with("by", Dim::from("h")))?;
            let used = ops::to_dims(&inputs[1], ("used",))?;
            let part = ops::slice_tensor(&placed[0], [..used[0].clone()])?;
            Ok((placed[0].clone(), scaled[0].clone(), ops::add(&part, 1.0)?))
        });
        let model = load(&graph.unwrap());
        for (h, w) in [(2usize, 3usize), (3, 1), (1, 4)] {
            let x = Tensor::full(1.0f32, [h, w]).unwrap().to(&gpu()).unwrap();
            let used = Tensor::from_slice(&[2i64], [1]).unwrap().to(&gpu()).unwrap();
            let results = model.execute([&x, &used]).unwrap();
            let expected: Vec<f32> = (0..h * w).map(|i| 1.0 + (i / w) as f32).collect();
            assert_eq!(values(&results[0]), expected);
            assert_eq!(values(&results[1]), vec![h as f32; h * w]);
            assert_eq!(values(&results[2]), expected[..2].iter().map(|v| v + 1.0).collect::<Vec<_>>());
        }
    }

    fn captures_refuse_what_the_host_reads() {
        let flag = TensorType::new(DType::Bool, (), GPU);
        let build = |which: usize| {
            Graph::build("g", [f32s((2,), GPU), flag.clone(), i64s((1,), GPU)], |_, inputs| {
                let x = inputs[0].tensor()?;
                match which {
                    0 => ops::cond(&inputs[1], x.ty(), || ops::add(x, 1.0), || Ok(x)).map(|mut all| all.remove(0)),
                    1 => ops::slice_tensor(x, [..ops::to_dims(&inputs[2], ("n",))?[0].clone()]),
                    _ => x.print("x").and_then(|()| ops::relu(x)),
                }
            })
        };
        let x = numbers(&[2]).to(&gpu()).unwrap();
        let flag = Tensor::from_slice(&[true], [0; 0]).unwrap().to(&gpu()).unwrap();
        let size = Tensor::from_slice(&[1i64], [1]).unwrap().to(&gpu()).unwrap();
        for (which, op) in ["cond", "bind_dims", "print"].into_iter().enumerate() {
            let model = load(&build(which).unwrap());
            model.execute([&x, &flag, &size]).unwrap();
            let error = model.capture(1, [&x, &flag, &size]).unwrap_err();
            assert!(matches!(error, EngineError::CaptureUnsafe { .. }), "{error}");
            assert!(error.to_string().contains(&format!("`{op}`")) && error.to_string().contains("the host reads"), "{error}");
        }
    }
}
