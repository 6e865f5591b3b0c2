//! Products of factors that are computed, by tensor cores: from halves, floats and bytes, on both sides, loaded as they lie and
//! transposed; and how they are read, and passed on through shared memory. FusedSide these, faults of products of bytes that no kernel of
//! the library has.

use max_core::dtype::{DType, F8E4M3, bf16, f16};
use max_core::kernel::ir::{compute_dtype, parse};
use max_core::kernel::ptx::{Options, Target, write};
use ptx_sim::Stats;

use crate::edit::Edit::{self, Always, Drop, Negate, Replace, Swap};
use crate::execute::{Tensor, execute_as, execute_module};
use crate::mma::{self, Lies, Number, matrix};

impl Number for i8 {
    fn from_f32(v: f32) -> Self {
        v as i8
    }
}
impl Number for u8 {
    fn from_f32(v: f32) -> Self {
        v as u8
    }
}

const TARGETS: [Target; 3] = [
    Target { sm: 80, arch_specific: false },
    Target { sm: 90, arch_specific: true },
    Target { sm: 100, arch_specific: false },
];

/// Small integers, which bytes and floats have; those of `i8` are negative too.
fn value(dtype: DType, i: usize) -> f32 {
    let least = if dtype == DType::I8 { -14.0 } else { 0.0 };
    least + ((i * 7919 + 13) % if dtype.is_float8() { 16 } else { 29 }) as f32
}

/// What becomes of an element before it is multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    AsItIs,
    /// Converted, as `dot` does with a factor of another dtype than its sums.
    Cast,
    /// Its lower four bits, converted.
    Nibble,
    /// Twice it, less three, rounded.
    Scaled,
}

impl How {
    fn of(self, v: f32) -> f32 {
        match self {
            How::AsItIs | How::Cast => v,
            How::Nibble => f32::from(v as u8 & 15),
            How::Scaled => 2.0 * v - 3.0,
        }
    }

    /// Computes `tile` of a dtype, as `%n`; values up to `%n + 9` are its own. Outside of the operand it is 0.
    fn code(self, n: u32, tile: u32, dtype: DType, [rows, columns]: [usize; 2], half: DType) -> String {
        let (c, half) = (compute_dtype(dtype).short_name(), half.short_name());
        let [i, j, x, m, v, w, s, t, r] = [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|k| n + k);
        let body = match self {
            How::AsItIs => {
                return format!(
                    "%{n}: tile<f32, {rows}x{columns}> = tile_map (%{tile}) |%{i}: i64, %{j}: i64; %{x}: f32| {{ yield %{x} }}"
                );
            }
            How::Cast => return format!("%{n}: tile<f32, {rows}x{columns}> = tile_cast %{tile}"),
            How::Nibble => format!("%{m}: {c} = const 15 %{v}: {c} = and %{x}, %{m} %{r}: f32 = cast %{v}"),
            How::Scaled => {
                let float = if c == "f32" {
                    format!("%{v}: f32 = neg %{x} %{w}: f32 = neg %{v}")
                } else {
                    format!("%{w}: f32 = cast %{x}")
                };
                format!(
                    "{float} %{m}: f32 = const 3.0 %{s}: f32 = add %{w}, %{w} %{t}: f32 = sub %{s}, %{m} %{r}: f32 = round {half} %{t}"
                )
            }
        };
        format!(
            "%{n}: tile<f32, {rows}x{columns}> = tile_map (%{tile}) |%{i}: i64, %{j}: i64; %{x}: {c}| {{ {body} yield %{r} }}"
        )
    }
}

