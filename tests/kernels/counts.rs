//! How the PTX of kernels uses memory, as the simulator counts it: how often each element is read and written, and in
//! what units; and how often threads wait for the same bank of shared memory.

use max::dtype::DType;
use max::kernel::ParamArg;
use max::kernel::ptx::{Options, Target};
use ptx_sim::Stats;

use crate::case::{Draw, Param};
use crate::simulator::{Compiled, TARGETS, Tiles, Way, with_tf32};
use crate::table;

/// What is counted when a kernel runs once, on contiguous operands, with the right result; and the bytes of each operand.
fn count(kernel: &str, dtypes: &[DType], sizes: [i64; 5]) -> (Stats, Vec<u64>) {
    count_as(Way::new(Options::new(TARGETS[0])), kernel, dtypes, sizes)
}

/// The same with the PTX of a target.
fn count_on(target: Target, kernel: &str, dtypes: &[DType], sizes: [i64; 5]) -> (Stats, Vec<u64>) {
    count_as(Way::new(Options::new(target)), kernel, dtypes, sizes)
}

/// The same with PTX that is written in some way.
fn count_as(way: Way, kernel: &str, dtypes: &[DType], sizes: [i64; 5]) -> (Stats, Vec<u64>) {
    count_with(way, kernel, dtypes, sizes, &[])
}

/// The same with these parameters, if there are any.
fn count_with(way: Way, kernel: &str, dtypes: &[DType], sizes: [i64; 5], params: &[Param]) -> (Stats, Vec<u64>) {
    let cases = table::cases();
    let case = cases.iter().find(|case| case.kernel == kernel).expect("a kernel of the table");
    let draw = Draw { sizes: sizes.to_vec(), rank: 1, layouts: Vec::new(), limit: i64::MAX, seed: 5 };
    let mut problem = case.problem(dtypes, &draw);
    if !params.is_empty() {
        problem.params = params.to_vec();
    }
    let bytes = problem.operands.iter().map(|t| (t.len() * t.dtype.size_in_bytes()) as u64).collect();
    let compiled = Compiled::new(way.write(&problem).expect("PTX")).expect("PTX that the simulator knows");
    let (mut counts, _) = compiled.check(case, &problem, way.error()).expect("the right result");
    (counts.pop().expect("one launch"), bytes)
}

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Kernels that read a row several times, and how often they do where it is not kept.
const OF_ROWS: [(&str, u64); 4] = [("softmax", 3), ("logsoftmax", 3), ("layer_norm", 3), ("rms_norm", 2)];

/// Elements of a row for which a block has room on every target, beside what else it has in shared memory.
fn long_row(dtype: DType) -> i64 {
    (160 << 10) / dtype.size_in_bytes() as i64
}

/// Elements of a row for which there is no room.
fn longer_row(dtype: DType) -> i64 {
    (163 << 10) / dtype.size_in_bytes() as i64 + 1
}

