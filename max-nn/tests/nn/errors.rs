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
