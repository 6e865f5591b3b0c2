//! Views and conversions of `ndarray`: they name the elements of a tensor, whatever its strides, and nothing else.

use max_core::driver::{SliceIndex, Tensor};
use ndarray::{ArrayD, arr2, s};

#[test]
fn arrays_move_in_and_out_without_a_copy() {
    let array = arr2(&[[1.0f32, 2.0], [3.0, 4.0]]);
    let address = array.as_ptr();
    let tensor = Tensor::try_from(array.clone()).unwrap();
    assert_eq!((tensor.shape(), tensor.to_vec::<f32>().unwrap()), (&[2, 2][..], vec![1.0, 2.0, 3.0, 4.0]));
    let tensor = Tensor::try_from(array).unwrap();
    assert_eq!(tensor.data_ptr(), address.cast());
    let array = ArrayD::<f32>::try_from(tensor).unwrap();
    assert_eq!((array.as_ptr(), array.shape()), (address, &[2, 2][..]));
}

#[test]
fn strided_arrays_are_copied() {
    let array = arr2(&[[1, 2, 3], [4, 5, 6]]);
    let tensor = Tensor::try_from(array.view().reversed_axes()).unwrap();
    assert_eq!(tensor.to_vec::<i32>().unwrap(), [1, 4, 2, 5, 3, 6]);
    let tail = array.slice_move(s![1.., ..]);
    assert_eq!(Tensor::try_from(tail).unwrap().to_vec::<i32>().unwrap(), [4, 5, 6]);
}

#[test]
fn strided_tensors_are_viewed() {
    let x = Tensor::arange(0i64, 24, 1).unwrap().reshape([2, 3, 4]).unwrap();
    for indices in [
        vec![],
        vec![SliceIndex::REVERSED, SliceIndex::ALL, SliceIndex::ALL.step_by(-2)],
        vec![SliceIndex::ALL, (0..0).into()],
        vec![0.into(), 1.into(), 2.into()],
        vec![SliceIndex::NewAxis],
    ] {
        let x = x.slice(&indices).unwrap();
        let view = x.as_ndarray::<i64>().unwrap();
        assert_eq!(view.shape(), x.shape());
        assert_eq!(view.iter().copied().collect::<Vec<_>>(), x.to_vec::<i64>().unwrap());
        assert_eq!(ArrayD::<i64>::try_from(&x).unwrap(), view);
    }
    let broadcast = x.select(2, 0).unwrap().broadcast_to([5, 2, 3]).unwrap();
    assert_eq!(broadcast.as_ndarray::<i64>().unwrap()[[4, 1, 2]], 20);
    assert!(x.as_ndarray::<f32>().is_err());
}
