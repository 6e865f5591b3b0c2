//! How the PTX of kernels uses memory, as the simulator counts it: how often each element is read and written, and in
//! what units; and how often threads wait for the same bank of shared memory.

use max::dtype::DType;
use max::kernel::ptx::{Options, Target};
use ptx_sim::Stats;

use crate::case::Draw;

use crate::simulator::{Compiled, TARGETS, with_tf32, write_as};
use crate::table;

/// What is counted when a kernel runs once, on contiguous operands; and the bytes of each operand. Of sectors that are
/// not used as a whole, only those that are read.
fn count(kernel: &str, dtypes: &[DType], sizes: [i64; 5]) -> (Stats, Vec<u64>) {
    count_as(Options::new(TARGETS[0]), kernel, dtypes, sizes)
}

/// The same with the PTX of a target.
fn count_on(target: Target, kernel: &str, dtypes: &[DType], sizes: [i64; 5]) -> (Stats, Vec<u64>) {
    count_as(Options::new(target), kernel, dtypes, sizes)
}

/// The same with PTX that is written in some way.
fn count_as(options: Options, kernel: &str, dtypes: &[DType], sizes: [i64; 5]) -> (Stats, Vec<u64>) {
    let cases = table::cases();
    let case = cases.iter().find(|case| case.kernel == kernel).expect("a kernel of the table");
    let draw = Draw { sizes: sizes.to_vec(), rank: 1, layouts: Vec::new(), limit: i64::MAX, seed: 5 };
    let problem = case.problem(dtypes, &draw);
    let bytes = problem.operands.iter().map(|t| (t.len() * t.dtype.size_in_bytes()) as u64).collect();
    let written = write_as(&problem, options, false).expect("PTX");
    let lines: Vec<String> = written.text.lines().map(str::to_owned).collect();
    let compiled = Compiled::new(written).expect("PTX that the simulator knows");
    let mut counts = compiled.run(&problem, &mut problem.operands.clone()).expect("no fault");
    let mut stats = counts.pop().expect("one launch");
    stats.excess_sectors_by_line.retain(|&line, _| !lines[line as usize - 1].contains("st.global"));
    (stats, bytes)
}

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

#[test]
fn rows_are_read_once_and_written_once() {
    for dtype in FLOATS {
        // Around a unit of 16 bytes, and as long as there is room for.
        for columns in [1, 7, 8, 100, 1000, 4096, 8192] {
            for kernel in ["softmax", "logsoftmax", "layer_norm", "rms_norm"] {
                let rows = if columns > 1000 { 2 } else { 5 };
                let (stats, bytes) = count(kernel, &[dtype], [rows, columns, 1, 1, 1]);
                // Weights are read once for every row.
                let weights: u64 = bytes[2..].iter().sum::<u64>() * rows as u64;
                assert_eq!(stats.global_load_bytes, bytes[1] + weights, "{kernel} of {dtype:?}, {columns} columns");
                assert_eq!(stats.global_store_bytes, bytes[0], "{kernel} of {dtype:?}, {columns} columns");
                assert_eq!(stats.bank_conflicts, 0, "{kernel} of {dtype:?}: {:?}", stats.bank_conflicts_by_line);
            }
        }
    }
}

#[test]
fn rows_beyond_the_room_are_read_again() {
    // Softmax reads a row for its largest element, for the sum, and for the result.
    let (stats, bytes) = count("softmax", &[DType::F32], [1, 8193, 1, 1, 1]);
    assert_eq!((stats.global_load_bytes, stats.global_store_bytes), (3 * bytes[1], bytes[0]));
    let (stats, bytes) = count("layer_norm", &[DType::F32], [1, 8193, 1, 1, 1]);
    let weights = bytes[2] + bytes[3];
    assert_eq!((stats.global_load_bytes, stats.global_store_bytes), (3 * bytes[1] + weights, bytes[0]));
}

#[test]
fn products_read_units_of_16_bytes_without_conflicts() {
    for (dtype, target) in FLOATS.into_iter().flat_map(|dtype| [(dtype, TARGETS[0]), (dtype, TARGETS[1])]) {
        let (stats, bytes) = count_on(target, "matmul", &[dtype], [128, 64, 256, 1, 1]);
        assert_eq!(stats.count("ld.global"), 0, "{dtype:?}, {target}");
        let of_warpgroups = target == TARGETS[1] && dtype != DType::F32;
        // A tile has 64 rows, or all 128.
        let units = bytes[1] / 16 + if of_warpgroups { 1 } else { 2 } * bytes[2] / 16;
        assert!(stats.excess_sectors_by_line.is_empty(), "{dtype:?}, {target}: {:?}", stats.excess_sectors_by_line);
        assert_eq!(stats.bank_conflicts, 0, "{dtype:?}, {target}: {:?}", stats.bank_conflicts_by_line);
        // On sm_90a the device copies boxes.
        assert_eq!(stats.count("wgmma.mma_async") > 0, of_warpgroups, "{dtype:?}, {target}");
        let by_threads = if of_warpgroups { 0 } else { units };
        assert_eq!(stats.count("cp.async.cg"), by_threads, "{dtype:?}, {target}: {:?}", stats.by_kind);
        assert_eq!(stats.count("cp.async.bulk.tensor") > 0, of_warpgroups, "{dtype:?}, {target}");
        assert_eq!(stats.global_load_bytes, 16 * units, "{dtype:?}, {target}");
        // Results are written in whole units too, and sectors of memory as a whole.
        assert_eq!(
            stats.count("st.global"),
            if dtype == DType::F32 { 128 * 64 } else { bytes[0] / 16 },
            "{dtype:?}, {target}"
        );
        // Warpgroups read their factors as they lie in shared memory.
        assert!(!of_warpgroups || stats.count("ldmatrix") == 0, "{dtype:?}, {target}");
    }
}

