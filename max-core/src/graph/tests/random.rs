//! Random graphs: whatever is asked of an op, it gives a value or an error, and the nodes keep their invariants.

use proptest::prelude::*;

use super::*;
use crate::driver::SliceIndex;

/// One step: an op by number, two operands by position, and two small integers as arguments.
type Step = (u8, usize, usize, i64, i64);

fn apply(values: &[TensorValue], (op, x, y, i, j): Step) -> Result<TensorValue, GraphError> {
    let (x, y) = (&values[x % values.len()], &values[y % values.len()]);
    match op {
        0 => Ok(x + y),
        1 => Ok(x * i),
        2 => ops::div(x, y),
        3 => x.gt(y),
        4 => x.exp(),
        5 => x.matmul(y),
        6 => x.sum(i),
        7 => ops::softmax(x, i),
        8 => x.transpose(i, j),
        9 => x.reshape([-1, i]),
        10 => x.reshape((i, j)),
        11 => x.flatten(i, j),
        12 => x.unsqueeze(i),
        13 => x.squeeze(i),
        14 => ops::concat([x, y], i),
        15 => ops::stack([x, y, x], i),
        16 => {
            x.slice_tensor([SliceIndex::range(Some(i as isize), Some(j as isize)), SliceIndex::ALL.step_by(j as isize)])
        }
        17 => x.broadcast_to(y.shape()),
        18 => ops::where_(x, y, i),
        19 => ops::gather(x, y, i),
        20 => x.cast(DType::ALL[(i.unsigned_abs() as usize * 7 + j.unsigned_abs() as usize) % DType::ALL.len()]),
        21 => ops::top_k(x, j.unsigned_abs() as usize, i).map(|(values, _)| values),
        22 => x.rebind([Dim::from("a"), Dim::from(i)], "random"),
        23 => ops::split(x, [i, j], 0).map(|parts| parts[0].clone()),
        24 => ops::layer_norm(x, y, y, 1e-5),
        _ => x.argmax(i),
    }
}

/// Whatever passes may rely on.
fn check_invariants(data: &GraphData) {
    for (index, node) in data.nodes.iter().enumerate() {
        for operand in &node.operands {
            assert!(data.value(*operand).node.index() < index, "a node stands after what it uses");
        }
        for result in node.results() {
            assert_eq!(data.value(result).node.index(), index);
        }
        let shapes = || node.operands.iter().map(|id| data.ty(*id).shape());
        let result = data.ty(node.first_result).shape();
        match &node.op {
            Op::Reshape => assert!(shapes().all(|shape| shape.num_elements() == result.num_elements())),
            Op::BroadcastTo => assert!(shapes().all(|shape| shape.broadcasts_to(result) && shape != result)),
            Op::Kernel(call) if ops::BINARY.iter().any(|row| row.kernel == call.name) => {
                assert!(shapes().all(|shape| shape == result), "broadcasting stands in the graph");
            }
            Op::Kernel(call) => assert!(call.axis.is_none_or(|axis| axis < result.rank())),
            _ => {}
        }
    }
}

proptest! {
    #[test]
    fn any_sequence_of_ops_gives_values_or_errors(
        steps in prop::collection::vec((0u8..26, 0usize..100, 0usize..100, -4i64..5, -4i64..5), 1..24)
    ) {
        let types = [
            f32_type(("a", 3)),
            f32_type((3, 4)),
            f32_type(()),
            TensorType::new(DType::I32, ("a", "b"), DeviceRef::CPU),
            TensorType::new(DType::Bool, (0, 3), DeviceRef::CPU),
        ];
        let (graph, inputs) = inputs(types);
        let mut values = inputs.to_vec();
        let mut poisoned = false;
        for step in steps {
            let Ok(value) = apply(&values, step) else { continue };
            poisoned |= value.error.is_some();
            values.push(value);
        }
        let last = &values[values.len() - 1];
        prop_assert_eq!(graph.output(last).is_err(), poisoned);
        prop_assert_eq!(graph.finished().is_err(), poisoned);
        let data = graph.reference().lock();
        check_invariants(&data);
        prop_assert_eq!(data.to_string().lines().count(), 2 + data.nodes.len() - data.inputs.len() + usize::from(!poisoned));
    }
}
