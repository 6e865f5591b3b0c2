//! Deliberate faults of the PTX writer, each of which must be noticed: a fault is made in the PTX that was written for a
//! kernel of the library, which is then executed and compared as [`conformance`](crate::conformance) does. Either the
//! simulator objects, or the result is not what the reference says. Without the fault both are satisfied.

use max::dtype::DType;
use max::kernel::ptx::Options;

use crate::case::Draw;
use crate::edit::Edit::{self, Always, Drop, Negate, Replace, Swap};
use crate::simulator::{Compiled, TARGETS, Way, with_tf32};
use crate::table;
use crate::threads::all;

/// A fault: what it is called; the kernel, its dtypes and sizes; which of the lines with that text (`*` stands for any) is
/// changed, and how; and what is said when it is noticed.
struct Fault(&'static str, &'static str, &'static [DType], [i64; 5], &'static str, usize, Edit, &'static str);

const F32: &[DType] = &[DType::F32];
const F16: &[DType] = &[DType::F16];
const BF16: &[DType] = &[DType::BF16];
const I8: &[DType] = &[DType::I8, DType::I8];
const E4M3: &[DType] = &[DType::F8E4M3FN];
const U32: &[DType] = &[DType::U32];
const I32: &[DType] = &[DType::I32];

/// What is said where a result is not the reference's.
const RESULT: &str = "element";

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    Fault("a loop that reads ahead has no barrier", "matmul", F16, [70, 40, 160, 1, 1], "bar.sync", 1, Drop, "not initialised"),
    Fault("it does not wait for its copies", "matmul", F16, [70, 40, 160, 1, 1], "cp.async.wait_group", 0, Drop, "before cp.async has arrived"),
    Fault("it waits for one group too few", "matmul", F16, [70, 40, 160, 1, 1], "cp.async.wait_group", 0, Replace("2", "3"), "before cp.async has arrived"),
    Fault("copies beyond the operand read", "matmul", F16, [70, 40, 160, 1, 1], "selp.b32*16, 0,", 0, Replace("16, 0", "16, 16"), "out of bounds"),
    Fault("copies are begun in one group", "matmul", F16, [70, 40, 160, 1, 1], "cp.async.commit_group", 1, Drop, "before cp.async has arrived"),
    Fault("the last stage is followed by another", "matmul", F16, [70, 40, 256, 1, 1], "@%p*mov.b32", 1, Drop, "out of bounds"),
    Fault("units in shared memory are read from other places", "matmul", F16, [70, 40, 160, 1, 1], "xor.b32", 8, Replace("xor", "or"), RESULT),
    Fault("registers of a left fragment are exchanged", "matmul", F16, [70, 40, 160, 1, 1], "mma.sync", 0, Swap(5, 6), RESULT),
    Fault("registers of a right fragment are exchanged", "matmul", BF16, [70, 40, 160, 1, 1], "mma.sync", 1, Swap(8, 9), RESULT),
    Fault("sums are exchanged", "matmul", F16, [70, 40, 160, 1, 1], "mma.sync", 7, Swap(0, 2), RESULT),
    Fault("a matrix is not transposed", "matmul", F16, [70, 40, 160, 1, 1], "ldmatrix*.trans", 0, Replace(".trans", ""), RESULT),
    Fault("a matrix is transposed", "attention", F16, [9, 20, 64, 1, 0], "ldmatrix*.x4.shared", 1, Replace(".x4.shared", ".x4.trans.shared"), RESULT),
    Fault("halves of a word are exchanged", "attention", BF16, [9, 20, 64, 1, 0], "x2.f32", 0, Swap(1, 2), RESULT),
    Fault("two of the four lanes of a row do not combine", "attention", F16, [9, 20, 64, 1, 0], "shfl.sync.bfly*, 2, 31", 2, Replace(", 2, 31", ", 1, 31"), RESULT),
    Fault("the largest score is taken before all have written theirs", "attention", F16, [9, 20, 64, 1, 0], "bar.sync", 8, Drop, "race"),
    Fault("a byte is taken from another row", "matmul_integer", I8, [70, 40, 160, 1, 1], "selp.b32*0x6420", 0, Replace("0x6420", "0x4620"), RESULT),
    Fault("bytes of an odd column are those of the even one", "matmul_integer", I8, [70, 40, 160, 1, 1], "selp.b32*0x7531", 0, Replace("0x7531", "0x6420"), RESULT),
    Fault("rows of bytes are read in another order", "matmul_integer", I8, [70, 40, 160, 1, 1], "and.b32*, 6;", 0, Replace(", 6;", ", 2;"), RESULT),
    Fault("signed bytes are taken as unsigned", "matmul_integer", I8, [70, 40, 160, 1, 1], "mma.sync", 3, Replace(".s8.s8", ".s8.u8"), RESULT),
    Fault("sums of bytes are exchanged", "matmul_integer", I8, [70, 40, 160, 1, 1], "mma.sync", 1, Swap(0, 1), RESULT),
    Fault("a result is written outside of its bounds", "matmul", F32, [70, 41, 12, 1, 1], "@%p*st.global", 51, Always, "out of bounds"),
    Fault("four results are written outside of their bounds", "matmul", F32, [70, 40, 12, 1, 1], "@%p*st.global.v4", 9, Always, "out of bounds"),
    Fault("lanes exchange results with others", "matmul_transposed", F32, [70, 40, 12, 1, 1], "shfl.sync.bfly*, 2, 31", 1, Replace(", 2, 31", ", 3, 31"), RESULT),
    Fault("a row's lanes do not all combine", "attention", F32, [9, 20, 64, 1, 0], "shfl.sync.bfly*, 8, 31", 4, Replace(", 8, 31", ", 4, 31"), RESULT),
    Fault("rows of programs are left out", "matmul", F32, [200, 40, 96, 1, 1], "min.s64*, 8;", 0, Replace(", 8;", ", 1;"), "is not written"),
    Fault("a factor has another place", "matmul", F32, [70, 40, 96, 1, 1], "ld.shared.v4", 1, Replace("+2304]", "+2320]"), "not initialised"),
    Fault("a row is read before it has arrived", "softmax", F32, [3, 300, 1, 1, 1], "cp.async.wait_all", 0, Drop, "before cp.async has arrived"),
    Fault("a row is read before others have copied it", "softmax", F32, [3, 301, 1, 1, 1], "bar.sync", 1, Drop, "race"),
    Fault("elements are left out", "softmax", F32, [3, 1500, 1, 1, 1], "add.s64*, 1024;", 2, Replace("1024", "2048"), "is not written"),
    Fault("neighbours in a row are exchanged", "layer_norm", F32, [3, 300, 1, 1, 1], "st.global.v4", 0, Swap(1, 2), RESULT),
    Fault("neighbours are taken where there are no units", "softmax", F32, [3, 301, 1, 1, 1], "selp.b64*, 1, 256,", 2, Replace("256", "1"), "is not written"),
    Fault("a row that is not aligned is read in units", "cumsum", I32, [3, 101, 1, 1, 1], "and.b64*, 15;", 2, Replace(", 15;", ", 3;"), "misaligned"),
    Fault("the end of an operand is read as a unit", "add", F32, [1030, 1, 1, 1, 1], "@!%p*bra", 1, Drop, "out of bounds"),
    Fault("an element behind a row is folded", "prod", F32, [3, 101, 1, 1, 1], "@!%p*bra", 1, Drop, RESULT),
    Fault("a maximum begins with 0", "reduce_max", F32, [40, 3, 1, 1, 1], "0fFF800000", 0, Replace("0fFF800000", "0f00000000"), RESULT),
    Fault("a fold takes another lane", "sum", I32, [3, 100, 1, 1, 1], "shfl.sync.down*, 16, 31", 0, Replace(", 16, 31", ", 8, 31"), RESULT),
    Fault("other lanes write", "sum", F32, [3, 100, 1, 1, 1], "@%p*st.shared", 0, Negate, "race"),
    Fault("all lanes write", "sum", F32, [3, 100, 1, 1, 1], "@%p*st.shared", 0, Always, "race"),
    Fault("shared memory is written beside its place", "sum", F32, [3, 100, 1, 1, 1], "@%p*st.shared", 0, Replace("+0]", "+4]"), "not initialised"),
    Fault("a scan takes another lane", "cumsum", I32, [3, 100, 1, 1, 1], "shfl.sync.up*, 4, 0", 2, Replace(", 4, 0", ", 3, 0"), RESULT),
    Fault("what came up to a thread is what came up to another", "cumsum", I32, [3, 2100, 1, 1, 1], "shfl.sync.up*, 1, 0", 2, Replace(", 1, 0", ", 2, 0"), RESULT),
    Fault("what came up to a round is left out", "cumsum", I32, [3, 2100, 1, 1, 1], "shfl.sync.idx*, 7, 31", 0, Replace(", 7, 31", ", 6, 31"), RESULT),
    Fault("a unit of elements that fall begins elsewhere", "cumsum", F32, [3, 2100, 1, 1, 1], "sub.s64*, 12;", 0, Replace(", 12;", ", 8;"), "misaligned"),
    Fault("neighbours are exchanged with other lanes", "cumsum", I32, [3, 2101, 1, 1, 1], "shfl.sync.bfly*, 16, 31", 0, Replace(", 16, 31", ", 4, 31"), RESULT),
    Fault("other neighbours are accessed than are exchanged", "cumsum", I32, [3, 2101, 1, 1, 1], "mul.wide.u32*, 31;", 0, Replace(", 31;", ", 30;"), RESULT),
    Fault("a sum is rounded toward zero", "add", F32, [9000, 1, 1, 1, 1], "add.rn.f32", 0, Replace(".rn", ".rz"), RESULT),
    Fault("a conversion is rounded toward zero", "cast", &[DType::F32, DType::F16], [4200, 1, 1, 1, 1], "cvt.rn.f16.f32", 0, Replace(".rn", ".rz"), RESULT),
    Fault("a maximum drops NaN", "max", F32, [9000, 1, 1, 1, 1], "max.NaN.f32", 0, Replace(".NaN", ""), RESULT),
    Fault("unsigned numbers are compared as signed", "greater", U32, [9000, 1, 1, 1, 1], "setp.gt.u32", 0, Replace(".u32", ".s32"), RESULT),
    Fault("neighbours that are written as one are exchanged", "add", F32, [9000, 1, 1, 1, 1], "st.global.v4", 0, Swap(1, 2), RESULT),
    Fault("an element beyond the last one is written", "add", F32, [1030, 1, 1, 1, 1], "@%p*st.global", 3, Always, "out of bounds"),
    Fault("division by zero is not replaced", "div", I32, [9000, 1, 1, 1, 1], "setp.eq.s32*, 0;", 0, Replace(", 0;", ", 1;"), RESULT),
    Fault("all blocks take the same programs", "softmax", F32, [7, 300, 1, 1, 1], "%ctaid.x", 0, Replace("%ctaid.x", "0"), "race on global memory"),
    Fault("an index outside is read", "gather", &[DType::U32, DType::I32], [9, 30, 4, 5, 1], "@%p*ld.global", 2, Always, "out of bounds"),
];