#[test]
fn products_of_bytes_move_units_of_16_bytes_without_conflicts() {
    let (stats, bytes) = count("matmul_integer", &[DType::I8, DType::U8], [128, 64, 256, 1, 1]);
    assert_eq!((stats.count("ld.global"), stats.count("st.global")), (0, bytes[0] / 16), "{:?}", stats.by_kind);
    assert_eq!(stats.count("cp.async.cg"), bytes[1] / 16 + 2 * bytes[2] / 16, "{:?}", stats.by_kind);
    assert!(stats.excess_sectors_by_line.is_empty(), "{:?}", stats.excess_sectors_by_line);
    assert_eq!(stats.bank_conflicts, 0, "{:?}", stats.bank_conflicts_by_line);
}

#[test]
fn products_of_8_bit_floats_read_units_of_16_bytes_without_conflicts() {
    for target in [TARGETS[1], TARGETS[2]] {
        let kernel = "matmul_static_scaled_float8";
        let (stats, bytes) = count_on(target, kernel, &[DType::F8E4M3FN], [128, 64, 256, 1, 1]);
        // Each thread reads both scales.
        assert_eq!(stats.count("ld.global"), 2 * 256 * 2, "{target}: {:?}", stats.by_kind);
        assert_eq!(stats.count("cp.async.cg"), bytes[1] / 16 + 2 * bytes[2] / 16, "{target}: {:?}", stats.by_kind);
        assert!(stats.excess_sectors_by_line.is_empty(), "{target}: {:?}", stats.excess_sectors_by_line);
        assert_eq!(stats.bank_conflicts, 0, "{target}: {:?}", stats.bank_conflicts_by_line);
    }
}

#[test]
fn products_of_tf32_read_units_of_16_bytes_without_conflicts() {
    for target in TARGETS {
        for (kernel, sizes) in [("matmul", [128, 64, 256, 1, 1]), ("attention", [64, 192, 64, 1, 0])] {
            let (stats, _) = count_as(with_tf32(target), kernel, &[DType::F32], sizes);
            assert_eq!(stats.count("ld.global"), 0, "{kernel}, {target}");
            assert!(stats.count("mma") > 0 && stats.count("ldmatrix") > 0, "{kernel}, {target}: {:?}", stats.by_kind);
            assert!(stats.excess_sectors_by_line.is_empty(), "{kernel}: {:?}", stats.excess_sectors_by_line);
            assert_eq!(stats.bank_conflicts, 0, "{kernel}, {target}: {:?}", stats.bank_conflicts_by_line);
        }
    }
}

#[test]
fn attention_reads_units_of_16_bytes_without_conflicts() {
    for (dtype, target) in [(DType::F16, TARGETS[0]), (DType::BF16, TARGETS[0]), (DType::BF16, TARGETS[1])] {
        for size in [64, 128, 256] {
            let (stats, _) = count_on(target, "attention", &[dtype], [64, 192, size, 1, 0]);
            assert_eq!(stats.count("ld.global"), 0, "{dtype:?}, {size}");
            let products = if target == TARGETS[1] { "wgmma.mma_async" } else { "mma" };
            assert!(stats.count(products) > 0, "{dtype:?}, {size}");
            let uncoalesced = stats.excess_sectors_by_line;
            assert!(uncoalesced.is_empty(), "{dtype:?}, {size}: {uncoalesced:?}");
            assert_eq!(stats.bank_conflicts, 0, "{dtype:?}, {size}: {:?}", stats.bank_conflicts_by_line);
        }
    }
}

#[test]
fn elementwise_kernels_read_and_write_units_of_16_bytes() {
    // A thread's elements of the operand with the largest ones make 16 bytes, and the others follow.
    for (kernel, dtypes, elements) in [
        ("add", &[DType::F32][..], 4),
        ("add", &[DType::BF16], 8),
        ("add", &[DType::I64], 2),
        ("copy", &[DType::U16], 8),
        ("greater", &[DType::F32], 4),
        ("exp", &[DType::F32], 4),
        ("cast", &[DType::F16, DType::F32], 4),
    ] {
        let n = 2048;
        let (stats, bytes) = count(kernel, dtypes, [n, 1, 1, 1, 1]);
        let reads = bytes.len() as u64 - 1;
        let n = n as u64;
        assert_eq!(stats.count("ld.global"), reads * n / elements, "{kernel} of {dtypes:?}: {:?}", stats.by_kind);
        assert_eq!(stats.count("st.global"), n / elements, "{kernel} of {dtypes:?}: {:?}", stats.by_kind);
        assert_eq!(stats.excess_sectors, 0, "{kernel} of {dtypes:?}");
        // Each is read once and written once, with a rest that makes no unit.
        let (stats, bytes) = count(kernel, dtypes, [1031, 1, 1, 1, 1]);
        assert_eq!(stats.global_load_bytes + stats.global_store_bytes, bytes.iter().sum::<u64>(), "{kernel}");
    }
}
