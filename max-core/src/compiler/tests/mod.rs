//! What the passes make of small graphs, read off the schedule.

#[cfg(test)]
pub(super) mod complexity;

use proptest::prelude::*;
use smallvec::SmallVec;

use super::schedule::{Home, Operand, Operands, Schedule, Step, Work};
use super::view::View;
use super::{Context, compile, memory};
use crate::driver::{DeviceRef, Tensor};
use crate::dtype::DType;
use crate::graph::{
    Dim, DimSlice, Graph, GraphData, GraphError, Op, Parameters, Shape, TensorType, TensorValue, Value, ops,
};
use crate::kernel::ir::Place;
use crate::kernel::{CodeOptions, Form, KernelLibrary, kernel};
use crate::plan::fusion::Side;

#[kernel(op = "t_relu", dtypes(T = [f32]))]
fn relu<T: Number>(x: T) -> T {
    x.max(0)
}

#[kernel(op = "t_add", dtypes(T = [f32]))]
fn add<T: Number>(x: T, y: T) -> T {
    x + y
}

#[kernel(op = "t_sum", dtypes(T = [f32]))]
fn sum<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let total = x.row(row).fold(0, |s, v| s + v).sum();
    y.row(row).set(0, total);
}

#[kernel(op = "t_softmax", dtypes(T = [f32]))]
fn softmax<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    let x = x.row(row);
    let total = x.fold(0, |s, v| s + v).sum();
    y.row(row).write(x.map(|v| v - total));
}

#[kernel(op = "t_integers")]
fn integers(x: f32) -> i32 {
    x.cast()
}

#[kernel(op = "t_cast")]
fn cast(x: i32) -> f32 {
    x.cast()
}

#[kernel(op = "t_prod", dtypes(T = [f32]))]
fn prod<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).prod());
}

#[kernel(op = "t_reduce_max", dtypes(T = [f32]))]
fn max<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.at(row, 0).max(x.row(row).max()));
}

#[kernel(op = "t_reduce_min", dtypes(T = [f32]))]
fn min<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).min());
}

/// Writes one element of each row.
#[kernel(op = "t_logsoftmax", dtypes(T = [f32]))]
fn logsoftmax<T: Number>(y: Out<T, 2>, x: In<T, 2>) {
    let row = program_id(0);
    y.row(row).set(0, x.row(row).sum());
}

#[kernel(op = "t_matmul", tile(B = 8), transposed, dtypes(T = [f32]))]
fn matmul<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<T, B, B>::zeros();
    for k in range(0, a.dim(1), B) {
        acc = dot(a.tile::<B, B>(m, k), b.tile::<B, B>(k, n), acc);
    }
    c.tile::<B, B>(m, n).write(acc);
}

#[kernel(op = "t_bump", dtypes(T = [f32]))]
fn bump<T: Number>(total: &mut T) {
    *total = *total + 1;
}

fn compiled(
    shape: impl Into<Shape>,
    body: impl FnOnce(&Graph, &TensorValue) -> Result<Vec<TensorValue>, GraphError>,
) -> (GraphData, Schedule) {
    compiled_on(DeviceRef::CPU, shape, body)
}

fn compiled_on(
    device: DeviceRef,
    shape: impl Into<Shape>,
    body: impl FnOnce(&Graph, &TensorValue) -> Result<Vec<TensorValue>, GraphError>,
) -> (GraphData, Schedule) {
    let ty = TensorType::new(DType::F32, shape, device);
    let graph = Graph::build("g", (&ty, ty.as_buffer()), |graph, inputs| body(graph, inputs[0].tensor()?)).unwrap();
    let (library, devices, packed) = (KernelLibrary::linked(), [DeviceRef::CPU, device], Default::default());
    let context = Context {
        library: &library,
        form: Form::Reference,
        devices: &devices,
        code: CodeOptions::default(),
        threads: &|| 2,
        weights: &(),
        packed: &packed,
        check_indices: false,
        execute: |plan| plan.run(&mut []),
    };
    let mut data = graph.finished().unwrap().clone();
    // These tests' own kernels, which no other test's graph shall find under the name of an op.
    for node in &mut data.nodes {
        if let Op::Kernel(call) = &mut node.op {
            call.name = format!("t_{}", call.name.trim_start_matches("t_")).into();
        }
    }
    compile(data, &context).unwrap()
}