/// The same for products of `f32` by tensor cores.
#[rustfmt::skip]
const OF_TF32: &[Fault] = &[
    Fault("a fragment of the left factor is not rounded to tf32", "matmul", F32, [70, 40, 160, 1, 1], "cvt.rna.tf32", 0, Replace("cvt.rna.tf32.f32", "mov.b32"), RESULT),
    Fault("a fragment of the right factor is not rounded to tf32", "matmul", F32, [70, 40, 160, 1, 1], "cvt.rna.tf32", 9, Replace("cvt.rna.tf32.f32", "mov.b32"), RESULT),
    Fault("the next four steps are taken for the next eight rows", "matmul", F32, [70, 40, 160, 1, 1], "mma.sync", 0, Swap(5, 6), RESULT),
    Fault("steps of the right factor are exchanged", "matmul", F32, [70, 40, 160, 1, 1], "mma.sync", 1, Swap(8, 9), RESULT),
    Fault("words of the right factor are read from other rows", "matmul", F32, [70, 40, 160, 1, 1], "and.b32*, 3;", 7, Replace(", 3;", ", 1;"), RESULT),
    Fault("words are read where the row's units do not lie", "matmul", F32, [70, 40, 160, 1, 1], "brev.b32", 12, Replace("brev.b32", "mov.b32"), RESULT),
    Fault("neighbours of a computed factor are exchanged", "attention", F32, [9, 20, 64, 1, 0], "st.shared.v2", 1, Swap(1, 2), RESULT),
];