/// A kernel that multiplies what it computes of two matrices.
fn source(
    dtypes: [DType; 2],
    how: [How; 2],
    [rows, columns, inner]: [usize; 3],
    transposed: [bool; 2],
    half: DType,
) -> String {
    let ([a, b], [left, right]) =
        (dtypes.map(DType::short_name), dtypes.map(|dtype| compute_dtype(dtype).short_name()));
    let load = |name: &str, r: u32, c: u32, transposed: bool| match transposed {
        false => format!("tile_load {name}[%{r}, %{c}]"),
        true => format!("tile_load {name}[%{c}, %{r}] transposed"),
    };
    let mut factors = [13, 14];
    let mut code = String::new();
    for (side, n) in [(0, 30), (1, 40)] {
        if how[side] != How::AsItIs {
            let size = if side == 0 { [rows, inner] } else { [inner, columns] };
            code += &how[side].code(n, factors[side], dtypes[side], size, half);
            factors[side] = n;
        }
    }
    format!(
        "kernel \"factors\" program grid(c.0 / {rows}, c.1 / {columns}) (out c: f32[2], in a: {a}[2], in b: {b}[2]) params(k: int) {{
            %0: i64 = program_id 0 %1: i64 = program_id 1
            %2: i64 = const {rows} %3: i64 = mul %0, %2
            %4: i64 = const {columns} %5: i64 = mul %1, %4
            %6: f32 = const 0.0
            %7: tile<f32, {rows}x{columns}> = tile_full %6
            %8: var<f32, {rows}x{columns}> = var %7
            %9: i64 = const 0 %10: i64 = param k %11: i64 = const {inner}
            for %9 to %10 step %11 |%12: i64| {{
                %13: tile<{left}, {rows}x{inner}> = {}
                %14: tile<{right}, {inner}x{columns}> = {}
                {code}
                %15: tile<f32, {rows}x{columns}> = get %8
                %16: tile<f32, {rows}x{columns}> = dot %{}, %{}, %15
                set %8 = %16
            }}
            %17: tile<f32, {rows}x{columns}> = get %8
            tile_store c[%3, %5] = %17
        }}",
        load("a", 3, 12, transposed[0]),
        load("b", 12, 5, transposed[1]),
        factors[0],
        factors[1],
    )
}

/// A product to be computed.
struct Problem {
    source: String,
    /// The result, of which nothing is known, and the factors.
    tensors: [Tensor; 3],
    steps: u64,
    grid: [i64; 2],
    expected: Vec<f32>,
    /// Whether the result is of `i32`.
    of_integers: bool,
}

impl Problem {
    /// The first element that is not as expected: its place, what it is, and what it should be.
    fn wrong(&self, result: &Tensor) -> Option<(usize, f32, f32)> {
        let values = match self.of_integers {
            true => result.values::<i32>().into_iter().map(|v| v as f32).collect(),
            false => result.values::<f32>(),
        };
        let pairs = values.into_iter().zip(&self.expected);
        pairs.enumerate().find(|(_, (got, want))| got != *want).map(|(i, (got, want))| (i, got, *want))
    }
}

fn problem<A: Number, B: Number>(
    half: DType,
    how: [How; 2],
    [m, n, k]: [usize; 3],
    tile: [usize; 3],
    lies: [Lies; 2],
    transposed: [bool; 2],
) -> Problem {
    // Of an operand whose rows are one element each, the coordinate along them does not count.
    let same = |side: usize, is_last: bool, at: usize| if lies[side] == Lies::Repeated && is_last { 0 } else { at };
    let a = |i, l| value(A::DTYPE, same(0, transposed[0], i) * k + same(0, !transposed[0], l));
    let b = |l, j| value(B::DTYPE, 5 + same(1, transposed[1], l) * n + same(1, !transposed[1], j));
    let left = if transposed[0] { matrix::<A>(k, m, lies[0], |l, i| a(i, l)) } else { matrix::<A>(m, k, lies[0], a) };
    let right = if transposed[1] { matrix::<B>(n, k, lies[1], |j, l| b(l, j)) } else { matrix::<B>(k, n, lies[1], b) };
    let grid = [m.div_ceil(tile[0]) as i64, n.div_ceil(tile[1]) as i64];
    // Beyond the operands, each factor has what becomes of 0: steps there count.
    let steps = k.next_multiple_of(tile[2]);
    let beyond = (steps - k) as f32 * how[0].of(0.0) * how[1].of(0.0);
    let sum = |i: usize, j: usize| (0..k).map(|l| how[0].of(a(i, l)) * how[1].of(b(l, j))).sum::<f32>() + beyond;
    let expected: Vec<f32> = (0..m * n).map(|i| sum(i / n, i % n)).collect();
    let c = Tensor::new(&vec![f32::NAN; m * n], &[m as i64, n as i64]);
    let source = source([A::DTYPE, B::DTYPE], how, tile, transposed, half);
    Problem { source, tensors: [c, left, right], steps: k as u64, grid, expected, of_integers: false }
}