fn steps(schedule: &Schedule) -> Vec<&'static str> {
    schedule.steps.iter().map(|step| step.name().trim_start_matches("t_")).collect()
}

#[test]
fn views_cost_nothing_where_strides_can_say_them() {
    let (_, schedule) = compiled(("a", "b"), |_, x| {
        let view = x.t()?.unsqueeze(0)?.broadcast_to((3, "b", "a"))?;
        Ok(vec![ops::relu(view)?, ops::sum(x, 1)?, ops::sum(x, 0)?])
    });
    // Rows along the first axis are read as columns.
    assert_eq!(steps(&schedule), ["relu", "sum", "sum_columns"]);
}

#[test]
fn a_transpose_is_multiplied_where_it_lies() {
    let names = |body: fn(&TensorValue) -> Result<TensorValue, GraphError>| {
        let (_, schedule) = compiled((24, 40), |_, x| Ok(vec![body(x)?]));
        steps(&schedule).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(|x| ops::matmul(x, x.t()?)), ["matmul_transposed"]);
    // The left side has to be made contiguous, and the right one lies in rows.
    assert_eq!(names(|x| ops::matmul(x.t()?, x)), ["copy", "matmul"]);
    // Rows of a custom op are read as columns too.
    let ty = TensorType::new(DType::F32, [40, 1], DeviceRef::CPU);
    let sum = |x: &TensorValue| ops::custom("t_sum", DeviceRef::CPU, [x.t()?], &ty, ())?[0].tensor().cloned();
    let (_, schedule) = compiled((24, 40), |_, x| Ok(vec![sum(x)?]));
    assert_eq!(steps(&schedule), ["sum_columns"]);
    // One column is a row.
    assert_eq!(names(|x| ops::matmul(x, x.reshape((960, 1))?.t()?.reshape((40, 24))?)), ["matmul"]);
}

#[test]
fn columns_are_reduced_together_where_rows_do_not_lie_in_one_piece() {
    let (_, schedule) = compiled(("n", 5, 64), |_, x| {
        let swapped = x.permute([1, 0, 2])?;
        let few = x.permute([2, 0, 1])?;
        Ok(vec![ops::prod(x, 0)?, ops::prod(x, 1)?, ops::prod(x, 2)?, ops::prod(swapped, 1)?, ops::prod(few, 0)?])
    });
    assert_eq!(steps(&schedule), ["prod_columns", "prod_columns", "prod", "prod_columns", "prod"]);
    // Five columns: rows are copied together first.
    let (_, schedule) = compiled(("n", 5), |_, x| Ok(vec![ops::prod(x, 0)?]));
    assert_eq!(steps(&schedule), ["copy", "prod"]);
}

#[test]
fn columns_are_taken_together_where_there_are_enough_programs() {
    let (cpu, gpu) = (DeviceRef::CPU, DeviceRef::gpu(0));
    let softmax = |device, width: i64| {
        let (_, schedule) = compiled_on(device, (700, width), |_, x| Ok(vec![ops::softmax(x, 0)?]));
        steps(&schedule).contains(&"softmax_columns")
    };
    // One thread of a CPU takes as many columns as a vector has as fast as two copy rows.
    for (device, few) in [(cpu, 15), (cpu, 8), (gpu, 127 * 256)] {
        let (_, schedule) = compiled_on(device, (9000, few), |_, x| Ok(vec![ops::softmax(x, 0)?]));
        assert!(!steps(&schedule).contains(&"softmax_columns"), "{few} columns");
    }
    for (device, many) in [(cpu, 16), (cpu, 100), (gpu, 127 * 256 + 1), (gpu, 128 * 256)] {
        let (_, schedule) = compiled_on(device, (1400, many), |_, x| Ok(vec![ops::softmax(x, 0)?]));
        assert!(steps(&schedule).contains(&"softmax_columns"), "{many} columns");
    }
    // Of few elements there may be few programs, but on no device fewer columns than it takes at once.
    assert!(softmax(cpu, 64) && softmax(gpu, 64) && !softmax(cpu, 3) && !softmax(gpu, 3));
}

