//! What is wrong is said where it is written.

use std::panic::AssertUnwindSafe;

use max::driver::DeviceRef;
use max::dtype::DType;
use max::functional as F;
use max::graph::{Graph, TensorType};
use max::nn::compile;
use max::tensor::Tensor;

#[test]
fn ops_fail_where_they_are_written() -> Result<(), max::Error> {
    let (a, b) = (Tensor::ones([2, 3])?, Tensor::ones([4])?);
    // Not realized either.
    let c = &b * 2.0;
    let line = line!() + 1;
    let error = F::add(&a, &c).map(drop).unwrap_err();
    assert_eq!((error.op(), error.location().file(), error.location().line()), ("add", file!(), line));
    let text = error.to_string();
    for part in ["`add` at ", "[2, 3] and [4] do not broadcast", "float32[2, 3], float32[4]"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("in graph"), "{text}");
    let line = line!() + 1;
    let method = a.try_add(&c).map(drop).unwrap_err();
    assert_eq!(method.location().line(), line);

    let panic = std::panic::catch_unwind(AssertUnwindSafe(|| drop(&a + &c))).unwrap_err();
    let message = panic.downcast_ref::<String>().expect("a message");
    assert!(message.contains("[2, 3] and [4] do not broadcast") && message.contains(file!()), "{message}");

    let number = F::add(Tensor::constant([1u8])?, 0.5).map(drop).unwrap_err().to_string();
    assert!(number.contains("0.5 is not representable as uint8"), "{number}");
    // The number is looked at each time, also where the op is known.
    assert!(F::add(Tensor::constant([1u8])?, 1).is_ok());
    assert!(F::add(Tensor::constant([1u8])?, 300).is_err());
    let none = F::add(1.0, 2.0).map(drop).unwrap_err().to_string();
    assert!(none.contains("no operand is a tensor"), "{none}");
    let dtypes = F::add(Tensor::constant([1i32])?, &a).map(drop).unwrap_err().to_string();
    assert!(dtypes.contains("no dtype of int32, float32"), "{dtypes}");
    Ok(())
}

#[test]
fn reading_says_what_is_wrong() -> Result<(), max::Error> {
    let x = Tensor::ones([2])?;
    let line = line!() + 1;
    let error = x.item::<f32>().unwrap_err();
    assert!(error.to_string().contains("`item`") && error.location().line() == line, "{error}");
    assert!(x.to_vec::<i32>().unwrap_err().to_string().contains("cast it with `cast`"));
    assert!(Tensor::from_slice(&[1.0f32; 3], [2, 2]).is_err());
    assert!(Tensor::full([2], 300).is_ok());
    let full = Tensor::full_like(TensorType::new(DType::U8, (2,), DeviceRef::CPU), 300).unwrap_err().to_string();
    assert!(full.contains("uint8"), "{full}");
    assert!(Tensor::ones(("n",)).unwrap_err().to_string().contains("static"));
    Ok(())
}

#[test]
fn a_failed_region_gives_its_first_error_again() -> Result<(), max::Error> {
    // More memory than there is: staged without complaint, and refused when it is computed.
    let x = Tensor::ones([1])?.broadcast_to([1i64 << 30, 1 << 20])?;
    let y = &x + 1.0;
    let z = &y * 2.0;
    let first = y.realize().unwrap_err().to_string();
    assert!(first.contains("`add`"), "{first}");
    assert_eq!(y.to_vec::<f32>().unwrap_err().to_string(), first);
    assert_eq!(z.realize().unwrap_err().to_string(), first);
    assert!(format!("{y:?}").contains("failed") && y.to_string().contains("no value"));
    Ok(())
}

#[test]
fn graphs_refuse_what_has_no_value_in_them() -> Result<(), max::Error> {
    let ty = TensorType::new(DType::F32, ("n", 3), DeviceRef::CPU);
    let graph = Graph::new("g", [&ty]);
    let x = Tensor::from(graph.inputs()[0].tensor()?);
    assert!(x.to_vec::<f32>().unwrap_err().to_string().contains("value of a graph"));
    assert!(F::nonzero(&x).is_err());
    // A mistake of an operator is one of the outputs.
    let line = line!() + 1;
    let wrong = &x + Tensor::ones([2])?;
    let error = graph.output(wrong).unwrap_err();
    assert_eq!((error.op(), error.location().line()), ("add", line));
    let eager = compile("eager", [&ty], |_| Tensor::ones([1])).map(drop).unwrap_err();
    assert!(eager.to_string().contains("an eager"), "{eager}");
    let named = F::softmax(&x, 5).map(drop).unwrap_err();
    assert_eq!(named.location().file(), file!());
    Ok(())
}