/// Multiplies on each target, compares, and demands that tensor cores did it without conflicts of banks; gives what was counted.
#[track_caller]
fn multiply<A: Number, B: Number>(
    half: DType,
    how: [How; 2],
    size: [usize; 3],
    tile: [usize; 3],
    lies: [Lies; 2],
    transposed: [bool; 2],
) -> [Stats; 3] {
    let problem = problem::<A, B>(half, how, size, tile, lies, transposed);
    let source = &problem.source;
    TARGETS.map(|target| {
        let mut tensors = problem.tensors.clone();
        let stats = execute_as(Options::new(target), source, &mut tensors, &[problem.steps], &problem.grid, 2);
        let what = format!("{target}: {how:?}, {size:?} in {tile:?}, {lies:?}, {transposed:?}");
        assert_eq!(problem.wrong(&tensors[0]), None, "{what}");
        assert!(stats.count("mma") + stats.count("wgmma.mma_async") > 0, "{what}: {:?}", stats.by_kind);
        assert_eq!(stats.bank_conflicts, 0, "{what}: {:?}\n{source}", stats.bank_conflicts_by_line);
        stats
    })
}

const TRANSPOSED: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];
const HALVES: [DType; 2] = [DType::F16, DType::BF16];
const TILE: [usize; 3] = [64, 64, 32];

#[test]
fn factors_of_bytes_and_floats_go_to_tensor_cores() {
    let (size, plain) = ([70, 80, 72], [Lies::Plain; 2]);
    for transposed in TRANSPOSED {
        multiply::<f16, i8>(HALVES[0], [How::AsItIs, How::Cast], size, TILE, plain, transposed);
        multiply::<bf16, i8>(HALVES[1], [How::AsItIs, How::Cast], size, TILE, plain, transposed);
        multiply::<u8, bf16>(HALVES[1], [How::Cast, How::AsItIs], size, TILE, plain, transposed);
        multiply::<bf16, u8>(HALVES[1], [How::Scaled, How::Nibble], size, TILE, plain, transposed);
        multiply::<u8, f16>(HALVES[0], [How::Nibble, How::Scaled], size, TILE, plain, transposed);
        multiply::<i8, u8>(HALVES[0], [How::Cast, How::Cast], size, TILE, plain, transposed);
        multiply::<f32, i8>(HALVES[1], [How::Scaled, How::Scaled], size, TILE, plain, transposed);
        multiply::<bf16, F8E4M3>(HALVES[1], [How::AsItIs, How::Scaled], size, TILE, plain, transposed);
        multiply::<F8E4M3, bf16>(HALVES[1], [How::AsItIs, How::AsItIs], size, TILE, plain, transposed);
    }
}

#[test]
fn every_way_to_lie_in_memory() {
    let ways =
        [Lies::Padded(8), Lies::Padded(3), Lies::Transposed, Lies::From(8), Lies::From(1), Lies::Apart, Lies::Repeated];
    for way in ways {
        for transposed in TRANSPOSED {
            multiply::<bf16, i8>(
                HALVES[1],
                [How::Scaled, How::Cast],
                [72, 80, 40],
                TILE,
                [Lies::Plain, way],
                transposed,
            );
            multiply::<f32, f16>(
                HALVES[0],
                [How::Scaled, How::Scaled],
                [72, 80, 40],
                TILE,
                [way, Lies::Plain],
                transposed,
            );
        }
    }
}