#[test]
fn columns_are_divided_among_threads() {
    let dims = |shape: &[i64], is_map: bool| {
        let axis = shape.len() as i64 - 2;
        let shape: Shape = shape.iter().map(|dim| Dim::Static(*dim)).collect();
        let (_, schedule) =
            compiled(shape.clone(), |_, x| Ok(vec![if is_map { ops::softmax(x, axis)? } else { ops::prod(x, axis)? }]));
        let kernel = if is_map { "softmax_columns" } else { "prod_columns" };
        assert!(steps(&schedule).iter().all(|name| *name == kernel), "{shape:?}: {:?}", steps(&schedule));
        let numbers = |dims: &[Dim]| dims.iter().map(|dim| dim.as_static().unwrap()).collect::<Vec<_>>();
        schedule.steps.iter().map(|step| numbers(&step.operands[1].view.dims)).collect::<Vec<_>>()
    };
    // Programs take 256 columns; there are two threads. What is near is divided finely, what comes from memory is not.
    assert_eq!(dims(&[700, 128], false), [[2, 700, 64]]);
    assert_eq!(dims(&[300, 256], true), [[4, 300, 64]]);
    assert_eq!(dims(&[5000, 256], true), [[2, 5000, 128]]);
    // Columns that are no whole lines: of what is far, as many for each thread.
    assert_eq!(dims(&[5000, 268], true), [[2, 5000, 134]]);
    assert_eq!(dims(&[9000, 100], true), [[1, 9000, 100]]);
    // Of few columns, neighbouring rows are taken side by side.
    assert_eq!(dims(&[1500, 48], false), [[1, 75, 960], [1, 20, 48]]);
    // What is left of a matrix comes behind, and several matrices one after the other.
    assert_eq!(dims(&[700, 200], true), [[3, 700, 64], [1, 700, 8]]);
    assert_eq!(dims(&[3, 300, 256], true), [[4, 300, 64]; 3]);
    // No program takes less than a block, unless it is what is left.
    assert_eq!(dims(&[4096, 64], true), [[1, 4096, 64]]);
    // Of few elements, and where there are enough programs, there is no need.
    assert_eq!(dims(&[100, 128], false), [[1, 100, 128]]);
    assert_eq!(dims(&[70, 1024], false), [[1, 70, 1024]]);
    assert_eq!(dims(&[20, 700, 256], true), [[20, 700, 256]]);
}

/// A kernel has a form for columns if its body can be followed: `max` reads at a place of its own.
#[test]
fn what_takes_columns_is_told_by_the_body() {
    let (_, schedule) = compiled((5, 64), |_, x| Ok(vec![ops::max(x, 0)?, ops::min(x, 0)?]));
    assert_eq!(steps(&schedule), ["copy", "reduce_max", "reduce_min_columns"]);
}

#[test]
fn a_copy_is_made_once() {
    let (_, schedule) = compiled((4, 6), |_, x| {
        let transposed = x.t()?;
        Ok(vec![ops::sum(&transposed, 1)?, ops::sum(ops::relu(&transposed)?, 1)?, ops::sum(x, 0)?])
    });
    assert_eq!(steps(&schedule).iter().filter(|name| **name == "copy").count(), 1);
}