/// The same for products of 8-bit floats, of targets that have them.
#[rustfmt::skip]
const OF_FLOAT8: &[Fault] = &[
    Fault("bytes of the right factor are read as another column's", "matmul_static_scaled_float8", E4M3, [70, 40, 160, 1, 1], "ldmatrix", 2, Swap(0, 2), RESULT),
    Fault("steps of 8-bit floats are exchanged", "matmul_static_scaled_float8", E4M3, [70, 40, 160, 1, 1], "mma.sync", 1, Swap(8, 9), RESULT),
    Fault("one format is taken for the other", "matmul_static_scaled_float8", E4M3, [70, 40, 160, 1, 1], "mma.sync", 0, Replace(".e4m3.e4m3", ".e4m3.e5m2"), RESULT),
    Fault("sums of 8-bit floats are exchanged", "matmul_static_scaled_float8", E4M3, [70, 40, 160, 1, 1], "mma.sync", 2, Swap(0, 2), RESULT),
];

/// The same for products that warpgroups make: faults of the PTX for sm_90a.
#[rustfmt::skip]
const OF_WARPGROUPS: &[Fault] = &[
    Fault("copies are not fenced off for products", "matmul", F16, [70, 41, 160, 1, 1], "fence.proxy.async", 0, Drop, "no fence.proxy.async"),
    Fault("products are not waited for", "matmul", F16, [70, 40, 160, 1, 1], "wgmma.wait_group", 1, Drop, "before the wgmma"),
    Fault("boxes are fetched from elsewhere", "matmul", F16, [70, 40, 160, 1, 1], "cp.async.bulk.tensor", 0, Swap(2, 3), RESULT),
    Fault("fewer bytes are expected than come", "matmul", F16, [70, 40, 160, 1, 1], "expect_tx", 0, Replace(", 49152;", ", 49136;"), "deadlock"),
    Fault("a barrier waits for another arrival", "matmul", F16, [70, 40, 160, 1, 1], "mbarrier.init", 0, Replace(", 1;", ", 2;"), "deadlock"),
    Fault("consumers do not wait for a stage", "matmul", F16, [70, 40, 320, 1, 1], "@!%p*bra", 3, Drop, "not initialised"),
    Fault("consumers wait for the phase before", "matmul", F16, [70, 40, 320, 1, 1], "@%p*xor.b32", 0, Drop, "deadlock"),
    Fault("the producer does not wait for a stage", "matmul", F16, [70, 40, 320, 1, 1], "@!%p*bra", 8, Drop, "mbarrier"),
    Fault("the producer waits for the phase before", "matmul", F16, [70, 40, 320, 1, 1], "@%p*xor.b32", 1, Drop, "mbarrier"),
    Fault("the producer goes on behind the last stage", "matmul", F16, [70, 40, 320, 1, 1], "@%p*mov.b32", 2, Drop, "mbarrier"),
    Fault("a stage is not released", "matmul", F16, [70, 40, 320, 1, 1], "mbarrier.arrive.shared", 0, Drop, "deadlock"),
    Fault("all lanes release a stage", "matmul", F16, [70, 40, 320, 1, 1], "mbarrier.arrive.shared", 0, Always, "mbarrier"),
    Fault("another stage is released", "matmul", F16, [70, 40, 640, 1, 1], "mbarrier.arrive.shared", 0, Replace("+32]", "+40]"), "mbarrier"),
    Fault("a stage is released before the last warp has read it", "matmul", F16, [70, 40, 320, 1, 1], "mbarrier.init*, 8;", 0, Replace(", 8;", ", 7;"), "mbarrier"),
    Fault("half of the consumers pass their barrier", "matmul", F16, [70, 41, 160, 1, 1], "bar.sync 1", 0, Replace(", 256;", ", 128;"), "not initialised"),
    Fault("the producer waits with the consumers", "matmul", F16, [70, 41, 160, 1, 1], "bar.sync 1", 0, Replace(", 256;", ", 288;"), "deadlock"),
    Fault("consumers take more registers than there are", "matmul", F16, [70, 40, 160, 1, 1], "setmaxnreg.inc", 0, Replace("232", "240"), "deadlock"),
    Fault("the producer keeps its registers", "matmul", F16, [70, 40, 160, 1, 1], "setmaxnreg.dec", 0, Drop, "deadlock"),
    Fault("lanes exchange words with others", "matmul", F16, [70, 40, 160, 1, 1], "shfl.sync.bfly*, 2, 31", 1, Replace(", 2, 31", ", 3, 31"), RESULT),
    Fault("a lane keeps the words that it gives", "matmul", BF16, [70, 40, 160, 1, 1], "shfl.sync.bfly*, 1, 31", 0, Swap(0, 1), "before it is written"),
    Fault("a unit is written outside of the result", "matmul", F16, [70, 40, 160, 1, 1], "@%p*st.global.v4", 1, Always, "out of bounds"),
    Fault("sums are not fenced off for products", "matmul", F16, [70, 40, 160, 1, 1], "wgmma.fence", 0, Drop, "wgmma.fence"),
    Fault("a product is in no group", "matmul", F16, [70, 40, 160, 1, 1], "wgmma.commit_group", 0, Drop, "before the wgmma"),
    Fault("copies overtake products", "matmul", F16, [70, 40, 320, 1, 1], "wgmma.wait_group", 0, Replace(" 1;", " 2;"), "race"),
    Fault("sums of warpgroups are exchanged", "matmul", BF16, [70, 40, 160, 1, 1], "wgmma.mma_async", 0, Swap(1, 2), "before the wgmma"),
    Fault("factors of warpgroups are exchanged", "matmul", F16, [70, 40, 160, 1, 1], "wgmma.mma_async", 1, Swap(128, 129), "matrix descriptor"),
    Fault("a product leaves out what was added before", "matmul", F16, [70, 40, 160, 1, 1], "wgmma.mma_async", 1, Replace(", 1, 1, 1,", ", 0, 1, 1,"), RESULT),
    Fault("a factor is taken the other way round", "attention", F16, [9, 20, 64, 1, 0], "wgmma.mma_async", 0, Replace("1, 1, 1, 0, 0", "1, 1, 1, 0, 1"), "matrix descriptor"),
    Fault("another order of units is named", "matmul", F16, [70, 40, 160, 1, 1], "mov.b32*1073741888", 0, Replace("1073741888", "2147483712"), "matrix descriptor"),
    Fault("the second warpgroup reads other rows", "matmul", F16, [70, 40, 160, 1, 1], "mad.lo.u32*, 8192,", 10, Replace(", 8192,", ", 4096,"), RESULT),
    Fault("the next steps are read from elsewhere", "matmul", F16, [70, 40, 160, 1, 1], "add.s64*, 128;", 0, Replace(", 128;", ", 64;"), RESULT),
];

