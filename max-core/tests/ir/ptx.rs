//! The PTX of the kernels in this folder, and of kernels made here that use every operation with every dtype. All of it
//! is assembled where `ptxas` is found; that of a few kernels is kept as `*.ptx` (`MAX_BLESS=1` writes these anew).

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use max_core::dtype::DType;
use max_core::kernel::ir::{AtomicOp, BinaryOp, CmpOp, Kernel, UnaryOp, compute_dtype, parse, parse_file, verify};
use max_core::kernel::ptx::{self, Module, Options, PtxError, Slot, Target};

use crate::ptxas::{assemble, together};
use crate::text::{files, kernels, without_comment};

const TARGETS: [Target; 3] = [
    Target { sm: 80, arch_specific: false },
    Target { sm: 90, arch_specific: true },
    Target { sm: 100, arch_specific: false },
];

#[track_caller]
fn write(kernel: &Kernel, target: Target) -> Module {
    let options = Options { annotate: true, ..Options::new(target) };
    let module = ptx::write(kernel, options).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(ptx::write(kernel, options).as_ref(), Ok(&module), "the same kernel gives the same bytes");
    let plain = ptx::write(kernel, Options::new(target)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(without_lines(&module.text), plain.text, "source lines change nothing");
    module
}

/// PTX without what names source lines.
fn without_lines(text: &str) -> String {
    let names = |line: &&str| line.trim_start().starts_with(".loc ") || line.starts_with(".file");
    let plain: String = text.lines().filter(|line| !names(line)).map(|line| line.to_owned() + "\n").collect();
    plain.replace("\n\n\n", "\n\n")
}

/// Assembles kernels, given as text, for all targets: in one file each.
#[track_caller]
fn assemble_all(name: &str, sources: &[String]) {
    for target in TARGETS {
        let modules = sources.iter().map(|source| {
            let kernel = parse(source).unwrap_or_else(|e| panic!("{e}\n{source}"));
            let module = write(&kernel, target);
            (kernel.name, module.text, module.entry)
        });
        for file in together(modules) {
            assemble(name, &target.to_string(), &file);
        }
    }
}

/// The kernels in this folder that follow the rules, with their file's name.
fn valid() -> Vec<(String, Kernel)> {
    let mut found = Vec::new();
    for (path, text) in files() {
        let file = path.file_name().and_then(|n| n.to_str()).expect("a name").to_owned();
        for (_, source) in kernels(&text) {
            let plain: String = source.lines().map(|l| without_comment(l).to_owned() + "\n").collect();
            let kernel = parse_file(&file, &plain).expect("checked by other tests");
            if verify(&kernel).is_ok() {
                found.push((file.clone(), kernel));
            }
        }
    }
    found
}

#[test]
fn the_kernels_of_this_folder_assemble() {
    // Those that print have declarations of their own, and are assembled below.
    let quiet = valid().into_iter().filter(|(file, _)| file != "print.ir");
    let sources: Vec<String> = quiet.map(|(_, kernel)| kernel.to_string()).collect();
    assert!(sources.len() >= 8);
    assemble_all("the kernels in tests/ir", &sources);
    for target in TARGETS {
        for (file, kernel) in valid() {
            let options = Options { annotate: true, bounds: true, ..Options::new(target) };
            let module = ptx::write(&kernel, options).unwrap_or_else(|e| panic!("{e}"));
            assemble(&format!("{file} with bounds checked"), &target.to_string(), &module.text);
        }
    }
}

#[test]
fn snapshots() {
    for (file, kernel) in valid() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../ir").join(file.replace(".ir", ".ptx"));
        if file.starts_with("errors") || !["add_constant.ir", "softmax_rows.ir", "cumsum.ir"].contains(&file.as_str()) {
            continue;
        }
        let written = write(&kernel, TARGETS[0]).text;
        if std::env::var_os("MAX_BLESS").is_some() {
            fs::write(&path, &written).expect("a writable file");
        }
        let kept = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(written, kept, "{}: MAX_BLESS=1 accepts the change", path.display());
    }
}

/// Text of a kernel, with values numbered as they come.
struct Source {
    text: String,
    next: u32,
}

