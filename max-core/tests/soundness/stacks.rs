//! Tiles that are larger than a thread's stack.

use max::kernel::prelude::*;

use max::kernel::{Form, Kernel};

use crate::support::{How, Operand, floats, hosts, results, run, tensor};

#[kernel(op = "soundness_r20", dtypes(T = [f32]), tile(R = 1024, C = 1024))]
fn large<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let [i, j] = program_id();
    let v = x.tile::<R, C>(i, j).load();
    y.tile::<R, C>(i, j).write((v + v.row_max()).exp() * 2.0);
}

/// Many tiles at a time, of sizes that nothing names.
#[kernel(op = "soundness_many_tiles", dtypes(T = [f32]))]
fn many<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let [i, j] = program_id();
    let a = x.tile::<512, 512>(i, j).load();
    let b = a * 2.0;
    let c = a + b;
    let d = b + c;
    let mut e = d + a;
    for k in range(0, x.dim(0), 512) {
        e = e + x.tile::<512, 512>(k, k).load() * a;
    }
    y.tile::<512, 512>(i, j).write(a + b + c + d + e);
}

/// The tiles of these are known from their code alone: no result has a part of such a size, and nothing names one.
#[kernel(op = "soundness_tile_of_one", dtypes(T = [f32]))]
fn one<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    y.rows::<1, 1>(i).write((x.tile::<1, 1048576>(i, 0).load() + 1.0).row_sum());
}

#[kernel(op = "soundness_tile_counted", dtypes(T = [f32]), grid(x.dim(0) / 1024))]
fn counted<T: Float>(y: Out<i64, 1>, x: In<T, 2>) {
    let i = program_id(0);
    let v = x.tile::<1024, 1024>(i, 0).load() * 2.0;
    let largest = (v + v.row_sum()).row_max();
    largest.map(|v| {
        y.atomic_add([0], v as i64);
        v
    });
}

#[kernel]
fn sum_of_tile<T: Float>(x: In<T, 2>, i: i64) -> Tile<T, 1, 1> {
    (x.tile::<1, 1048576>(i, 0).load() + 1.0).row_sum()
}

#[kernel(op = "soundness_tile_of_a_function", dtypes(T = [f32]))]
fn of_a_function<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    y.rows::<1, 1>(i).write(sum_of_tile(x, i + 0));
}

/// The tiles of a program are as many as any stack has room for, or not many more.
#[kernel(op = "soundness_small_tiles", dtypes(T = [f32]), tile(R = 128, C = 250))]
fn small<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let [i, j] = program_id();
    let v = x.tile::<R, C>(i, j).load();
    y.tile::<R, C>(i, j).write((v + v.row_max()).exp() * 2.0);
}

#[kernel]
fn beside_a_tile<T: Float>(v: T) -> T {
    let largest = Tile::<T, 1024, 1024>::full(v).row_max();
    largest.exp();
    v + 1.0
}

#[kernel(op = "soundness_tile_of_elements", dtypes(T = [f32]))]
fn of_elements<T: Float>(x: T) -> T {
    beside_a_tile(x)
}

#[kernel(op = "soundness_too_large", dtypes(T = [f32]))]
fn too_large<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    y.rows::<8192, 1>(i).write(x.tile::<8192, 9600>(i, 0).load().row_sum());
}

#[test]
fn tiles_may_be_larger_than_a_stack() {
    let x = vec![-1.0; 1024 * 1024];
    let expected = 2.0 * (-2.0_f32).exp();
    for how in hosts() {
        let operands = [results(&[1024, 1024]), floats(&[1024, 1024], &x)];
        let after = run::<large>(how, &operands, &[1, 1]).unwrap_or_else(|e| panic!("{e}"));
        let after = after[0].values::<f32>();
        assert!(after.iter().all(|v| (v - expected).abs() < 1e-6), "{how:?}: {}", after[0]);
    }
}

#[test]
fn many_tiles_may_be_larger_than_a_stack_together() {
    let x = vec![1.0; 1024 * 512];
    // 1, 2, 3, 5 and 6, and one for each of two tiles of which the second one is outside.
    let expected = 1.0 + 2.0 + 3.0 + 5.0 + 6.0 + 1.0;
    for how in hosts() {
        let operands = [results(&[1024, 512]), floats(&[1024, 512], &x)];
        let after = run::<many>(how, &operands, &[2, 1]).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(after[0].values::<f32>(), vec![expected; 1024 * 512], "{how:?}");
    }
}

#[test]
fn tiles_that_no_result_tells_of_may_be_larger_than_a_stack() {
    let x = vec![1.0; 1024 * 1024];
    let row = floats(&[1, 1 << 20], &x);
    for how in hosts() {
        let sums =
            |after: Result<Vec<Operand>, String>| after.unwrap_or_else(|e| panic!("{how:?}: {e}"))[0].values::<f32>();
        let operands = [results(&[1, 1]), row.clone()];
        assert_eq!(sums(run::<one>(how, &operands, &[1])), [(2 << 20) as f32], "{how:?}");
        assert_eq!(sums(run::<of_a_function>(how, &operands, &[1])), [(2 << 20) as f32], "{how:?}");
        let operands = [tensor(&[1], &[0_i64], 1), floats(&[1024, 1024], &x)];
        let after = run::<counted>(how, &operands, &[1]).unwrap_or_else(|e| panic!("{how:?}: {e}"));
        assert_eq!(after[0].values::<i64>(), [1024 * (2 + 2 * 1024)], "{how:?}");
    }
}

#[test]
fn other_tiles_fit_the_stack_of_any_thread() {
    let x = vec![-1.0; 128 * 250];
    let expected = 2.0 * (-2.0_f32).exp();
    for how in hosts() {
        let operands = [results(&[128, 250]), floats(&[128, 250], &x)];
        let after =
            std::thread::Builder::new().stack_size(2 << 20).spawn(move || run::<small>(how, &operands, &[1, 1]));
        let after = after.expect("a thread").join().expect("no panic").unwrap_or_else(|e| panic!("{how:?}: {e}"));
        assert!(after[0].values::<f32>().iter().all(|v| (v - expected).abs() < 1e-6), "{how:?}");
    }
}

#[test]
fn tiles_beyond_the_limit_are_an_error_that_names_it() {
    for how in hosts() {
        // A native build has lower levels of those kernels alone that have none for this machine's own.
        let instances = <of_elements as Kernel>::def().instances.as_slice();
        let is_compiled =
            matches!(how, How::Host(Form::Compiled(level)) if instances.iter().any(|instance| instance.level <= level));
        let limit = if cfg!(debug_assertions) { 64 << 10 } else { 512 << 10 };
        let after = run::<of_elements>(how, &[floats(&[2], &[1.0, 2.0]), results(&[2])], &[1]);
        let error = after.map(|after| after[1].values::<f32>()).map_err(|e| e.to_string());
        match is_compiled {
            true => {
                let error = error.unwrap_err();
                let expected = format!(
                    "`soundness_tile_of_elements` holds 4202496 bytes of tiles in a program, and the limit is {limit}"
                );
                assert!(error.contains(&expected), "{error}");
                let error = run::<too_large>(how, &[results(&[1, 1]), floats(&[1, 1], &[1.0])], &[1]).err();
                let error = error.expect("no room for 300 MiB of tiles");
                assert!(error.contains("`soundness_too_large` holds 314605568 bytes"), "{error}");
                assert!(error.contains(&format!("and the limit is {}", 256 << 20)), "{error}");
            }
            false => assert_eq!(error, Ok(vec![2.0, 3.0])),
        }
    }
}