/// The same for those of `f32`.
#[rustfmt::skip]
const OF_WARPGROUPS_TF32: &[Fault] = &[
    Fault("a left factor is not rounded for warpgroups", "matmul_transposed", F32, [70, 40, 160, 1, 1], "cvt.rna.tf32", 0, Replace("cvt.rna.tf32.f32", "mov.b32"), RESULT),
    Fault("a right factor is not rounded for warpgroups", "matmul_transposed", F32, [70, 40, 160, 1, 1], "cvt.rna.tf32", 9, Replace("cvt.rna.tf32.f32", "mov.b32"), RESULT),
    Fault("units are exchanged when they are rounded", "matmul_transposed", F32, [70, 40, 160, 1, 1], "st.shared.v4", 1, Replace("+4096]", "+4112]"), "race"),
    Fault("rounded factors are not fenced off for products", "matmul_transposed", F32, [70, 40, 160, 1, 1], "fence.proxy.async", 1, Drop, "no fence.proxy.async"),
    Fault("products begin before all have rounded", "matmul_transposed", F32, [70, 40, 160, 1, 1], "bar.sync 1", 1, Drop, "race"),
    Fault("a tile that stays is not waited for when it is rounded", "attention", F32, [9, 20, 64, 1, 0], "cp.async.wait_all", 1, Drop, "before cp.async has arrived"),
    Fault("the next steps of tf32 are read from elsewhere", "matmul_transposed", F32, [70, 40, 160, 1, 1], "add.s64*, 2;", 0, Replace(", 2;", ", 4;"), RESULT),
];