impl Source {
    fn new(header: &str, next: u32) -> Self {
        Source { text: format!("{header} {{\n"), next }
    }

    fn add(&mut self, dtype: DType, op: &str) -> u32 {
        let _ = writeln!(self.text, "  %{}: {} = {op}", self.next, dtype.short_name());
        self.next += 1;
        self.next - 1
    }

    fn effect(&mut self, op: &str) {
        let _ = writeln!(self.text, "  {op}");
    }

    fn finish(self) -> String {
        self.text + "}\n"
    }
}

fn compute_dtypes() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&d| compute_dtype(d) == d)
}

/// A kernel that loads two values, applies everything to them that `ops` adds, and stores each result.
fn with_values(
    dtype: DType,
    ops: impl FnOnce(&mut Source, u32, u32, &mut dyn FnMut(&mut Source, DType, u32)),
) -> String {
    let outs: String = DType::ALL.iter().map(|d| format!(", out o_{0}: {0}[1]", d.short_name())).collect();
    let name = dtype.short_name();
    let mut s = Source::new(&format!("kernel \"{name}\" program grid(1) (in x: {name}[1]{outs})"), 0);
    let i = s.add(DType::I64, "const 0");
    let j = s.add(DType::I64, "const 1");
    let value = compute_dtype(dtype);
    let (a, b) = (s.add(value, &format!("load x[%{i}]")), s.add(value, &format!("load x[%{j}] pad %2")));
    let mut place = 0;
    ops(&mut s, a, b, &mut |s, dtype, v| {
        let at = s.add(DType::I64, &format!("const {place}"));
        place += 1;
        s.effect(&format!("store o_{}[%{at}] = %{v}", dtype.short_name()));
    });
    s.finish()
}

/// Whether the verifier allows an operation, which is tried alone.
fn allowed(dtype: DType, op: &str) -> bool {
    let d = dtype.short_name();
    let text = format!(
        "kernel \"k\" elementwise (in x: {d}, in y: {d}, out z: {d}) |%0: {d}, %1: {d}| {{ %2: {d} = {op} yield %2 }}"
    );
    verify(&parse(&text).expect("a kernel")).is_ok()
}

#[test]
fn every_operation_of_every_dtype_assembles() {
    let mut sources = Vec::new();
    let mut count = 0;
    for dtype in compute_dtypes() {
        sources.push(with_values(dtype, |s, a, b, store| {
            for op in UnaryOp::ALL.iter().filter(|op| allowed(dtype, &format!("{} %0", op.name()))) {
                let v = s.add(dtype, &format!("{} %{a}", op.name()));
                store(s, dtype, v);
                count += 1;
            }
            for op in BinaryOp::ALL.iter().filter(|op| allowed(dtype, &format!("{} %0, %1", op.name()))) {
                let v = s.add(dtype, &format!("{} %{a}, %{b}", op.name()));
                store(s, dtype, v);
                count += 1;
            }
            for op in CmpOp::ALL {
                let v = s.add(DType::Bool, &format!("{} %{a}, %{b}", op.name()));
                store(s, DType::Bool, v);
                let v = s.add(dtype, &format!("select %{v}, %{a}, %{b}"));
                store(s, dtype, v);
            }
            for to in compute_dtypes() {
                let v = s.add(to, &format!("cast %{a}"));
                store(s, to, v);
                let bits = dtype != DType::Bool && to != DType::Bool;
                if bits && to.size_in_bytes() == dtype.size_in_bytes() {
                    let v = s.add(to, &format!("bitcast %{a}"));
                    store(s, to, v);
                }
            }
            let zero = if dtype.is_float() { "-0.0" } else { "0" };
            let zero = if dtype == DType::Bool { "false" } else { zero };
            let v = s.add(dtype, &format!("const {zero}"));
            store(s, dtype, v);
        }));
    }
    // 10 numbers of two unary operations and 7 arithmetic ones, of which 8 integers have six more; f32 and f64 five, and f32
    // one more, as int32 has.
    assert_eq!(count, 10 * (2 + 7) + 8 * (1 + 5) + 2 * 5 + 4 + 1 + 1, "operations that the verifier allows");
    assemble_all("every operation", &sources);
}

