//! What eager ops allocate, and that a loop of them keeps nothing: in a process of its own, since a cache of keys and values that grows in
//! another test returns what the allocator keeps.

// What the macros write names this crate `max`, as in a user's crate.
extern crate max_nn as max;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use max::functional::{self as F, functional};
use max::tensor::Tensor;

struct Counting;

thread_local! {
    /// How often this thread has allocated, and the bytes that it has not freed.
    static COUNTS: Cell<(usize, isize)> = const { Cell::new((0, 0)) };
}

fn note(allocations: usize, bytes: isize) {
    COUNTS.with(|counts| counts.set((counts.get().0 + allocations, counts.get().1 + bytes)));
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as isize);
        // SAFETY: by the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note(0, -(layout.size() as isize));
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How often this allocates, once it was run before.
fn allocations(mut what: impl FnMut()) -> usize {
    (0..10).for_each(|_| what());
    let before = COUNTS.get().0;
    (0..100).for_each(|_| what());
    (COUNTS.get().0 - before).div_ceil(100)
}

#[test]
fn an_op_allocates_its_node_and_its_result() -> Result<(), max::Error> {
    max_kernels::link();
    let x = Tensor::constant([1.0f32, -2.0, 3.0, -4.0, 5.0])?;
    let model = max::nn::compile("relu", [x.ty()], |x| F::relu(&x[0]))?;
    let input = x.driver_tensor()?;
    let executed = allocations(|| drop(model.execute(&input)));
    // The node, and the list of the results' dims where they are many.
    assert!(allocations(|| drop(F::relu(&x).map(|y| y.realize()))) <= executed + 1, "beside {executed}");
    assert_eq!(allocations(|| drop(F::relu(&x))), 1);
    let region = allocations(|| drop(functional(|| Ok(&x * &x + &x))));
    assert!(region <= executed + 2, "{region} beside {executed}");
    Ok(())
}

/// A million ops, without what their results were.
#[test]
fn a_loop_of_ops_keeps_nothing() -> Result<(), max::Error> {
    max_kernels::link();
    let mut y = Tensor::ones([5])?;
    let turns = |y: &mut Tensor, count: usize| (0..count).for_each(|i| *y = &*y * 0.5 + (i % 1000) as f64);
    turns(&mut y, 10_000);
    let before = COUNTS.get().1;
    turns(&mut y, 500_000);
    let more = COUNTS.get().1 - before;
    assert!(more.abs() < 1 << 16, "{more} bytes more");
    assert!(y.to_vec::<f32>()?.iter().all(|y| (1995.0..2000.0).contains(y)));
    Ok(())
}
