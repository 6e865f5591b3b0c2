//! A ratchet of machine code: what NVIDIA's assembler makes of some kernels for sm_90a, counted in the disassembly. Numbers may
//! only improve.
//!
//! The main loop of a kernel is the shortest way around any loop that executes the kernel's marks, such as two loads and a
//! store of 16 bytes: the way of full tiles and aligned rows, without the code for edges beside it. Counted there are the
//! instructions, the loads that are on their way before the first of them is waited for, and the instructions of tensor cores
//! for each barrier or `mbarrier`. It needs `ptxas` (`PTXAS`) and `nvdisasm` (`NVDISASM`, or beside it, or in `PATH`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use max::dtype::DType;
use max::kernel::ptx::{Float32MatmulPrecision, Options, Target, write};
use max::kernel::{KernelLibrary, ir};

#[path = "../../max-core/tests/ir/ptxas.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod ptxas;

const SM_90A: Target = Target { sm: 90, arch_specific: true };

/// A kernel, its dtypes, how it is written, and what its main loop executes: instructions, by how they begin, at least so
/// often.
type Row = (&'static str, &'static [DType], How, &'static [(&'static str, usize)]);

/// How a kernel is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// With the tile sizes that are best where dims are large.
    Best,
    /// The same, with products of `f32` in tf32.
    Tf32,
    /// With the ones of this number among the tile sizes for small dims.
    Small(usize),
    /// No kernel of the library: this IR.
    Text(&'static str),
}

use How::{Best, Small, Text, Tf32};

/// A copy of which one side has its rows where the other one has its columns, as a launch makes it.
const TRANSPOSE: &str = "
kernel \"transpose\" program grid(1, 1) (in x: u16[2], out y: u16[2]) {
    %0: i64 = const 64
    %1: i64 = program_id 0
    %2: i64 = mul %1, %0
    %3: i64 = program_id 1
    %4: i64 = mul %3, %0
    %5: tile<u16, 64x64> = tile_load x[%4, %2] transposed
    tile_store y[%2, %4] = %5
}";

const VECTOR_LOAD: &str = "LDG.E.128";
const VECTOR_STORE: &str = "STG.E.128";