#[test]
fn tiles_of_many_shapes() {
    for tile in [[16, 64, 16], [128, 8, 16], [64, 32, 48], [48, 64, 80], [64, 64, 128], [128, 128, 64], [128, 64, 96]] {
        for transposed in [[false, false], [true, true]] {
            multiply::<f16, i8>(
                HALVES[0],
                [How::Scaled, How::Cast],
                [130, 100, 144],
                tile,
                [Lies::Plain; 2],
                transposed,
            );
        }
    }
}

#[test]
fn computed_factors_are_read_in_units_and_side_by_side() {
    for transposed in TRANSPOSED {
        let how = [How::Scaled, How::Scaled];
        for tile in [TILE, [128, 128, 64]] {
            let of = |size, lies| multiply::<bf16, bf16>(HALVES[1], how, size, tile, lies, transposed);
            for stats in of([128, 128, 128], [Lies::Plain; 2]) {
                let (rows, columns) = (128 / tile[0] as u64, 128 / tile[1] as u64);
                let units = 128 * 128 / 8 * (rows + columns);
                assert_eq!(stats.count("ld.global"), units, "{tile:?}, {transposed:?}: {:?}", stats.by_kind);
                assert_eq!(stats.excess_sectors, 0, "{:?}", stats.excess_sectors_by_line);
            }
            // Between units, each access touches at most one sector more for each of its rows.
            for stats in of([128, 128, 128], [Lies::Padded(1); 2]) {
                let requests = stats.by_kind.get("ld.global");
                assert!(stats.excess_sectors <= 8 * stats.global_requests, "{requests:?}: {}", stats.excess_sectors);
            }
        }
    }
}