#[test]
fn equal_values_are_computed_once_and_dead_ones_never() {
    let (graph, schedule) = compiled([4], |graph, x| {
        let Value::Buffer(buffer) = &graph.inputs()[1] else { return Ok(vec![]) };
        // Reads that nobody uses are no effects, and the chain of the others closes over them.
        buffer.store(x)?;
        buffer.load()?;
        buffer.store(ops::relu(x)?)?;
        ops::add(x, 3.0f32)?;
        let (a, b) = (ops::add(ops::relu(x)?, 2.0f32)?, ops::add(ops::relu(x)?, 2.0f32)?);
        Ok(vec![ops::add(a, b)?])
    });
    assert_eq!(steps(&schedule), ["copy", "relu", "copy", "add"]);
    let Work::Region(adds) = &schedule.steps[3].work else { panic!("{schedule}") };
    assert_eq!(adds.kernels.len(), 2);
    let effects: Vec<_> = graph.nodes.iter().enumerate().filter(|(_, node)| node.chain.is_some()).collect();
    assert_eq!(effects.len(), 2);
    let after = effects[1].1.chain.as_ref().and_then(|chain| chain.after.first()).map(|id| id.index());
    assert_eq!(after, Some(effects[0].0));
}

#[test]
fn constants_are_computed_and_ordered_at_load() {
    let weights = Tensor::arange(0.0f32, 6.0, 1.0).unwrap().reshape([2, 3]).unwrap();
    let (graph, schedule) = compiled([4], |graph, x| {
        let w = ops::constant(graph, weights, DType::F32, DeviceRef::CPU)?;
        let sums = ops::sum(ops::relu(w.t()?)?, 1)?;
        let shape = ops::shape_to_tensor(graph, [Dim::from(2), Dim::from(5)])?;
        Ok(vec![ops::add(x, sums.reshape([3])?.slice_tensor([DimSlice::from(1..2)])?)?, shape])
    });
    assert_eq!(steps(&schedule), ["add", "copy"]);
    let constants = graph.nodes.iter().filter_map(|node| match &node.op {
        Op::Constant(tensor) => Some(tensor),
        _ => None,
    });
    let values: Vec<String> = constants.map(ToString::to_string).collect();
    assert_eq!(values, ["[[3.]\n [5.]\n [7.]]", "[2 5]"]);
}

/// Has a loop of which nobody but its author knows when it ends.
#[kernel(op = "t_halvings", dtypes(T = [f32]))]
fn halvings<T: Float>(x: T) -> T {
    let mut v = x;
    let mut n = T::from(0);
    while v > 1 {
        v *= 0.5;
        n += 1;
    }
    n
}

#[test]
fn what_may_not_end_is_not_computed_at_load() {
    let (_, schedule) = compiled([2], |graph, x| {
        let w = Tensor::from_slice(&[8.0f32, 2.0], [2]).unwrap();
        let w = ops::constant(graph, w, DType::F32, DeviceRef::CPU)?;
        let ty = TensorType::new(DType::F32, (2,), DeviceRef::CPU);
        let n = ops::custom("t_halvings", DeviceRef::CPU, [ops::relu(w)?], &ty, ())?;
        Ok(vec![ops::sum(ops::add(x, n[0].tensor()?)?, 0)?])
    });
    assert!(schedule.to_string().contains("halvings"), "{schedule}");
    assert!(!schedule.to_string().contains("relu"), "{schedule}");
}

#[test]
fn elementwise_steps_over_the_same_dims_run_together() {
    let (_, schedule) = compiled((8, 8), |_, x| {
        let y = ops::relu(ops::add(ops::relu(x)?, x)?)?;
        let z = ops::add(&y, 1.0f32)?;
        // Read in another order: a new region.
        Ok(vec![ops::relu(ops::add(&z, y.t()?)?)?])
    });
    assert_eq!(steps(&schedule), ["relu", "add"], "{schedule}");
    let Work::Region(first) = &schedule.steps[0].work else { panic!("{schedule}") };
    assert_eq!(first.kernels.len(), 4);
    // One value inside; `y` is needed later as well, but `z` alone takes over no memory, as `y` is read in two places.
    assert_eq!(first.kernels[0].places[1], Place::Scratch(0));
    assert_eq!(first.kernels[1].places[2], Place::Scratch(0));
    assert_eq!(schedule.arenas[0].bytes, 8 * 8 * 4, "{schedule}");
    assert_eq!(schedule.home(&schedule.steps[1].operands[0]), Home::Output(0));
}