#[test]
fn faults_of_the_writer_are_noticed() {
    let cases = table::cases();
    let of = |faults: &'static [Fault], options: Options| faults.iter().map(move |fault| (fault, options));
    let all_faults: Vec<(&Fault, Options)> = of(FAULTS, Options::new(TARGETS[0]))
        .chain(of(OF_TF32, with_tf32(TARGETS[0])))
        .chain(of(OF_FLOAT8, Options::new(TARGETS[2])))
        .chain(of(OF_WARPGROUPS, Options::new(TARGETS[1])))
        .chain(of(OF_WARPGROUPS_TF32, with_tf32(TARGETS[1])))
        .collect();
    assert!(all_faults.len() >= 20);
    all(&all_faults, |(fault, options)| {
        let &&Fault(name, kernel, dtypes, sizes, line, nth, edit, noticed) = fault;
        let case = cases.iter().find(|case| case.kernel == kernel).ok_or(kernel)?;
        let draw = Draw { sizes: sizes.to_vec(), rank: 2, layouts: Vec::new(), limit: i64::MAX, seed: 3 };
        let problem = case.problem(dtypes, &draw);
        let way = Way::new(*options);
        let written = way.write(&problem)?;
        let with_fault = edit.made(&written.text, line, nth).ok_or_else(|| format!("{name}: no such line"))?;
        let right = Compiled::new(written.clone())?.check(case, &problem, way.error());
        let (_, right) = right.map_err(|e| format!("{name}, without it: {e}"))?;
        let compiled = Compiled::new(max::kernel::ptx::Module { text: with_fault, ..written });
        match compiled.and_then(|compiled| compiled.check(case, &problem, way.error())) {
            // What tf32 may be wrong by is more than rounding in another way makes; `max-core/tests/ir/tf32.rs` knows the sums.
            Ok((_, got)) if way.is_tf32() && noticed == RESULT && got != right => Ok(()),
            Err(said) if said.contains(noticed) => Ok(()),
            Err(said) => Err(format!("{name}: expected {noticed:?}, but {said}")),
            Ok(_) => Err(format!("{name} is not noticed")),
        }
    });
}