const ROWS: [Row; 36] = [
    ("add", &[DType::F32], Best, &[(VECTOR_LOAD, 4), (VECTOR_STORE, 2)]),
    ("add", &[DType::BF16], Best, &[(VECTOR_LOAD, 4), (VECTOR_STORE, 2)]),
    ("gelu", &[DType::F32], Best, &[(VECTOR_LOAD, 1), (VECTOR_STORE, 1), ("FFMA", 72)]),
    ("gelu", &[DType::BF16], Best, &[("LDG.E.64", 1), ("STG.E.64", 1), ("FFMA", 72)]),
    ("softmax", &[DType::F32], Best, &[(VECTOR_STORE, 1)]),
    ("softmax", &[DType::BF16], Best, &[(VECTOR_STORE, 1)]),
    ("layer_norm", &[DType::BF16], Best, &[("STG.E", 1)]),
    ("sum", &[DType::F32], Best, &[(VECTOR_LOAD, 1), ("FADD", 4)]),
    ("sum", &[DType::BF16], Best, &[(VECTOR_LOAD, 1), ("FADD", 8)]),
    ("sum_columns", &[DType::F32], Best, &[("LDG.E", 4), ("FADD", 4)]),
    ("matmul", &[DType::BF16], Best, &[("HGMMA", 4)]),
    ("matmul", &[DType::F32], Best, &[("FFMA", 2048)]),
    ("matmul", &[DType::F32], Tf32, &[("HMMA", 8)]),
    ("matmul_transposed", &[DType::F32], Best, &[("FFMA", 2048)]),
    ("matmul_transposed", &[DType::F32], Tf32, &[("HGMMA", 1)]),
    ("matmul", &[DType::BF16], Small(0), &[("LDGSTS", 1), ("FFMA", 32)]),
    ("matmul", &[DType::BF16], Small(1), &[("LDGSTS", 1), ("FFMA", 256)]),
    ("matmul_transposed", &[DType::BF16], Small(0), &[("LDGSTS", 1), ("FFMA", 32)]),
    ("matmul_transposed", &[DType::BF16], Small(1), &[("LDGSTS", 1), ("FFMA", 256)]),
    ("matmul_transposed", &[DType::BF16], Small(2), &[("HMMA", 1)]),
    ("matmul_transposed", &[DType::F32], Small(0), &[("LDGSTS", 1), ("FFMA", 16)]),
    ("matmul_integer", &[DType::I8, DType::I8], Best, &[("IMMA", 8)]),
    ("matmul_static_scaled_float8", &[DType::F8E4M3FN], Best, &[("QGMMA", 4)]),
    ("attention", &[DType::BF16], Best, &[("HGMMA", 8)]),
    ("flash_attention_ragged", &[DType::BF16], Best, &[("HGMMA", 8)]),
    ("flash_attention_ragged", &[DType::BF16], Small(1), &[("HMMA", 8)]),
    ("top_k", &[DType::F32], Best, &[("LDG.E", 1)]),
    ("select_k", &[DType::F32], Best, &[("LDG.E", 1)]),
    ("rank_runs", &[DType::F32], Best, &[("LDG.E", 1)]),
    ("sort_runs", &[DType::F32], Best, &[("LDG.E", 1)]),
    ("merge_runs", &[DType::F32], Best, &[("LDG.E", 2)]),
    ("last_updates", &[DType::I64], Best, &[("LDG.E", 1)]),
    ("scatter_last", &[DType::F32], Best, &[("LDG.E", 2), ("STG.E", 1)]),
    ("scatter_reduce_sorted", &[DType::F32], Best, &[("LDG.E", 1)]),
    ("copy", &[DType::U16], Best, &[(VECTOR_LOAD, 2), (VECTOR_STORE, 2)]),
    ("transpose", &[DType::U16], Text(TRANSPOSE), &[("LDG.E", 1), ("STG.E", 1)]),
];

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    registers: u32,
    spilled_bytes: u32,
    /// Instructions of the main loop.
    instructions: u32,
    /// Loads on their way before the first wait.
    loads: u32,
    /// Instructions of tensor cores for each barrier.
    tensor: u32,
}

const HEAD: &str = "registers spilled-bytes instructions loads-in-flight tensor-per-barrier kernel";

impl Counts {
    /// What is worse than it was.
    fn worse(&self, than: &Counts) -> bool {
        self.registers > than.registers
            || self.spilled_bytes > than.spilled_bytes
            || self.instructions > than.instructions
            || self.loads < than.loads
            || self.tensor < than.tensor
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { registers, spilled_bytes, instructions, loads, tensor } = self;
        write!(f, "{registers} {spilled_bytes} {instructions} {loads} {tensor}")
    }
}

/// An instruction: its operation, where it may go, and its scheduling word.
struct Instruction {
    operation: String,
    next: Vec<usize>,
    /// The scoreboards that it waits for, and the one that its result sets.
    waits: u64,
    sets: u64,
}

/// The first hexadecimal number of a line in `/* 0x… */`, of which the low half is an instruction's and the high half its
/// scheduling.
fn word(line: &str) -> Option<u64> {
    let (_, rest) = line.rsplit_once("/* 0x")?;
    u64::from_str_radix(rest.split_whitespace().next()?, 16).ok()
}