#[test]
fn elementwise_steps_run_beside_the_programs_of_a_kernel() {
    let fused = |schedule: &Schedule, step: usize| {
        let Work::Fused(fused) = &schedule.steps[step].work else { panic!("{schedule}") };
        let side = |side: &Side| (side.region.kernels.len(), side.region.copy.is_none());
        (fused.before.as_ref().map(side), fused.after.as_ref().map(side))
    };
    // Before and after a kernel: neither the kernel's operand nor its result has memory.
    let (_, schedule) = compiled(("a", 8), |_, x| {
        let y = ops::add(ops::relu(x)?, x)?;
        Ok(vec![ops::relu(ops::add(ops::sum(y, 1)?, 1.0f32)?)?])
    });
    assert_eq!(steps(&schedule), ["sum"], "{schedule}");
    assert_eq!(fused(&schedule, 0), (Some((2, true)), Some((2, true))));
    assert!(schedule.arenas.is_empty(), "{schedule}");

    // Values that are needed elsewhere have.
    let (_, schedule) = compiled((8, 8), |_, x| {
        let y = ops::relu(x)?;
        let sum = ops::sum(&y, 1)?;
        Ok(vec![ops::relu(&sum)?, y, sum])
    });
    assert_eq!(steps(&schedule), ["sum"], "{schedule}");
    assert_eq!(fused(&schedule, 0), (Some((1, false)), Some((1, false))));

    // What other programs compute is not there yet, and what is read in another order neither.
    let (_, schedule) = compiled((8, 8), |_, x| {
        let y = ops::relu(x)?;
        Ok(vec![ops::add(ops::sum(&y, 1)?, y.slice_tensor([0..8, 0..1])?)?])
    });
    assert_eq!(steps(&schedule), ["sum", "add"], "{schedule}");
    assert_eq!(fused(&schedule, 0), (Some((1, false)), None));
    let (_, schedule) = compiled((8, 8), |_, x| Ok(vec![ops::relu(ops::sum(x, 1)?.t()?)?]));
    assert_eq!(steps(&schedule), ["sum"], "{schedule}");
    let (_, schedule) = compiled((8, 8), |_, x| Ok(vec![ops::sum(ops::relu(x)?.t()?, 1)?]));
    assert_eq!(steps(&schedule).first(), Some(&"relu"), "{schedule}");
}

#[test]
fn on_a_gpu_elementwise_steps_become_part_of_one_kernel() {
    let gpu = DeviceRef::gpu(0);
    let (_, schedule) = compiled_on(gpu, ("a", 8), |_, x| {
        let y = ops::add(ops::relu(x)?, x.slice_tensor([DimSlice::from(..), (0..1).into()])?)?;
        Ok(vec![ops::relu(ops::add(ops::softmax(y, 1)?, 1.0f32)?)?])
    });
    assert_eq!(steps(&schedule), ["softmax"], "{schedule}");
    let Work::Fused(fused) = &schedule.steps[0].work else { panic!("{schedule}") };
    assert!(fused.before.is_some() && fused.after.is_some(), "{schedule}");
    assert!(schedule.arenas.is_empty(), "{schedule}");
    // One element is all of a reduced row; where it is not, the rest is zeros, which the kernel does not go on with.
    let (_, schedule) = compiled_on(gpu, ("a", 8), |_, x| Ok(vec![ops::relu(ops::sum(x, 1)?)?]));
    assert_eq!(steps(&schedule), ["sum"], "{schedule}");
    let (_, schedule) = compiled_on(gpu, ("a", 8), |_, x| Ok(vec![ops::relu(ops::logsoftmax(x, 1)?)?]));
    assert_eq!(steps(&schedule), ["logsoftmax", "relu"], "{schedule}");
    // Nothing is gathered there, and constants are no operands.
    let (_, schedule) = compiled_on(gpu, (8, 8), |_, x| Ok(vec![ops::relu(x.t()?)?]));
    assert!(matches!(schedule.steps[0].work, Work::Kernel(_)), "{schedule}");
    let (_, schedule) = compiled_on(gpu, (8, 8), |_, x| Ok(vec![ops::add(x, 1.5f32)?]));
    let Work::Region(region) = &schedule.steps[0].work else { panic!("{schedule}") };
    assert_eq!(
        region.kernels[0].places[..],
        [Place::Memory(0), Place::Constant(1.5f32.to_bits().into()), Place::Memory(1)]
    );
    // What others read too is computed once, before the kernel; what the kernel writes, it may write for others as well.
    let (_, schedule) = compiled_on(gpu, (8, 8), |_, x| {
        let y = ops::relu(ops::add(x, 1.0f32)?)?;
        let parts = ops::softmax(&y, 1)?;
        Ok(vec![ops::relu(&parts)?, y, parts])
    });
    assert_eq!(steps(&schedule), ["add", "softmax"], "{schedule}");
    let Work::Fused(fused) = &schedule.steps[1].work else { panic!("{schedule}") };
    assert!(
        fused.before.is_none() && fused.after.as_ref().is_some_and(|side| side.region.copy.is_some()),
        "{schedule}"
    );
}