/// A fault: what it is called; the problem, and the number of the target; which of the lines with that text is changed, and how;
/// and what is said when it is noticed.
struct Fault(&'static str, fn() -> Problem, usize, &'static str, usize, Edit, &'static str);

/// Two factors that are computed of halves, in units of 16 bytes.
fn computed() -> Problem {
    let how = [How::Scaled, How::Scaled];
    problem::<bf16, bf16>(HALVES[1], how, [70, 80, 72], TILE, [Lies::Plain; 2], [false, false])
}

/// The same where rows do not lie so.
fn between_units() -> Problem {
    let how = [How::Scaled, How::Scaled];
    problem::<bf16, bf16>(HALVES[1], how, [70, 80, 72], TILE, [Lies::Padded(1); 2], [false, false])
}

/// A right factor of bytes.
fn bytes() -> Problem {
    let how = [How::AsItIs, How::Cast];
    problem::<f16, i8>(HALVES[0], how, [70, 80, 72], TILE, [Lies::Plain; 2], [false, false])
}

/// Bytes that both lie along the sum, and are added as integers.
fn integers() -> Problem {
    let as_they_are = [How::AsItIs; 2];
    let (size, tile, along) = ([70, 80, 160], [64, 64, 64], [false, true]);
    let mut problem = problem::<i8, i8>(HALVES[0], as_they_are, size, tile, [Lies::Plain; 2], along);
    problem.source = mma::source([DType::I8; 2], tile, along);
    problem.tensors[0] = Tensor::new(&vec![-1_i32; 70 * 80], &[70, 80]);
    problem.of_integers = true;
    problem
}

/// What is said where a result is not as expected.
const RESULT: &str = "element";

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    Fault("units of a computed factor are read where there are none", between_units, 0, "and.b64*, 15;", 0, Replace(", 15;", ", 1;"), "misaligned"),
    Fault("units of a computed factor are read outside of the operand", computed, 0, "@%p*ld.global.v4", 0, Always, "out of bounds"),
    Fault("units of a computed factor are read outside alone", computed, 0, "@%p*ld.global.v4", 1, Negate, "out of bounds"),
    Fault("words of a unit of a computed factor are exchanged", computed, 0, "ld.global.v4", 1, Swap(2, 3), RESULT),
    Fault("elements of a computed factor are exchanged with other lanes", between_units, 0, "shfl.sync.bfly*, 1, 31", 0, Replace(", 1, 31", ", 3, 31"), RESULT),
    Fault("words of a computed factor are exchanged when they are staged", computed, 0, "st.shared.v4", 0, Swap(1, 2), RESULT),
    Fault("units of a computed factor are read from other places", computed, 0, "xor.b32", 2, Replace("xor", "or"), RESULT),
    Fault("a computed factor is staged while it is read", computed, 0, "bar.sync", 0, Drop, "race"),
    Fault("a computed factor is read before it is staged", computed, 0, "bar.sync", 1, Drop, "not initialised"),
    Fault("bytes of a factor are read outside of the operand", bytes, 0, "@%p*ld.global.v2", 0, Always, "out of bounds"),
    Fault("words of a factor's bytes are exchanged", bytes, 0, "ld.global.v2", 0, Swap(1, 2), RESULT),
    Fault("a byte of a factor is taken for its neighbour", bytes, 0, "bfe.s32*, 8, 8", 0, Replace(", 8, 8", ", 0, 8"), RESULT),
    Fault("signed bytes of a factor are taken as unsigned", bytes, 0, "bfe.s32", 2, Replace(".s32", ".u32"), RESULT),
    Fault("a computed factor is not fenced off for products", computed, 1, "fence.proxy.async", 0, Drop, "no fence.proxy.async"),
    Fault("threads without a unit of a factor's bytes write one", bytes, 1, "@%p*st.shared.v4", 0, Always, "race"),
    Fault("units of a factor's bytes lie in another order", bytes, 1, "xor.b32", 5, Replace("xor", "or"), "race"),
    Fault("warpgroups take signed bytes as unsigned", integers, 1, "wgmma.mma_async", 0, Replace(".s8.s8", ".s8.u8"), RESULT),
    Fault("warpgroups read the same bytes again", integers, 1, "add.s64*, 2;", 0, Replace(", 2;", ", 0;"), RESULT),
    Fault("warpgroups take bytes as if there were no order of units", integers, 1, "mov.b32*2147483680", 0, Replace("2147483680", "32"), RESULT),
    Fault("sums of bytes of warpgroups are exchanged", integers, 1, "wgmma.mma_async", 1, Swap(1, 2), "before the wgmma"),
];

/// What the simulator says of PTX with a change, or which element is wrong.
fn run(problem: &Problem, target: Target, change: impl Fn(String) -> String) -> Result<(), String> {
    let kernel = parse(&problem.source).map_err(|e| e.to_string())?;
    let mut module = write(&kernel, Options::new(target)).map_err(|e| e.to_string())?;
    module.text = change(module.text);
    let mut tensors = problem.tensors.clone();
    execute_module(&kernel, &module, &mut tensors, &[problem.steps], &problem.grid, 2)?;
    problem.wrong(&tensors[0]).map_or(Ok(()), |wrong| Err(format!("element {wrong:?}")))
}

#[test]
fn faults_of_the_writer_are_noticed() {
    for &Fault(name, problem, target, line, nth, edit, noticed) in FAULTS {
        let (problem, target) = (problem(), TARGETS[target]);
        assert_eq!(run(&problem, target, |text| text), Ok(()), "{name}, without it");
        let change = |text: String| edit.made(&text, line, nth).unwrap_or_else(|| panic!("{name}: no such line"));
        let said = run(&problem, target, change).expect_err(name);
        assert!(said.contains(noticed), "{name}: {said}");
    }
}