#[test]
fn every_dtype_of_memory_assembles() {
    let mut sources = Vec::new();
    for dtype in DType::ALL {
        let d = dtype.short_name();
        sources.push(with_values(dtype, |s, a, b, store| {
            store(s, dtype, a);
            store(s, dtype, b);
            if compute_dtype(dtype) != dtype {
                let v = s.add(DType::F32, &format!("round {d} %{a}"));
                store(s, DType::F32, v);
                for bits in [DType::U8, DType::I8, DType::U16, DType::I16] {
                    if bits.size_in_bytes() == dtype.size_in_bytes() {
                        let v = s.add(bits, &format!("to_bits {d} %{a}"));
                        let v = s.add(DType::F32, &format!("from_bits {d} %{v}"));
                        store(s, DType::F32, v);
                    }
                }
            }
        }));
        let mut s = Source::new(&format!("kernel \"atomics_{d}\" program grid(1) (inout x: {d}[2])"), 0);
        let i = s.add(DType::I64, "const 0");
        let v = s.add(compute_dtype(dtype), &format!("load x[%{i}, %{i}]"));
        s.effect(&format!("scatter x[%{i}, %{i}] = %{v}"));
        s.effect(&format!("lanes %{i} |%{}: i64| {{", s.next));
        let lane = s.next;
        let ops = if dtype == DType::Bool { &AtomicOp::ALL[3..] } else { AtomicOp::ALL };
        let ops = if dtype.is_float() { &AtomicOp::ALL[..3] } else { ops };
        for op in ops {
            s.effect(&format!("atomic {} x[%{lane}, %{i}] = %{v}", op.name()));
        }
        s.effect("}");
        sources.push(s.finish());
    }
    assemble_all("every dtype of memory", &sources);
}

#[test]
fn tiles_of_every_shape_assemble() {
    let mut sources = Vec::new();
    for (rows, inner, columns) in
        [(1, 1, 1), (16, 16, 16), (17, 5, 33), (1, 64, 300), (300, 3, 1), (64, 8, 64), (7, 9, 5)]
    {
        for (sum, factor) in [("f32", "f32"), ("f64", "f64"), ("i32", "i8")] {
            sources.push(format!(
                "kernel \"tiles\" program grid(1) (inout c: {sum}[2], in a: {factor}[3], in b: {factor}[2], in p: bool[1]) {{
                    %0: i64 = const 3
                    %1: tile<{factor}, {rows}x{inner}> = tile_load a[%0, %0, %0]
                    %2: tile<{factor}, {inner}x{columns}> = tile_load b[%0, %0] transposed
                    %3: tile<{sum}, {rows}x{columns}> = tile_load c[%0, %0]
                    %4: tile<{sum}, {rows}x{columns}> = dot %1, %2, %3
                    %5: tile<{sum}, {rows}x1> = tile_reduce max %4
                    %6: tile<{sum}, {rows}x{columns}> = tile_map (%4, %5) |%7: i64, %8: i64; %9: {sum}, %10: {sum}| {{
                        %11: {sum} = sub %9, %10
                        store c[%7, %8] = %11
                        yield %11
                    }}
                    %12: bool = load p[%0]
                    %13: tile<{sum}, {rows}x{columns}> = if %12 {{ yield %6 }} else {{ yield %4 }}
                    tile_store c[%0, %0] = %13
                }}"
            ));
        }
    }
    assemble_all("tiles", &sources);
}

fn simple(target: Target, source: &str) -> Result<Module, PtxError> {
    ptx::write(&parse(source).expect("a kernel"), Options::new(target))
}

