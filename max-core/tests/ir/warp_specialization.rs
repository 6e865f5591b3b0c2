//! Loops for which a warp of its own asks for tiles, executed: the ring of stages over several programs and runs of a loop, operands
//! that the device cannot copy, and what makes a kernel one whose warps have roles.

use max_core::dtype::f16;
use max_core::kernel::ir::parse;
use max_core::kernel::ptx::{self, Module, Options, Target};
use ptx_sim::Stats;

use crate::execute::{Tensor, execute_as};
use crate::mma::value;

const SM_90A: Target = Target { sm: 90, arch_specific: true };

/// Products of matrices, `taps` times one of each of two batches, which a chain of loops goes through: the sum is over
/// all of them.
fn source([rows, columns, inner]: [usize; 3], [c, loads]: [&str; 2]) -> String {
    format!(
        "kernel \"taps\" program grid(c.0 / {rows}, c.1 / {columns}) (out c: {c}[2], in a: f16[3], in b: f16[3])
         params(k: int, taps: int) {{
            %0: i64 = program_id 0 %1: i64 = program_id 1
            %2: i64 = const {rows} %3: i64 = mul %0, %2
            %4: i64 = const {columns} %5: i64 = mul %1, %4
            %6: f32 = const 0.0
            %7: tile<f32, {rows}x{columns}> = tile_full %6
            %8: var<f32, {rows}x{columns}> = var %7
            %9: i64 = const 0 %10: i64 = param k %11: i64 = const {inner}
            %18: i64 = const 1 %19: i64 = param taps
            for %9 to %19 step %18 |%20: i64| {{
                %21: bool = lt %20, %18
                %22: i64 = if %21 {{ %23: i64 = sub %19, %18 yield %23 }} else {{ %24: i64 = sub %20, %18 yield %24 }}
                for %9 to %10 step %11 |%12: i64| {{
                    {loads}
                    %15: tile<f32, {rows}x{columns}> = get %8
                    %16: tile<f32, {rows}x{columns}> = dot %13, %14, %15
                    set %8 = %16
                }}
            }}
            %17: tile<f32, {rows}x{columns}> = get %8
            tile_store c[%3, %5] = %17
        }}",
    )
}

fn plain(tile: [usize; 3]) -> String {
    let [rows, columns, inner] = tile;
    let loads = format!(
        "%13: tile<f32, {rows}x{inner}> = tile_load a[%22, %3, %12]
         %14: tile<f32, {inner}x{columns}> = tile_load b[%22, %12, %5]"
    );
    source(tile, ["f32", &loads])
}

/// Multiplies on one or more blocks, compares, and gives what was counted; rows of the second factors are so much longer than they
/// have elements.
#[track_caller]
fn multiply([m, n, k, taps]: [usize; 4], tile: [usize; 3], longer: usize, blocks: u32) -> Stats {
    let matrices = |rows: usize, columns: usize, longer: usize, seed: usize| {
        let row = columns + longer;
        let at = |i: usize| match i % row.max(1) < columns {
            true => f16::from_f32(value(seed + i / row * columns + i % row)),
            false => f16::NAN,
        };
        let all: Vec<f16> = (0..(taps * rows * row).max(1)).map(at).collect();
        let mut tensor = Tensor::new(&all, &[taps as i64, rows as i64, columns as i64]);
        tensor.strides = vec![(rows * row) as i64, row as i64, 1];
        tensor
    };
    let (a, b) = (|i: usize| value(i), |i: usize| value(5 + i));
    let expected: Vec<f32> = (0..m * n)
        .map(|i| {
            let (row, column) = (i / n, i % n);
            let of = |t: usize| (0..k).map(move |l| a((t * m + row) * k + l) * b((t * k + l) * n + column));
            (0..taps).flat_map(of).sum()
        })
        .collect();
    let c = Tensor::new(&vec![f32::NAN; m * n], &[m as i64, n as i64]);
    let mut tensors = [c, matrices(m, k, 0, 0), matrices(k, n, longer, 5)];
    let grid = [m.div_ceil(tile[0]) as i64, n.div_ceil(tile[1]) as i64];
    let stats = execute_as(Options::new(SM_90A), &plain(tile), &mut tensors, &[k as u64, taps as u64], &grid, blocks);
    assert!(tensors[0].values::<f32>() == expected, "{m}x{n}x{k}, {taps} times, in {tile:?}, {longer} longer");
    stats
}