#[test]
fn rows_are_read_once_and_written_once() {
    for dtype in FLOATS.into_iter().chain([DType::F64]) {
        // Around a unit of 16 bytes, and nearly as long as there is room for.
        for columns in [1, 7, 8, 100, 1000, long_row(dtype)] {
            for (kernel, _) in OF_ROWS {
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
fn rows_are_accessed_in_units_of_16_bytes() {
    for dtype in FLOATS.into_iter().chain([DType::F64]) {
        let (rows, columns) = (3, 2048);
        let accessed = |kernel| {
            let (stats, bytes) = count(kernel, &[dtype], [rows, columns, 1, 1, 1]);
            assert_eq!(stats.excess_sectors, 0, "{kernel} of {dtype:?}: {:?}", stats.excess_sectors_by_line);
            assert_eq!(stats.bank_conflicts, 0, "{kernel} of {dtype:?}: {:?}", stats.bank_conflicts_by_line);
            (stats, bytes.into_iter().map(|bytes| bytes / 16).collect::<Vec<u64>>())
        };
        for kernel in ["sum", "mean", "reduce_max"] {
            let (stats, units) = accessed(kernel);
            assert_eq!(stats.count("ld.global"), units[1], "{kernel} of {dtype:?}: {:?}", stats.by_kind);
        }
        for (kernel, reads) in OF_ROWS {
            let (stats, units) = accessed(kernel);
            let weights: u64 = units[2..].iter().sum::<u64>() * rows as u64;
            let found = ["cp.async.cg", "ld.global", "st.global"].map(|kind| stats.count(kind));
            assert_eq!(found, [units[1], weights, units[0]], "{kernel} of {dtype:?}: {:?}", stats.by_kind);
            let vectors = if dtype == DType::F64 { "ld.shared.v2" } else { "ld.shared.v4" };
            assert_eq!(stats.count(vectors), reads * units[1], "{kernel} of {dtype:?}: {:?}", stats.by_kind);
        }
    }
}

/// Whether each access is to neighbours: they touch a sector more than they would if they began with one.
#[track_caller]
fn side_by_side(stats: &Stats, what: &str) {
    assert_eq!(stats.bank_conflicts, 0, "{what}: {:?}", stats.bank_conflicts_by_line);
    let Stats { excess_sectors, global_requests, excess_sectors_by_line, .. } = stats;
    assert!(excess_sectors <= global_requests, "{what}: {excess_sectors_by_line:?} of {global_requests} requests");
}

#[test]
fn rows_that_do_not_lie_in_units_are_accessed_side_by_side() {
    for dtype in FLOATS.into_iter().chain([DType::F64]) {
        for columns in [7, 1001, longer_row(dtype)] {
            let rows = if columns > 1001 { 1 } else { 5 };
            for kernel in
                ["sum", "mean", "var", "reduce_max", "argmax"].into_iter().chain(OF_ROWS.map(|(kernel, _)| kernel))
            {
                let (stats, _) = count(kernel, &[dtype], [rows, columns, 1, 1, 1]);
                side_by_side(&stats, &format!("{kernel} of {dtype:?}, {columns} columns"));
            }
        }
    }
}

#[test]
fn scans_read_and_write_units_of_16_bytes() {
    for dtype in FLOATS.into_iter().chain([DType::F64]) {
        for (target, reverse) in TARGETS.into_iter().flat_map(|target| [false, true].map(|reverse| (target, reverse))) {
            let way = Way { symbolic: true, ..Way::new(Options::new(target)) };
            let counted = |exclusive: bool, columns: i64| {
                let params = [("exclusive", ParamArg::Bool(exclusive)), ("reverse", ParamArg::Bool(reverse))];
                count_with(way, "cumsum", &[dtype], [3, columns, 1, 1, 1], &params)
            };
            let (stats, bytes) = counted(false, 4096);
            let found = ["ld.global", "st.global"].map(|kind| stats.count(kind));
            assert_eq!(found, [bytes[1] / 16, bytes[0] / 16], "{dtype:?}, {reverse}: {:?}", stats.by_kind);
            assert_eq!(stats.excess_sectors, 0, "{dtype:?}, {reverse}: {:?}", stats.excess_sectors_by_line);
            assert_eq!(stats.bank_conflicts, 0, "{dtype:?}, {reverse}: {:?}", stats.bank_conflicts_by_line);
            // Elements before each one begin between units: no unit is written otherwise for that.
            let (stats, bytes) = counted(true, 4096);
            assert_eq!(stats.count("st.global"), bytes[0] / 16, "{dtype:?}, {reverse}: {:?}", stats.by_kind);
            side_by_side(&stats, &format!("the sums of {dtype:?} before each, {reverse}"));
            for (exclusive, columns) in [1, 7, 1000, 1001, 4097].into_iter().flat_map(|n| [(false, n), (true, n)]) {
                let (stats, bytes) = counted(exclusive, columns);
                let moved = [stats.global_load_bytes, stats.global_store_bytes];
                // The last element of each row is not before another.
                let left_out = if exclusive { bytes[1] / columns as u64 } else { 0 };
                let what = format!("cumsum of {dtype:?}, {reverse}, {exclusive}, {columns} columns");
                assert_eq!(moved, [bytes[1] - left_out, bytes[0]], "{what}");
                side_by_side(&stats, &what);
            }
        }
    }
}

#[test]
fn rows_beyond_the_room_are_read_again() {
    for dtype in FLOATS.into_iter().chain([DType::F64]) {
        for (kernel, reads) in OF_ROWS {
            let (stats, bytes) = count(kernel, &[dtype], [1, longer_row(dtype), 1, 1, 1]);
            let weights: u64 = bytes[2..].iter().sum();
            let moved = (stats.global_load_bytes, stats.global_store_bytes);
            assert_eq!(moved, (reads * bytes[1] + weights, bytes[0]), "{kernel} of {dtype:?}");
        }
    }
}

#[test]
fn products_read_units_of_16_bytes_without_conflicts() {
    for (dtype, target) in FLOATS.into_iter().flat_map(|dtype| TARGETS.map(|target| (dtype, target))) {
        // As many columns as a tile has.
        let columns = if dtype == DType::F32 { 128 } else { 64 };
        let (stats, bytes) = count_on(target, "matmul", &[dtype], [128, columns, 256, 1, 1]);
        assert_eq!(stats.count("ld.global"), 0, "{dtype:?}, {target}");
        let of_warpgroups = target == TARGETS[1] && dtype != DType::F32;
        // Tiles of halves that warps multiply have 64 rows, others all 128.
        let parts = if of_warpgroups || dtype == DType::F32 { 1 } else { 2 };
        let units = bytes[1] / 16 + parts * bytes[2] / 16;
        assert!(stats.excess_sectors_by_line.is_empty(), "{dtype:?}, {target}: {:?}", stats.excess_sectors_by_line);
        assert_eq!(stats.bank_conflicts, 0, "{dtype:?}, {target}: {:?}", stats.bank_conflicts_by_line);
        // On sm_90a the device copies boxes.
        assert_eq!(stats.count("wgmma.mma_async") > 0, of_warpgroups, "{dtype:?}, {target}");
        let by_threads = if of_warpgroups { 0 } else { units };
        assert_eq!(stats.count("cp.async.cg"), by_threads, "{dtype:?}, {target}: {:?}", stats.by_kind);
        assert_eq!(stats.count("cp.async.bulk.tensor") > 0, of_warpgroups, "{dtype:?}, {target}");
        assert_eq!(stats.global_load_bytes, 16 * units, "{dtype:?}, {target}");
        // Results are written in whole units too, and sectors of memory as a whole.
        assert_eq!(stats.count("st.global"), bytes[0] / 16, "{dtype:?}, {target}: {:?}", stats.by_kind);
        // Warpgroups read their factors as they lie in shared memory.
        assert!(!of_warpgroups || stats.count("ldmatrix") == 0, "{dtype:?}, {target}");
    }
}

#[test]
fn all_products_read_units_of_16_bytes_without_conflicts() {
    use DType::{BF16, F16, F32, F64};
    let all: [(&str, &[DType], [i64; 5]); 5] = [
        ("matmul", &[F16, BF16, F32, F64], [128, 64, 256, 1, 1]),
        ("batch_matmul", &[F16, BF16, F32, F64], [128, 64, 256, 2, 1]),
        ("attention", &[F16, BF16, F32], [64, 192, 64, 1, 0]),
        ("attention", &[F16, BF16, F32], [64, 192, 256, 1, 0]),
        ("conv", &[F16, BF16, F32], [71, 128, 64, 64, 0]),
    ];
    let forms = all.into_iter().flat_map(|(kernel, dtypes, sizes)| dtypes.iter().map(move |d| (kernel, *d, sizes)));
    let mut wrong = String::new();
    for (kernel, dtype, sizes) in forms {
        for way in Way::all().into_iter().filter(|way| !matches!(way.tiles, Tiles::Small(_))) {
            let (stats, bytes) = count_as(way, kernel, &[dtype], sizes);
            let Stats { excess_sectors_by_line, bank_conflicts_by_line, .. } = &stats;
            let (loads, stores) = (stats.count("ld.global"), stats.count("st.global"));
            if (loads, stores) != (0, bytes[0] / 16)
                || !excess_sectors_by_line.is_empty()
                || !bank_conflicts_by_line.is_empty()
            {
                wrong += &format!("{kernel} of {dtype:?}, {way}: {loads} loads, {stores} stores, ");
                wrong += &format!("excess {excess_sectors_by_line:?}, conflicts {bank_conflicts_by_line:?}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
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
        // Tiles of warpgroups have all 128 rows, and the device copies boxes; others have 64.
        let of_warpgroups = target == TARGETS[1];
        let parts = if of_warpgroups { 1 } else { 2 };
        let units = bytes[1] / 16 + parts * bytes[2] / 16;
        let by_threads = if of_warpgroups { 0 } else { units };
        assert_eq!(stats.count("cp.async.cg"), by_threads, "{target}: {:?}", stats.by_kind);
        assert_eq!(stats.count("wgmma.mma_async") > 0, of_warpgroups, "{target}: {:?}", stats.by_kind);
        // Each thread that multiplies reads both scales.
        assert_eq!(stats.count("ld.global"), parts * 256 * 2, "{target}: {:?}", stats.by_kind);
        assert_eq!(stats.global_load_bytes, 16 * units + 4 * stats.count("ld.global"), "{target}");
        assert!(stats.excess_sectors_by_line.is_empty(), "{target}: {:?}", stats.excess_sectors_by_line);
        assert_eq!(stats.bank_conflicts, 0, "{target}: {:?}", stats.bank_conflicts_by_line);
    }
}

#[test]
fn products_of_tf32_read_units_of_16_bytes_without_conflicts() {
    for target in TARGETS {
        for (kernel, sizes) in [("matmul", [128, 64, 256, 1, 1]), ("attention", [64, 192, 64, 1, 0])] {
            let (stats, _) = count_as(Way::new(with_tf32(target)), kernel, &[DType::F32], sizes);
            assert_eq!(stats.count("ld.global"), 0, "{kernel}, {target}");
            assert!(stats.count("mma") > 0 && stats.count("ldmatrix") > 0, "{kernel}, {target}: {:?}", stats.by_kind);
            assert!(stats.excess_sectors_by_line.is_empty(), "{kernel}: {:?}", stats.excess_sectors_by_line);
            assert_eq!(stats.bank_conflicts, 0, "{kernel}, {target}: {:?}", stats.bank_conflicts_by_line);
        }
    }
    // Both factors lie along the sum: the device copies them, and each thread rounds its part.
    let way = Way::new(with_tf32(TARGETS[1]));
    let (stats, bytes) = count_as(way, "matmul_transposed", &[DType::F32], [128, 128, 256, 1, 1]);
    assert!(stats.count("wgmma.mma_async") > 0 && stats.count("mma") == 0, "{:?}", stats.by_kind);
    assert_eq!((stats.count("ld.global"), stats.count("cp.async.cg")), (0, 0), "{:?}", stats.by_kind);
    assert_eq!(stats.global_load_bytes, bytes[1] + bytes[2]);
    assert_eq!(4 * stats.count("cvt.rna.tf32"), bytes[1] + bytes[2], "{:?}", stats.by_kind);
    assert_eq!(stats.bank_conflicts, 0, "{:?}", stats.bank_conflicts_by_line);
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