#[test]
fn results_take_the_place_of_operands_that_die() {
    let (_, schedule) = compiled((8, 8), |_, x| {
        let rows = ops::sum(x, 1)?.broadcast_to((8, 8))?;
        let wide = ops::add(x, ops::sum(x.t()?, 1)?)?;
        let again = ops::sum(&wide, 1)?.broadcast_to((8, 8))?;
        Ok(vec![ops::relu(ops::add(ops::add(&wide, &again)?, rows)?)?])
    });
    // `wide` is computed where the result will be.
    let region = schedule.steps.last().unwrap();
    assert_eq!(schedule.home(&region.operands[0]), Home::Output(0), "{schedule}");
    assert_eq!(region.operands[0].view, region.operands.last().unwrap().view);
}

#[test]
fn memory_goes_from_one_dtype_to_another_of_its_size() {
    for device in [DeviceRef::CPU, DeviceRef::gpu(0)] {
        let (_, schedule) = compiled_on(device, (8, 8), |_, x| {
            let ty = TensorType::new(DType::I32, (8, 8), device);
            let integers = ops::custom("t_integers", device, [x], [ty], ())?[0].tensor()?.clone();
            let twice = ops::concat([&integers, &integers], 0)?;
            Ok(vec![ops::relu(ops::cast(twice, DType::F32)?)?])
        });
        assert_eq!(steps(&schedule), ["integers", "copy", "copy", "cast"], "{schedule}");
        let region = &schedule.steps[3];
        // The integers lie where the result will be, and the code that reads them knows that they are integers.
        assert!(region.operands.iter().all(|operand| schedule.home(operand) == Home::Output(0)), "{schedule}");
        let Work::Region(region) = &region.work else { panic!("{schedule}") };
        assert_eq!(region.dtypes[..], [DType::I32, DType::F32]);
    }
}

#[test]
fn a_loaded_buffer_is_copied_only_if_it_changes_before_it_is_read() {
    let build = |late: bool| {
        compiled([4], |graph, _| {
            let Value::Buffer(buffer) = &graph.inputs()[1] else { return Ok(vec![]) };
            let old = buffer.load()?;
            let early = ops::relu(&old)?;
            let none: [TensorType; 0] = [];
            ops::inplace_custom("t_bump", DeviceRef::CPU, buffer, none, Parameters::new())?;
            Ok(vec![if late { ops::add(&early, &old)? } else { early }])
        })
    };
    assert_eq!(steps(&build(false).1), ["relu", "bump"]);
    // What is done with the copy does not wait for the change.
    assert_eq!(steps(&build(true).1), ["copy", "relu", "bump"]);
}

