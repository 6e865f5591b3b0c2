//! When tensors are computed, and what of.

use max::driver::{self, DeviceRef};
use max::dtype::DType;
use max::functional::{self as F, functional};
use max::graph::{Graph, TensorType};
use max::random;
use max::tensor::{Tensor, default_device, default_dtype, defaults, realize_all};

type Outcome = Result<(), max::Error>;

#[test]
fn reading_computes_what_is_needed_and_no_more() -> Outcome {
    max_kernels::link();
    let x = Tensor::constant([1.0f32, -2.0, 3.0])?;
    let y = F::relu(&x)?;
    let z = &y * 2.0 + 1.0;
    let other = &y - 1.0;
    assert!(!y.is_realized() && !z.is_realized());
    assert_eq!(format!("{y:?}").split(" at ").next(), Some("Tensor(float32[3] on cpu:0, unrealized: relu"));
    assert_eq!(z.to_vec::<f32>()?, [3.0, 1.0, 7.0]);
    // `y` is held, so it was computed as well; `other` is not needed.
    assert!(z.is_realized() && y.is_realized() && !other.is_realized());
    assert_eq!(format!("{y:?}"), "Tensor(float32[3] on cpu:0, realized)");
    assert_eq!(other.to_vec::<f32>()?, [0.0, -1.0, 2.0]);
    Ok(())
}

#[test]
fn values_are_those_of_when_they_were_staged() -> Outcome {
    let mut x = Tensor::constant([1.0f32, 2.0])?;
    let y = &x * 10.0;
    let before = x.clone();
    x.store_slice([0isize], 5.0)?;
    x += 1.0;
    assert_eq!(x.to_vec::<f32>()?, [6.0, 3.0]);
    assert_eq!(y.to_vec::<f32>()?, [10.0, 20.0]);
    assert_eq!(before.to_vec::<f32>()?, [1.0, 2.0]);
    Ok(())
}