#[test]
fn the_ring_goes_on_over_programs_and_runs_of_the_loop() {
    // Fewer steps than stages, as many, and more; none; one program and several for each block.
    for k in [0, 8, 32, 64, 72, 192, 200] {
        for taps in [0, 1, 2, 3] {
            multiply([64, 64, k, taps], [64, 64, 32], 0, 1);
        }
        multiply([72, 136, k, 2], [64, 64, 32], 0, 1);
        multiply([72, 136, k, 2], [64, 64, 32], 0, 4);
        multiply([200, 40, k, 1], [64, 64, 32], 0, 3);
    }
    for (tile, k) in [([128, 128, 64], 520), ([128, 256, 64], 520), ([128, 64, 64], 400), ([64, 128, 16], 150)] {
        multiply([136, 264, k, 1], tile, 0, 2);
        multiply([40, 24, k, 2], tile, 0, 1);
    }
}

#[test]
fn what_the_device_cannot_copy_the_consumers_do() {
    for (k, longer) in [(8, 1), (200, 1), (200, 3), (0, 1)] {
        let stats = multiply([72, 136, k, 2], [64, 64, 32], longer, 2);
        assert_eq!(stats.count("cp.async.bulk.tensor"), 0);
        assert_eq!(stats.count("wgmma.mma_async") > 0, k > 0);
        multiply([136, 40, k, 1], [128, 256, 64], longer, 1);
    }
}

#[test]
fn steps_need_no_barrier_of_the_block() {
    let of = |k: usize| multiply([64, 64, k, 1], [64, 64, 32], 0, 1);
    assert_eq!(of(32).barriers, of(640).barriers);
    assert_eq!(of(640).bank_conflicts, 0);
    let by_threads = |k: usize| multiply([64, 64, k, 1], [64, 64, 32], 1, 1).barriers;
    assert_eq!(by_threads(640) - by_threads(320), 10);
}

fn write(source: &str, target: Target) -> Module {
    ptx::write(&parse(source).unwrap_or_else(|e| panic!("{e}")), Options::new(target)).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn which_kernels_have_roles() {
    let own = write(&plain([128, 256, 64]), SM_90A);
    assert_eq!((own.block_size, own.resident), (384, Some(1)));
    assert!(own.text.contains(".maxntid 384, 1, 1\n.minnctapersm 1\n"), "{}", own.text);
    // 168 registers at the start; 128 threads keep 40, and 256 get the others.
    assert!(own.text.contains("setmaxnreg.inc.sync.aligned.u32 232;"), "{}", own.text);
    assert!(own.text.contains("setmaxnreg.dec.sync.aligned.u32 40;"), "{}", own.text);
    let small = write(&plain([64, 64, 32]), SM_90A);
    assert_eq!((small.block_size, small.resident), (384, Some(2)));
    // Two blocks: 80 at the start.
    assert!(small.text.contains("setmaxnreg.inc.sync.aligned.u32 96;"), "{}", small.text);

    let without = |source: &str, target: Target| {
        let module = write(source, target);
        assert_eq!((module.block_size, module.resident), (256, None));
        assert!(!module.text.contains("setmaxnreg") && !module.text.contains("bar.sync 1"), "{}", module.text);
    };
    without(&plain([64, 64, 32]), Target { sm: 80, arch_specific: false });
    without(&plain([64, 64, 32]), Target { sm: 90, arch_specific: false });
    // Where a tile is stands in memory: a producer would not know when that is written.
    let loads = "%25: f32 = load a[%22, %9, %9] %26: i64 = cast %25
         %13: tile<f32, 64x32> = tile_load a[%26, %3, %12] %14: tile<f32, 32x64> = tile_load b[%22, %12, %5]";
    without(&source([64, 64, 32], ["f32", loads]), SM_90A);
    // The loop does something else with its sums.
    let used = plain([64, 64, 32]).replace("set %8 = %16", "%25: tile<f32, 64x64> = tile_cast %16 set %8 = %25");
    without(&used, SM_90A);
}
