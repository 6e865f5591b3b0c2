//! What an execution allocates: its results and nothing else.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::kernels::*;
use max::driver::DeviceRef;
use max::dtype::DType;
use max::graph::{Graph, ops};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// The bytes that this thread has allocated and not freed, and the most that it had.
    static BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count_bytes(bytes: isize) {
    BYTES.with(|count| {
        let (now, most) = count.get();
        count.set((now + bytes, most.max(now + bytes)));
    });
}

/// The most bytes that this thread has at once for something, beyond those that it had before.
pub fn most_bytes(what: impl FnOnce()) -> usize {
    let before = BYTES.with(|count| {
        let (now, _) = count.get();
        count.set((now, now));
        now
    });
    what();
    (BYTES.with(Cell::get).1 - before) as usize
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        count_bytes(layout.size() as isize);
        // SAFETY: by the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count_bytes(-(layout.size() as isize));
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn an_execution_allocates_its_results_alone() {
    let one = Graph::build("relu", [f32s([5])], |_, inputs| ops::relu(&inputs[0])).unwrap();
    let symbolic = Graph::build("chain", [f32s(("n", "m")), f32s(("m",))], |_, inputs| {
        let [x, y] = [&inputs[0], &inputs[1]].map(|v| v.tensor().unwrap().clone());
        let rows = ops::softmax(ops::add(&x, &y)?, 0)?;
        Ok([ops::sum(&rows, 1)?, rows.t()? * 2.0])
    });
    // The first execution packs the constant, a transpose, for all. One program, for threads are invited by allocations.
    let product = Graph::build("product", [f32s(("n", 32))], |graph, inputs| {
        ops::matmul(&inputs[0], ops::constant(graph, count(&[16, 32]), DType::F32, DeviceRef::CPU)?.t()?)
    });
    let cases = [
        (one, vec![count(&[5])], 1),
        (symbolic.unwrap(), vec![count(&[6, 7]), count(&[7])], 2),
        (product.unwrap(), vec![count(&[4, 32])], 1),
    ];
    for (graph, inputs, results) in cases {
        let model = load(&graph);
        // The first execution fills the caches of the driver's memory.
        drop(model.execute(&inputs).unwrap());
        let before = ALLOCATIONS.with(Cell::get);
        let outputs = model.execute(&inputs).unwrap();
        let count = ALLOCATIONS.with(Cell::get) - before;
        assert_eq!(outputs.len(), results);
        // The list, and for each result the handle that its views share.
        assert_eq!(count, 1 + results, "{}", model.signature());
    }
}