#[test]
fn memory_of_its_own_is_changed_in_place() -> Outcome {
    let mut x = Tensor::zeros([4, 2])?;
    let address = x.driver_tensor()?.data_ptr();
    for row in 0..4 {
        x.store_slice((row as isize,), row as f64)?;
    }
    assert_eq!(x.driver_tensor()?.data_ptr(), address);
    assert_eq!(x.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    x.store(&Tensor::constant([8.0f32, 9.0])?)?;
    assert_eq!(x.i((3,))?.to_vec::<f32>()?, [8.0, 9.0]);
    Ok(())
}

#[test]
fn a_region_is_one_graph_and_numbers_are_its_inputs() -> Outcome {
    let (a, b, c) = (Tensor::ones([5])?, Tensor::full([5], 2.0)?, Tensor::full([5], 3.0)?);
    for factor in 0..100 {
        let (y, total) = functional(|| {
            let y = &a * &b + &c * f64::from(factor);
            let total = F::sum(&y, 0)?;
            Ok((y, total))
        })?;
        assert!(y.is_realized() && total.is_realized());
        assert_eq!(total.item::<f32>()?, 5.0 * (2.0 + 3.0 * factor as f32));
    }
    let nested = functional(|| {
        let inner = functional(|| Ok(&a + 1.0))?;
        assert!(!inner.is_realized());
        Ok(inner * 2.0)
    })?;
    assert_eq!(nested.to_vec::<f32>()?, [4.0; 5]);
    Ok(())
}

#[max::functional::functional]
fn poly(x: &Tensor) -> max::Result<Tensor> {
    Ok(x * x + x * 2.0 + 1.0)
}

#[test]
fn the_attribute_makes_a_region() -> Outcome {
    let y = poly(&Tensor::full([3], 2.0)?)?;
    assert!(y.is_realized());
    assert_eq!(y.to_vec::<f32>()?, [9.0; 3]);
    Ok(())
}

#[test]
fn long_chains_are_computed_as_they_grow() -> Outcome {
    let mut x = Tensor::zeros([3])?;
    for _ in 0..10_000 {
        x += 1.0;
    }
    assert_eq!(x.to_vec::<f32>()?, [10_000.0; 3]);
    // Dropped without having been computed, and without recursion.
    let dropped = functional(|| {
        let mut y = Tensor::zeros([3])?;
        for _ in 0..100_000 {
            y += 1.0;
        }
        drop(y);
        Tensor::zeros([1])
    })?;
    assert_eq!(dropped.item::<f32>()?, 0.0);
    Ok(())
}

#[test]
fn operands_are_found_in_any_structure() -> Outcome {
    let x = Tensor::constant([1.0f32, 2.0, 3.0, 4.0])?.reshape([2, 2])?;
    let (values, positions) = F::top_k(&x, 1, -1)?;
    let parts = F::split(&x, [1, 1], 0)?;
    let y = &parts[0] + &parts[1] * &values;
    realize_all(&(y.clone(), positions.clone()))?;
    assert_eq!(y.to_vec::<f32>()?, [7.0, 10.0, 13.0, 18.0]);
    assert_eq!(positions.to_vec::<i64>()?, [1, 1]);
    // The same tensor twice, and a sum of more tensors than are looked up one by one.
    let mut sum = &x * &x;
    for i in 0..25 {
        sum += &x * f64::from(i);
    }
    let expected: Vec<f32> = [1.0f32, 2.0, 3.0, 4.0].iter().map(|x| x * x + 300.0 * x).collect();
    assert_eq!(sum.to_vec::<f32>()?, expected);
    Ok(())
}

#[test]
fn views_of_values_share_their_memory() -> Outcome {
    let x = Tensor::arange(0, 12, 1)?.reshape([3, 4])?;
    let address = x.driver_tensor()?.data_ptr();
    for view in [x.t()?, x.permute([1, 0])?, x.i((..2,))?, x.reshape([2, 6])?.unsqueeze(0)?, x.flatten(0, 1)?] {
        assert_eq!(view.driver_tensor()?.data_ptr(), address, "{view:?}");
    }
    assert_eq!(x.t()?.i((1,))?.to_vec::<f32>()?, [1.0, 5.0, 9.0]);
    assert_eq!((x.t()? + 1.0).to_vec::<f32>()?[..3], [1.0, 5.0, 9.0]);
    assert_eq!(x.i((max::driver::SliceIndex::REVERSED, -1))?.to_vec::<f32>()?, [11.0, 7.0, 3.0]);
    Ok(())
}

#[test]
fn numbers_stand_on_either_side() -> Outcome {
    let x = Tensor::constant([1.0f32, 4.0])?;
    assert_eq!((2.0 - &x).to_vec::<f32>()?, [1.0, -2.0]);
    assert_eq!((8 / &x).to_vec::<f32>()?, [8.0, 2.0]);
    assert_eq!((-&x % 3.0).to_vec::<f32>()?, [2.0, 2.0]);
    let mask = x.greater(2.0)?;
    assert_eq!(F::where_(&mask | false, &x, 0.5)?.to_vec::<f32>()?, [0.5, 4.0]);
    assert_eq!(F::where_(!&mask, 1, &x)?.to_vec::<f32>()?, [1.0, 4.0]);
    let bytes = Tensor::constant([200u8, 100])?;
    assert_eq!((&bytes + Tensor::constant([1000i32, 1])?).to_vec::<i32>()?, [1200, 101]);
    assert_eq!((bytes / 2).dtype(), DType::F64);
    Ok(())
}

#[test]
fn defaults_are_scoped() -> Outcome {
    assert_eq!(defaults(None, Some(DeviceRef::CPU)), (DType::F32, DeviceRef::CPU));
    assert_eq!(defaults(None, Some(DeviceRef::gpu(0))), (DType::BF16, DeviceRef::gpu(0)));
    default_device(DeviceRef::CPU, || {
        default_dtype(DType::F64, || -> Outcome {
            assert_eq!(Tensor::ones([2])?.to_vec::<f64>()?, [1.0, 1.0]);
            assert_eq!(random::uniform([2], 0.0..1.0)?.dtype(), DType::F64);
            Ok(())
        })
    })?;
    let like = TensorType::new(DType::Bool, (2,), DeviceRef::CPU);
    assert_eq!(Tensor::ones_like(&like)?.to_vec::<bool>()?, [true, true]);
    assert_eq!(Tensor::zeros_like(Tensor::ones([1])?)?.item::<f32>()?, 0.0);
    Ok(())
}

#[test]
fn draws_follow_from_the_seed() -> Outcome {
    // The counter is the process's: other tests that draw would be in between.
    let draws = || -> max::Result<Vec<f32>> {
        random::set_seed(11);
        let (x, y) = (random::normal([100], 1.0, 2.0)?, random::uniform([100], -1.0..1.0)?);
        let mut both = x.to_vec::<f32>()?;
        both.extend(y.to_vec::<f32>()?);
        Ok(both)
    };
    let same = (0..20).any(|_| matches!((draws(), draws()), (Ok(a), Ok(b)) if a == b));
    assert!(same);
    let x = random::uniform([1000], 2.0..3.0)?;
    let values = x.to_vec::<f32>()?;
    assert!(values.iter().all(|v| (2.0..3.0).contains(v)));
    assert_ne!(values, random::uniform_like(&x, 2.0..3.0)?.to_vec::<f32>()?);
    let normal = random::gaussian_like(TensorType::new(DType::F64, (10_000,), DeviceRef::CPU), 5.0, 0.5)?;
    let mean = F::mean(&normal, 0)?.item::<f64>()?;
    assert!((mean - 5.0).abs() < 0.05, "{mean}");
    assert!(random::normal([1], 0.0, -1.0).is_err() && random::uniform([1], 1.0..0.0).is_err());
    Ok(())
}

#[test]
fn eager_tensors_are_constants_of_graphs() -> Outcome {
    let w = Tensor::constant([[1.0f32, 2.0], [3.0, 4.0]])? * 2.0;
    let ty = TensorType::new(DType::F32, ("n", 2), DeviceRef::CPU);
    let graph = Graph::build("g", [ty], |_, x| Ok(F::matmul(&x[0], &w)? + 1.0))?;
    let model = max::engine::InferenceSession::new().load(&graph)?;
    let y = model.execute(&driver::Tensor::full(1.0f32, [1, 2])?)?;
    assert_eq!(y[0].to_vec::<f32>()?, [9.0, 13.0]);
    Ok(())
}

#[test]
fn shapes_of_a_class_give_the_same_bits() -> Outcome {
    // From the fourth shape on, one model with named dims serves all of them, unless the ops need sizes.
    let weight = random::normal([8, 3], 0.0, 1.0)?;
    let layer = |x: &Tensor| -> max::Result<(Tensor, Tensor)> {
        let y = F::softmax(F::matmul(x, &weight)? + 0.5, -1)?;
        let (largest, _) = F::top_k(&y, 2, -1)?;
        Ok((F::concat([&y, &largest], 1)?, F::sum(F::relu(x)?, 0)? / F::mean(x, 0)?))
    };
    let flat = |x: &Tensor| F::relu(F::reshape(x, [-1])? * 2.0);
    let all = random::normal([40, 8], 0.0, 1.0)?;
    all.realize()?;
    for rows in (1..40).rev() {
        let x = all.i((..rows,))?;
        let (y, sums) = functional(|| layer(&x))?;
        let model = max::nn::compile("layer", [x.ty()], |x| {
            let (y, sums) = layer(&x[0])?;
            Ok((y, sums, flat(&x[0])?))
        })?;
        let want = model.execute(&x.driver_tensor()?)?;
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        assert_eq!(y.shape().to_string(), format!("[{rows}, 5]"));
        for (got, want) in [y, sums, flat(&x)?].iter().zip(&want) {
            assert_eq!(bits(&got.to_vec::<f32>()?), bits(&want.to_vec::<f32>()?), "{rows} rows");
        }
    }
    Ok(())
}

#[test]
fn threads_share_what_is_compiled() {
    let x = Tensor::ones([7]).expect("memory");
    let y = &x * 3.0;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for i in 0..200 {
                    let z = &y + f64::from(i);
                    assert_eq!(z.to_vec::<f32>().expect("values"), [3.0 + i as f32; 7]);
                }
            });
        }
    });
}