/// Reads what `nvdisasm -c -hex` writes.
fn disassembly(text: &str) -> Vec<Instruction> {
    let (mut lines, mut labels): (Vec<(String, u64)>, HashMap<&str, usize>) = (Vec::new(), HashMap::new());
    for line in text.lines() {
        if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with(".L_")) {
            labels.insert(label, lines.len());
        } else if let Some((_, code)) = line.trim_start().strip_prefix("/*").and_then(|rest| rest.split_once("*/")) {
            match code.rsplit_once(';') {
                Some((code, _)) => lines.push((code.trim().to_owned(), 0)),
                // The second half of the instruction before.
                None => {
                    if let (Some(last), Some(word)) = (lines.last_mut(), word(line)) {
                        last.1 = word;
                    }
                }
            }
        }
    }
    let target = |code: &str| labels.get(code.split_once("`(")?.1.split_once(')')?.0).copied();
    let count = lines.len();
    let one = |(i, (code, word)): (usize, &(String, u64))| {
        let conditional = code.starts_with('@');
        let plain = if conditional { code.split_once(' ').map_or("", |(_, rest)| rest.trim()) } else { code };
        let operation = plain.split_whitespace().next().unwrap_or_default().to_owned();
        let falls = || vec![i + 1];
        let next = match &*operation {
            // A branch of its own condition, `BRA.U !UP0`, or under one.
            op if op.starts_with("BRA") => {
                let own = plain
                    .split_whitespace()
                    .nth(1)
                    .is_some_and(|word| word.trim_start_matches('!').trim_start_matches('U').starts_with('P'));
                target(code).into_iter().chain((conditional || own).then_some(i + 1)).collect()
            }
            op if op.starts_with("EXIT") || op.starts_with("RET") => {
                if conditional {
                    falls()
                } else {
                    Vec::new()
                }
            }
            _ => falls(),
        };
        let next = next.into_iter().filter(|next| *next < count).collect();
        Instruction { operation, next, waits: word >> 52 & 0x3f, sets: word >> 46 & 7 }
    };
    lines.iter().enumerate().map(one).collect()
}

/// The shortest way around a loop that executes all marks.
fn main_loop(code: &[Instruction], marks: &[(&str, usize)]) -> Option<Vec<usize>> {
    let heads = code.iter().enumerate().flat_map(|(i, inst)| inst.next.iter().copied().filter(move |next| *next <= i));
    let mut heads: Vec<usize> = heads.collect();
    heads.sort_unstable();
    heads.dedup();
    let ways = heads.into_iter().filter_map(|head| way_around(code, marks, head));
    ways.min_by_key(Vec::len)
}

/// The shortest way from an instruction back to it that executes all marks.
fn way_around(code: &[Instruction], marks: &[(&str, usize)], head: usize) -> Option<Vec<usize>> {
    type State = (usize, Vec<usize>);
    let start: State = (head, vec![0; marks.len()]);
    let mut steps: BTreeMap<State, (u32, Option<State>)> = BTreeMap::from([(start.clone(), (0, None))]);
    let mut queue = BinaryHeap::from([(Reverse(0u32), start)]);
    while let Some((Reverse(length), state)) = queue.pop() {
        if steps.get(&state).is_some_and(|(known, _)| *known < length) {
            continue;
        }
        let inst = &code[state.0];
        let seen: Vec<usize> = marks
            .iter()
            .zip(&state.1)
            .map(|((mark, wanted), seen)| (seen + usize::from(inst.operation.starts_with(mark))).min(*wanted))
            .collect();
        for &next in &inst.next {
            if next == head {
                if seen.iter().zip(marks).all(|(seen, (_, wanted))| seen == wanted) {
                    let mut way = vec![state.0];
                    let mut at = steps.get(&state).and_then(|(_, before)| before.clone());
                    while let Some(state) = at {
                        way.push(state.0);
                        at = steps.get(&state).and_then(|(_, before)| before.clone());
                    }
                    way.reverse();
                    return Some(way);
                }
                continue;
            }
            let to = (next, seen.clone());
            if steps.get(&to).is_none_or(|(known, _)| *known > length + 1) {
                steps.insert(to.clone(), (length + 1, Some(state.clone())));
                queue.push((Reverse(length + 1), to));
            }
        }
    }
    None
}