#[test]
fn parameters_are_listed_in_order() {
    let module =
        simple(TARGETS[0], "kernel \"a.b\" elementwise (in x: f32, out y: f32) params(n: int) |%0: f32| { yield %0 }");
    let module = module.expect("PTX");
    assert_eq!((module.entry.as_str(), module.block_size, module.shared_bytes), ("max_a_b", 256, 0));
    let operand = |operand| [Slot::Pointer { operand }, Slot::Stride { operand, axis: 0 }];
    let expected = [&operand(0)[..], &operand(1), &[Slot::Param { index: 0 }, Slot::Count]].concat();
    assert_eq!(module.params, expected);

    let module = simple(TARGETS[0], "kernel \"k\" program grid(y.0) (out y: f32[2], in s: f32[0]) {}").expect("PTX");
    let (pointer, grid) = (|operand| Slot::Pointer { operand }, |axis| Slot::Grid { axis });
    let dim = |axis| Slot::Dim { operand: 0, axis };
    let stride = |axis| Slot::Stride { operand: 0, axis };
    let expected = [pointer(0), dim(0), dim(1), stride(0), stride(1), pointer(1), grid(0), grid(1), grid(2)];
    assert_eq!(module.params, expected);
}

#[test]
fn source_lines_are_named_when_asked() {
    let kernel = parse(
        "kernel \"k\" program grid(1) (in x: f32[1], out y: f32[1]) files(\"src/a.rs\", \"src\\\\b\\\".rs\") {
            %0: i64 = dim x.0 @3:9
            lanes %0 |%1: i64| @1/7:5 { %2: f32 = load x[%1] @1/8:20 store y[%1] = %2 @1/8:9 }
        }",
    )
    .expect("a kernel");
    let text = write(&kernel, TARGETS[0]).text;
    assert!(text.contains(".address_size 64\n\n.file 1 \"src/a.rs\"\n.file 2 \"src/b_.rs\"\n\n.visible"), "{text}");
    // What comes before the first instruction is for its sake, what ends a loop for that of the loop.
    let places: Vec<&str> =
        text.lines().filter_map(|line| line.trim().strip_prefix(".loc ")?.split(" //").next()).collect();
    // A thread takes four elements, each of which is stored for itself before they are together.
    let stores = ["2 8 9", "2 7 5"].repeat(4);
    assert_eq!(places, [&["1 3 9", "2 7 5", "2 8 20"], &stores[..], &["1 3 9"]].concat(), "{text}");
    assert!(text.contains("    .loc 2 7 5 // b_.rs:7\n"), "{text}");
    for target in TARGETS {
        assemble("source lines", &target.to_string(), &write(&kernel, target).text);
    }
    let unknown = parse("kernel \"k\" elementwise (in x: f32, out y: f32) |%0: f32| { %1: f32 = neg %0 yield %1 }");
    let text = write(&unknown.expect("a kernel"), TARGETS[0]).text;
    assert!(!text.contains(".file") && !text.contains(".loc"), "{text}");
}

#[test]
fn barriers_stand_where_memory_is_shared() {
    let barriers = |body: &str| {
        let source = format!(
            "kernel \"k\" program grid(1) (inout y: f32[1], in x: f32[1], out z: f32[1]) {{\n%0: i64 = const 9\n{body} }}"
        );
        simple(TARGETS[0], &source).expect("PTX").text.matches("bar.sync").count()
    };
    let read = |from: &str, i: u32, v: u32| format!("lanes %0 |%{i}: i64| {{ %{v}: f32 = load {from}[%{i}] }}\n");
    let write = |to: &str, i: u32, v: u32| {
        format!("lanes %0 |%{i}: i64| {{ %{v}: f32 = const 0.0 store {to}[%{i}] = %{v} }}\n")
    };
    assert_eq!(barriers(&(read("x", 1, 2) + &write("y", 3, 4))), 0, "different operands");
    assert_eq!(barriers(&(read("y", 1, 2) + &write("y", 3, 4))), 1, "written after it is read");
    assert_eq!(barriers(&(write("y", 1, 2) + &read("y", 3, 4))), 1, "read after it is written");
    assert_eq!(barriers(&(write("z", 1, 2) + &write("z", 3, 4))), 1, "written twice");
    assert_eq!(barriers(&(read("y", 1, 2) + &read("y", 3, 4))), 0, "read twice");
    let store = "%1: f32 = const 1.0 store y[%0] = %1\n";
    assert_eq!(barriers(&(store.to_owned() + &read("y", 2, 3))), 1, "read by all after one thread wrote it");
    assert_eq!(barriers(&(store.to_owned() + "store y[%0] = %1\n")), 0, "the same thread writes again");
    let combine = "%1: f32 = load y[%0] %2: f32 = neg %1 store y[%0] = %2\n";
    let again = combine.replace("%1", "%3").replace("%2", "%4");
    assert_eq!(barriers(&(combine.to_owned() + &again)), 0, "the first thread reads what it wrote");
    let needed = "%5: bool = lt %3, %4 if %5 { print \"less\" () }\n";
    assert_eq!(barriers(&(combine.to_owned() + &again + needed)), 2, "all threads read it");
    let by_all = again.clone() + "lanes %0 |%5: i64| { store z[%5] = %3 }\n";
    assert_eq!(barriers(&(combine.to_owned() + &by_all)), 2, "lane code takes it");
    assert_eq!(barriers(&(write("y", 1, 2) + &again)), 1, "the first thread reads what others wrote");
    let looped = format!("for %0 to %0 step %0 |%1: i64| {{ {} }}", write("y", 2, 3));
    assert_eq!(barriers(&looped), 1, "the round before has written it");
    let branches = format!("%1: bool = const true if %1 {{ {} }} else {{ {} }}\n", write("y", 2, 3), write("y", 4, 5));
    assert_eq!(barriers(&branches), 0, "one branch runs");
    assert_eq!(barriers(&(branches + &read("y", 6, 7))), 1, "either branch has written it");
}