/// Steps that touch the given buffers, which are as large as `sizes` says.
fn schedule_of(sizes: &[Dim], touched: &[Vec<usize>]) -> Schedule {
    let mut schedule = Schedule::default();
    let buffers: Vec<_> =
        sizes.iter().map(|size| schedule.buffer(Home::Arena, DeviceRef::CPU, DType::U8, size.clone())).collect();
    for step in touched {
        let operand = |i: &usize| {
            let i = i % buffers.len();
            Operand { buffer: buffers[i], view: View::contiguous(std::slice::from_ref(&sizes[i])) }
        };
        let operands: Operands = step.iter().map(operand).collect();
        let location = std::panic::Location::caller();
        schedule.steps.push(Step {
            work: Work::Sizes(Shape::default()),
            operands,
            device: DeviceRef::CPU,
            location,
            params: SmallVec::new(),
        });
    }
    schedule
}

proptest! {
    #[test]
    fn buffers_that_live_together_do_not_overlap(
        sizes in prop::collection::vec((0i64..500, prop::bool::weighted(0.3)), 1..12),
        touched in prop::collection::vec(prop::collection::vec(0usize..12, 1..4), 1..20),
    ) {
        let sizes: Vec<Dim> = sizes
            .into_iter()
            .map(|(size, symbolic)| if symbolic { Dim::from("n") * size } else { Dim::from(size) })
            .collect();
        let mut schedule = schedule_of(&sizes, &touched);
        memory::place(&mut schedule);
        let lives: Vec<Option<(usize, usize)>> = (0..sizes.len())
            .map(|buffer| {
                let uses = |step: &&Step| step.operands.iter().any(|o| o.buffer.index() == buffer);
                let steps = || schedule.steps.iter().enumerate().filter(|(_, step)| uses(step)).map(|(i, _)| i);
                steps().next().zip(steps().next_back())
            })
            .collect();
        let mut total = 0;
        for (i, a) in schedule.buffers.iter().enumerate() {
            let Some((first, last)) = lives[i] else { continue };
            let size = sizes[i].as_static().unwrap_or(0);
            if let Home::At(start) = a.home {
                prop_assert_eq!(start % 64, 0);
                prop_assert!(start + size <= schedule.arenas[0].bytes);
            }
            total += size + 63;
            for (j, b) in schedule.buffers.iter().enumerate().skip(i + 1) {
                let Some((other_first, other_last)) = lives[j] else { continue };
                if last < other_first || other_last < first {
                    continue;
                }
                match (a.home, b.home) {
                    (Home::At(at), Home::At(other)) => {
                        let other_size = sizes[j].as_static().unwrap_or(0);
                        let apart = at + size <= other || other + other_size <= at || size == 0 || other_size == 0;
                        prop_assert!(apart, "{}", schedule);
                    }
                    (Home::Slot(slot), Home::Slot(other)) => prop_assert!(slot != other, "{}", schedule),
                    (Home::At(_), Home::Slot(_)) | (Home::Slot(_), Home::At(_)) => {}
                    _ => prop_assert!(false, "unplaced: {}", schedule),
                }
            }
        }
        prop_assert!(schedule.arenas[0].bytes <= total);
    }
}

#[test]
fn a_long_axis_beside_few_others_is_reduced_in_parts() {
    let names = |shape: Shape, axis: i64| {
        let (_, schedule) = compiled(shape, |_, x| Ok(vec![ops::prod(x, axis)?]));
        steps(&schedule).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names((1, 1 << 20).into(), 1), ["prod", "prod"]);
    assert_eq!(names((1 << 16, 64).into(), 0), ["prod_columns", "prod_columns"]);
    assert_eq!(names((3, 1 << 14, 64).into(), 1), ["prod_columns", "prod_columns"]);
    // No equal parts: what remains is reduced with their results, but of several matrices.
    assert_eq!(names((1, 1_048_573).into(), 1), ["prod", "copy", "copy", "prod"]);
    assert_eq!(names((17_519, 64).into(), 0), ["prod_columns", "copy", "copy", "prod_columns"]);
    assert_eq!(names((3, 1_048_573).into(), 1), ["prod"]);
    // Enough programs, too little work, a size that is not known.
    assert_eq!(names((64, 1 << 20).into(), 1), ["prod"]);
    assert_eq!(names((1, 1 << 16).into(), 1), ["prod"]);
    assert_eq!(names(("n", 1 << 20).into(), 1), ["prod"]);
}