#[test]
fn values_come_from_what_there_is() -> Outcome {
    let nested = Tensor::constant([[[1i32, 2], [3, 4]], [[5, 6], [7, 8]]])?;
    assert_eq!((nested.shape().to_string(), nested.dtype()), ("[2, 2, 2]".to_owned(), DType::I32));
    assert_eq!(nested.i((1, .., 0))?.to_vec::<i32>()?, [5, 7]);
    let rows = vec![[1.0f64, 2.0], [3.0, 4.0], [5.0, 6.0]];
    assert_eq!(Tensor::constant(&rows)?.shape().to_string(), "[3, 2]");
    assert_eq!(Tensor::constant(rows.as_slice())?.to_vec::<f64>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(Tensor::constant(vec![true, false])?.to_vec::<bool>()?, [true, false]);
    assert_eq!(Tensor::constant([[0u8; 0]; 3])?.shape().to_string(), "[3, 0]");
    assert_eq!((Tensor::constant(2.5f32)?.rank(), Tensor::constant(2.5f32)?.item::<f32>()?), (0, 2.5));
    let weights = std::collections::HashMap::from([("w".to_owned(), driver::Tensor::full(3.0f32, [2])?)]);
    assert_eq!(Tensor::from_weights(&weights, "w")?.to_vec::<f32>()?, [3.0, 3.0]);
    let error = Tensor::from_weights(&weights, "v").unwrap_err().to_string();
    assert!(error.contains("`v`") && error.contains("\"w\""), "{error}");
    #[cfg(feature = "ndarray")]
    {
        let array = ndarray::array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
        let x = Tensor::constant(array.view())?;
        assert_eq!((x.shape().to_string(), x.to_vec::<f32>()?[3]), ("[2, 3]".to_owned(), 4.0));
        // Any strides come in as they are.
        assert_eq!(Tensor::constant(array.t())?.to_vec::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(Tensor::constant(array)?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }
    Ok(())
}

#[test]
fn indices_are_those_of_numpy() -> Outcome {
    let x = Tensor::arange(0, 24, 1)?.reshape([2, 3, 4])?;
    let shape_and_values = |x: Tensor| -> max::Result<(String, Vec<f32>)> { Ok((x.shape().to_string(), x.to_vec()?)) };
    use max::driver::SliceIndex as S;
    let step = |start: Option<isize>, stop: Option<isize>, step| S::Range { start, stop, step };
    // As `x[1]`, `x[..., -1]`, `x[:, 1:3, ::2]` and so on say it.
    let cases = [
        (x.i(1)?, "[3, 4]", vec![12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]),
        (x.i((S::Ellipsis, -1))?, "[2, 3]", vec![3, 7, 11, 15, 19, 23]),
        (x.i((.., 1..3, step(None, None, 2)))?, "[2, 2, 2]", vec![4, 6, 8, 10, 16, 18, 20, 22]),
        (x.i((0, .., 1..=2))?, "[3, 2]", vec![1, 2, 5, 6, 9, 10]),
        (x.i((-1, S::REVERSED, 0))?, "[3]", vec![20, 16, 12]),
        (x.i((1, 2, 3))?, "[]", vec![23]),
        (x.i((.., S::NewAxis, 0, 2..))?, "[2, 1, 2]", vec![2, 3, 14, 15]),
        (x.i((0, 5.., ..))?, "[0, 4]", vec![]),
        (x.i((0, -2..-1, ..=0))?, "[1, 1]", vec![4]),
        (x.i((0, 0, step(Some(3), Some(0), -2)))?, "[2]", vec![3, 1]),
        (x.i([S::from(0), S::from(1), S::from(1..3)])?, "[2]", vec![5, 6]),
    ];
    for (got, shape, values) in cases {
        let values: Vec<f32> = values.into_iter().map(|v: u8| f32::from(v)).collect();
        assert_eq!(shape_and_values(got)?, (shape.to_owned(), values));
    }
    // The same of what is not computed yet.
    let y = (&x * 2.0).i((1, .., -1))?;
    assert_eq!(y.to_vec::<f32>()?, [30.0, 38.0, 46.0]);
    for wrong in [x.i(2), x.i((0, 0, 0, 0)), x.i((S::Ellipsis, S::Ellipsis)), x.i((step(None, None, 0),))] {
        assert_eq!(wrong.unwrap_err().op(), "slice_tensor");
    }
    Ok(())
}

#[test]
fn tensors_print_as_numpy_prints_them() -> Outcome {
    let odd = Tensor::constant([[f32::NAN, -1.5], [f32::INFINITY, 1e-6]])?;
    assert_eq!(odd.to_string(), "[[     nan -1.5e+00]\n [     inf  1.0e-06]] float32[2, 2] on cpu:0");
    assert_eq!(Tensor::constant([true, false])?.to_string(), "[ True False] bool[2] on cpu:0");
    assert_eq!(Tensor::constant(7i64)?.to_string(), "7 int64[] on cpu:0");
    assert_eq!(Tensor::constant([0.1f32])?.cast(DType::F16)?.to_string(), "[0.1] float16[1] on cpu:0");
    let x = Tensor::arange(0, 6, 1)?.reshape([2, 3])? - 2.5;
    assert_eq!(x.to_string(), "[[-2.5 -1.5 -0.5]\n [ 0.5  1.5  2.5]] float32[2, 3] on cpu:0");
    assert_eq!(Tensor::zeros([0, 2])?.to_string(), "[] float32[0, 2] on cpu:0");
    let long = Tensor::arange(0, 2000, 1)?.to_string();
    assert!(long.contains("...") && long.len() < 100, "{long}");
    Ok(())
}