#[test]
fn what_a_target_cannot_hold_is_an_error() {
    let old = Target { sm: 75, arch_specific: false };
    let kernel = "kernel \"k\" program grid(1) (out y: f32[2]) {}";
    let message = simple(old, kernel).expect_err("too old").to_string();
    assert_eq!(message, "kernel `k`: no code is written for sm_75; the oldest is sm_80");

    let many: Vec<String> = (0..300).map(|i| format!("in x{i}: f32")).collect();
    let kernel = format!("kernel \"k\" elementwise ({}) {{}}", many.join(", "));
    assert!(matches!(simple(TARGETS[0], &kernel), Err(PtxError::Invalid(_))));
    let outs: Vec<String> = (0..300).map(|i| format!("out x{i}: f32")).collect();
    let yields = vec!["%0"; 300].join(", ");
    let kernel = format!("kernel \"k\" elementwise ({}) {{ %0: f32 = const 1.0 yield {yields} }}", outs.join(", "));
    let error = simple(TARGETS[0], &kernel).expect_err("too many parameters");
    assert_eq!(error, PtxError::TooManyParams { kernel: "k".into(), bytes: 601 * 8, limit: 4096 });

    let tile = |r: u32, c: u32| {
        format!(
            "kernel \"k\" program grid(1) (out y: f32[2]) {{ %0: f32 = const 1.0 %1: tile<f32, {r}x{c}> = tile_full %0 }}"
        )
    };
    assert!(simple(TARGETS[0], &tile(128, 256)).is_ok());
    let error = simple(TARGETS[0], &tile(128, 272)).expect_err("too many elements");
    assert_eq!(error, PtxError::TileSize { kernel: "k".into(), rows: 128, columns: 272, limit: 32768 });
    let huge = simple(TARGETS[0], &tile(u32::MAX, u32::MAX)).expect_err("far too many elements");
    assert!(matches!(huge, PtxError::TileSize { .. }));

    let dot = |k: u32| {
        format!(
            "kernel \"k\" program grid(1) (out y: f32[2]) {{ %0: f32 = const 1.0
                %1: tile<f32, 64x{k}> = tile_full %0
                %2: tile<f32, {k}x64> = tile_full %0
                %3: tile<f32, 64x64> = tile_full %0
                %4: tile<f32, 64x64> = dot %1, %2, %3 }}"
        )
    };
    assert_eq!(simple(TARGETS[0], &dot(32)).expect("PTX").shared_bytes, (64 * 48 + 32 * 80) * 4);
    assert!(simple(TARGETS[1], &dot(400)).is_ok());
    let error = simple(TARGETS[0], &dot(400)).expect_err("too much shared memory");
    assert!(matches!(error, PtxError::SharedMemory { bytes: 230_400, limit: 166_912, .. }), "{error:?}");
}
