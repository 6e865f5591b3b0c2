//! Constant operands of products, which a model packs once: the results are those of operands that are inputs, where the same unit
//! multiplies both. (Products of `f32` with a constant go through AMX from a smaller size on.)

use std::sync::Barrier;

use max::driver::{DeviceRef, Tensor};
use max::dtype::DType;
use max::engine::{InferenceSession, Model};
use max::graph::{Graph, TensorType, ops};

/// Numbers without a pattern, in `-1..1`.
fn numbers(shape: &[usize], dtype: DType, seed: u32) -> Tensor {
    let mut state = seed;
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 9) as f32 / 4_194_304.0 - 1.0
        })
        .collect();
    let tensor = Tensor::from_slice(&values, shape).unwrap();
    let graph = Graph::build("cast", [TensorType::new(DType::F32, shape, DeviceRef::CPU)], |_, inputs| {
        ops::cast(&inputs[0], dtype)
    });
    let mut outputs = InferenceSession::new().load(&graph.unwrap()).unwrap().execute(&tensor).unwrap();
    outputs.swap_remove(0)
}

/// `x · weight`, or `x · weightᵀ`, with the weight a constant and with the weight an input.
fn models(weight: &Tensor, transposed: bool, batch: bool) -> [Model; 2] {
    let dtype = weight.dtype();
    let k = weight.shape()[weight.rank() - 1 - usize::from(!transposed)];
    let ty = |shape: &[usize]| TensorType::new(dtype, shape, DeviceRef::CPU);
    let x = match batch {
        true => TensorType::new(dtype, (weight.shape()[0], "m", k), DeviceRef::CPU),
        false => TensorType::new(dtype, ("m", k), DeviceRef::CPU),
    };
    let constant = Graph::build("constant", [x.clone()], |graph, inputs| {
        let weight = ops::constant(graph, weight, dtype, DeviceRef::CPU)?;
        ops::matmul(&inputs[0], if transposed { ops::transpose(weight, -1, -2)? } else { weight })
    });
    let input = Graph::build("input", [x, ty(weight.shape())], |_, inputs| {
        let weight = inputs[1].tensor()?.clone();
        ops::matmul(&inputs[0], if transposed { ops::transpose(weight, -1, -2)? } else { weight })
    });
    [constant, input].map(|graph| InferenceSession::new().load(&graph.unwrap()).unwrap())
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    let elements: usize = tensor.shape().iter().product();
    let bytes = tensor.view(DType::U8, Some(&[elements * tensor.dtype().size_in_bytes()])).unwrap();
    bytes.to_vec().unwrap()
}

#[test]
fn a_constant_weight_changes_no_bit() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for (batch, k, n, transposed) in
            [(0, 130, 97, false), (0, 64, 800, false), (0, 700, 300, true), (0, 1, 1, false), (3, 70, 65, true)]
        {
            let shape = if transposed { [batch, n, k] } else { [batch, k, n] };
            let weight = numbers(&shape[usize::from(batch == 0)..], dtype, 7);
            let [constant, input] = models(&weight, transposed, batch > 0);
            // Few rows and many take different tiles; each twice, for the second finds what the first has packed.
            for m in [1, 8, 33, 300, 1, 300] {
                let shape = [batch, m, k];
                let x = numbers(&shape[usize::from(batch == 0)..], dtype, m as u32);
                let of_constant = constant.execute(&x).unwrap();
                let of_input = input.execute([&x, &weight]).unwrap();
                assert_eq!(bytes(&of_constant[0]), bytes(&of_input[0]), "{dtype} {batch} {m} {k} {n} {transposed}");
            }
        }
    }
}

#[test]
fn threads_share_what_is_packed() {
    for dtype in [DType::F32, DType::BF16] {
        let weight = numbers(&[600, 900], dtype, 3);
        let [constant, input] = models(&weight, false, false);
        let x = numbers(&[400, 600], dtype, 5);
        let expected = bytes(&input.execute([&x, &weight]).unwrap()[0]);
        let together = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
                    for _ in 0..3 {
                        assert_eq!(bytes(&constant.execute(&x).unwrap()[0]), expected, "{dtype}");
                    }
                });
            }
        });
    }
}