/// Counts along the main loop; `said` is what the assembler says of the kernel.
fn count(said: &str, code: &[Instruction], marks: &[(&str, usize)]) -> Option<Counts> {
    let number = |before: &str, after: &str| -> u32 {
        let found = said.split(after).next().and_then(|text| text.rsplit_once(before)).map(|(_, number)| number.trim());
        found.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let way = main_loop(code, marks)?;
    let of =
        |names: &[&str]| way.iter().filter(|i| names.iter().any(|name| code[**i].operation.starts_with(name))).count();
    let (mut loads, mut boards) = (0, 0u64);
    for inst in way.iter().map(|i| &code[*i]) {
        if inst.waits & boards != 0 {
            break;
        }
        if ["LDG", "LDGSTS"].iter().any(|name| inst.operation.starts_with(name)) {
            loads += 1;
            boards |= if inst.sets < 6 { 1 << inst.sets } else { 0 };
        }
    }
    let tensor = of(&["HGMMA", "IGMMA", "QGMMA", "HMMA", "IMMA"]) / of(&["BAR.SYNC", "SYNCS.PHASECHK"]).max(1);
    Some(Counts {
        registers: number("Used ", " registers"),
        spilled_bytes: number("frame, ", " bytes spill stores"),
        instructions: way.len() as u32,
        loads,
        tensor: tensor as u32,
    })
}

/// The disassembler, where the assembler is.
fn nvdisasm(ptxas: &Path) -> Option<PathBuf> {
    let named = std::env::var_os("NVDISASM").map(PathBuf::from);
    let in_path =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).map(|dir| dir.join("nvdisasm")).collect());
    let candidates: Vec<PathBuf> = in_path.unwrap_or_default();
    named.into_iter().chain([ptxas.with_file_name("nvdisasm")]).chain(candidates).find(|path| path.is_file())
}

fn run(program: &Path, arguments: &[&std::ffi::OsStr]) -> (String, String) {
    let output = Command::new(program).args(arguments).output().expect("the program runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{}: {out}{err}", program.display());
    (out, err)
}

fn assembled(ptxas: &Path, nvdisasm: &Path, row: &Row) -> (String, Counts) {
    let (kernel, dtypes, how, marks) = *row;
    let names: Vec<&str> = dtypes.iter().map(|dtype| dtype.short_name()).collect();
    let mut name = format!("{kernel}<{}>{}", names.join(","), if how == Tf32 { " with tf32" } else { "" });
    let def = || KernelLibrary::linked().table(kernel).unwrap_or_else(|error| panic!("{error}"));
    let text = if let Text(text) = how {
        text.to_owned()
    } else if let Small(i) = how {
        let def = def();
        let mut small = def.tiles_on(SM_90A, dtypes).filter(|tile| !tile.conditions.as_slice().is_empty());
        let tile = small.nth(i).unwrap_or_else(|| panic!("{name} has no tile sizes {i} for small dims"));
        name += &format!(" where {}", def.conditions_of(tile));
        def.ir_text_of(tile, dtypes, None)
    } else {
        def().ir_text_on(SM_90A, dtypes, None).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let precision = if how == Tf32 { Float32MatmulPrecision::High } else { Float32MatmulPrecision::Highest };
    let options = Options { float32_matmul_precision: precision, ..Options::new(SM_90A) };
    let module = write(&ir::parse(&text).expect("IR"), options).expect("PTX");
    let folder = tempfile::tempdir().expect("a folder");
    let (source, object) = (folder.path().join("kernel.ptx"), folder.path().join("kernel.cubin"));
    std::fs::write(&source, module.text).expect("a writable file");
    let (out, err) =
        run(ptxas, &["-v".as_ref(), "-arch=sm_90a".as_ref(), "-o".as_ref(), object.as_ref(), source.as_ref()]);
    let (code, _) = run(nvdisasm, &["-c".as_ref(), "-hex".as_ref(), object.as_ref()]);
    let counts = count(&(out + &err), &disassembly(&code), marks);
    (name.clone(), counts.unwrap_or_else(|| panic!("{name}: no loop executes {marks:?}")))
}

#[test]
fn machine_code_gets_no_worse() {
    let tools = ptxas::ptxas().and_then(|ptxas| Some((ptxas, nvdisasm(ptxas)?)));
    let Some((ptxas, nvdisasm)) = tools else {
        let why = "SKIPPED: no machine code is counted: there is no ptxas or no nvdisasm (set PTXAS and NVDISASM)";
        // By `eprintln`, the harness would keep it to itself.
        _ = writeln!(std::io::stderr(), "{why}");
        return;
    };
    max::kernels::link();
    let (version, _) = run(ptxas, &["--version".as_ref()]);
    let version = version.lines().find_map(|line| line.split("release ").nth(1)?.split(',').next()).unwrap_or("?");
    let half = ROWS.len().div_ceil(2);
    let found: Vec<(String, Counts)> = std::thread::scope(|scope| {
        let part = |rows: &'static [Row]| {
            let nvdisasm = nvdisasm.clone();
            scope.spawn(move || rows.iter().map(|row| assembled(ptxas, &nvdisasm, row)).collect::<Vec<_>>())
        };
        let parts = [part(&ROWS[..half]), part(&ROWS[half..])];
        parts.into_iter().flat_map(|part| part.join().expect("it counts")).collect()
    });
    let text: String = found.iter().map(|(name, counts)| format!("{counts} {name}\n")).collect();
    let text = format!("{version} {HEAD}\n{text}");
    let path = crate::path().with_file_name("sass.txt");
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    if text == old {
        return;
    }
    // Another release of the assembler may take some more instructions, and is no reason to bless.
    let same_release = old.split(' ').next() == Some(version);
    let slack = |count: u32| if same_release { count } else { count + count.div_ceil(5) + 2 };
    let mut worse = Vec::new();
    for (name, now) in &found {
        let known = old.lines().find_map(|line| line.strip_suffix(name.as_str())?.strip_suffix(' '));
        let numbers: Vec<u32> = known.unwrap_or_default().split(' ').filter_map(|number| number.parse().ok()).collect();
        let &[registers, spilled_bytes, instructions, loads, tensor] = &numbers[..] else {
            worse.push(format!("{name} is new: {now}"));
            continue;
        };
        let (loads, tensor) = if same_release { (loads, tensor) } else { (loads.min(1), tensor / 2) };
        let (registers, instructions) = (slack(registers), slack(instructions));
        let was = Counts { registers, spilled_bytes, instructions, loads, tensor };
        if now.worse(&was) {
            worse.push(format!("{name}: {now}, was {was}"));
        }
    }
    if std::env::var_os("MAX_BLESS").is_some() {
        return std::fs::write(&path, text).expect("a writable file");
    }
    assert!(worse.is_empty(), "worse ({HEAD}), which MAX_BLESS=1 accepts with a reason:\n{}", worse.join("\n"));
    assert!(!same_release, "{} can be written anew by MAX_BLESS=1: it is better now\n{text}", path.display());
}