/// An illegal call, the op that it is an error of, and its line.
type Illegal = (&'static str, u32, fn(&Tensor) -> max::Result<Tensor>);

#[test]
fn every_family_of_ops_names_itself_shapes_and_the_line() -> Result<(), max::Error> {
    max_kernels::link();
    // All on `[2, 3]` of `float32`.
    let illegal: [Illegal; 31] = [
        ("matmul", line!(), |x| F::matmul(x, x)),
        ("reshape", line!(), |x| F::reshape(x, [4, 4])),
        ("broadcast_to", line!(), |x| F::broadcast_to(x, [2, 4])),
        ("transpose", line!(), |x| F::transpose(x, 0, 5)),
        ("permute", line!(), |x| F::permute(x, [0, 0])),
        ("squeeze", line!(), |x| F::squeeze(x, 0)),
        ("unsqueeze", line!(), |x| F::unsqueeze(x, 9)),
        ("flatten", line!(), |x| F::flatten(x, 1, 0)),
        ("slice_tensor", line!(), |x| x.i((9,))),
        ("slice_tensor", line!(), |x| x.i((0, 0, 0))),
        ("concat", line!(), |x| F::concat([x], 5)),
        ("stack", line!(), |x| F::stack([x], 5)),
        ("split", line!(), |x| F::split(x, [1, 1], 1).map(|parts| parts[0].clone())),
        ("chunk", line!(), |x| F::chunk(x, 2, 1).map(|parts| parts[0].clone())),
        ("gather", line!(), |x| F::gather(x, x, 0)),
        ("gather_nd", line!(), |x| F::gather_nd(x, x, 0)),
        ("scatter", line!(), |x| F::scatter(x, x, x, 0)),
        ("scatter_nd", line!(), |x| F::scatter_nd(x, x, x)),
        ("masked_scatter", line!(), |x| F::masked_scatter(x, x, x)),
        ("where", line!(), |x| F::where_(x, x, x)),
        ("logical_and", line!(), |x| F::logical_and(x, x)),
        ("logical_not", line!(), |x| F::logical_not(x)),
        ("softmax", line!(), |x| F::softmax(x, 7)),
        ("sum", line!(), |x| x.sum(-3)),
        ("layer_norm", line!(), |x| F::layer_norm(x, x, x, 1e-5)),
        ("top_k", line!(), |x| F::top_k(x, 9, -1).map(|(values, _)| values)),
        ("pad", line!(), |x| F::pad(x, [1], F::PadMode::Edge)),
        ("tile", line!(), |x| F::tile(x, [2])),
        ("as_interleaved_complex", line!(), |x| F::as_interleaved_complex(x)),
        ("conv2d", line!(), |x| F::conv2d(x, x, None, F::ConvOptions::default())),
        ("max_pool2d", line!(), |x| F::max_pool2d(x, [2, 2], F::PoolOptions::default())),
    ];
    let realized = Tensor::ones([2, 3])?;
    let graph = Graph::new("g", [realized.ty()]);
    let of_graph = Tensor::from(graph.inputs()[0].tensor()?);
    for (op, line, call) in illegal {
        let unrealized = &realized * 2.0;
        for x in [&realized, &unrealized, &of_graph] {
            let error = call(x).map(drop).unwrap_err();
            assert_eq!((error.op(), error.location().file()), (op, file!()), "{error}");
            assert_eq!(error.location().line(), line, "{error}");
            let text = error.to_string();
            assert!(text.contains("2, 3") || text.contains("float32"), "{text}");
            assert_eq!(text.contains("in graph `g`"), x.graph_value().is_some(), "{text}");
        }
        assert!(!unrealized.is_realized(), "{op}");
    }
    Ok(())
}

#[test]
fn operators_panic_with_the_message_that_their_other_forms_return() -> Result<(), max::Error> {
    max_kernels::link();
    type Operator = fn(&Tensor, &Tensor) -> Tensor;
    type Try = fn(&Tensor, &Tensor) -> max::Result<Tensor>;
    let (a, b) = (Tensor::ones([2, 3])?, Tensor::ones([4])? * 2.0);
    let both: [(&str, Operator, Try); 10] = [
        ("add", |a, b| a + b, |a, b| a.try_add(b)),
        ("sub", |a, b| a - b, |a, b| a.try_sub(b)),
        ("mul", |a, b| a * b, |a, b| a.try_mul(b)),
        ("div", |a, b| a / b, |a, b| a.try_div(b)),
        ("mod", |a, b| a % b, |a, b| a.try_rem(b)),
        ("logical_and", |a, b| a & b, |a, b| a.try_and(b)),
        ("logical_or", |a, b| a | b, |a, b| a.try_or(b)),
        ("logical_xor", |a, b| a ^ b, |a, b| a.try_xor(b)),
        ("logical_not", |a, _| !a, |a, _| a.try_not()),
        ("negate", |a, b| -(a + b), |a, b| a.try_add(b)?.try_neg()),
    ];
    for (op, operator, checked) in both {
        let error = checked(&a, &b).map(drop).unwrap_err();
        let panic = std::panic::catch_unwind(AssertUnwindSafe(|| drop(operator(&a, &b)))).unwrap_err();
        let message = panic.downcast_ref::<String>().expect("a message");
        assert_eq!(error.location().file(), file!(), "{op}");
        // The line is the same; what differs is the column.
        let without_column = |text: &str| {
            let (start, rest) = text.split_once(".rs:").expect("a place");
            let rest: Vec<&str> = rest.splitn(3, ':').collect();
            format!("{start}:{}:{}", rest[0], rest[2])
        };
        assert_eq!(without_column(message), without_column(&error.to_string()), "{op}");
    }
    Ok(())
}