#[test]
fn the_shortest_way_around_a_loop() {
    let text = "
        /*0000*/  MOV R1, R2 ;   /* 0x0000000000000000 */
                                 /* 0x0000000000000000 */
.L_x_1:
        /*0010*/  LDG.E.128 R4, [R2] ;  /* 0x0000000000000000 */
                                 /* 0x0000800000000000 */
        /*0020*/  @P0 BRA `(.L_x_2) ;  /* 0x0000000000000000 */
                                 /* 0x0001c00000000000 */
        /*0030*/  FADD R4, R4, R4 ;  /* 0x0000000000000000 */
                                 /* 0x0041c00000000000 */
.L_x_2:
        /*0040*/  FADD R5, R5, R5 ;  /* 0x0000000000000000 */
                                 /* 0x0001c00000000000 */
        /*0050*/  @!P1 BRA `(.L_x_1) ;  /* 0x0000000000000000 */
                                 /* 0x0001c00000000000 */
        /*0060*/  EXIT ;  /* 0x0000000000000000 */
                                 /* 0x0001c00000000000 */
";
    let code = disassembly(text);
    let operations: Vec<&str> = code.iter().map(|inst| &*inst.operation).collect();
    assert_eq!(operations, ["MOV", "LDG.E.128", "BRA", "FADD", "FADD", "BRA", "EXIT"]);
    assert_eq!(main_loop(&code, &[("LDG", 1)]), Some(vec![1, 2, 4, 5]));
    assert_eq!(main_loop(&code, &[("FADD", 2)]), Some(vec![1, 2, 3, 4, 5]));
    assert_eq!(main_loop(&code, &[("FADD", 3)]), None);
    let said =
        "ptxas info : 0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\nptxas info : Used 40 registers";
    let counts = count(said, &code, &[("FADD", 2)]).expect("a loop");
    // The load sets scoreboard 2, which the first sum waits for.
    assert_eq!(counts, Counts { registers: 40, spilled_bytes: 8, instructions: 5, loads: 1, tensor: 0 });
}
