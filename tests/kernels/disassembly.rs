//! The machine code of every compiled entry: it calls no math library and no outlined closure, and uses the full width
//! of its level's vectors.
//!
//! Code that calls is code that fell out of its CPU level: a closure that was not inlined lost the level's features, and
//! runs one element at a time.

use std::collections::{BTreeMap, HashMap, HashSet};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};
use max::dtype::DType;
use max::kernel::KernelLibrary;
use max::kernel::abi::{Instance, KernelDef, Level};
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget};

/// Marks where this program is in memory.
#[unsafe(no_mangle)]
extern "C" fn disassembly_anchor() {}

/// Functions that entries may call: what copies and clears memory; GEMM of tiles; what moves the elements of rows
/// that are not contiguous, one by one; what finds memory for a row; and where these would unwind to, did they panic.
const ALLOWED: [&str; 54] = [
    "memcpy",
    "memset",
    "memmove",
    "max_core::kernel::cpu::tensor::gather",
    "max_core::kernel::cpu::tensor::repeat_each",
    "max_core::kernel::cpu::tensor::scatter_block",
    "max_core::kernel::cpu::scratch::report_out_of_memory",
    "max_core::kernel::cpu::scratch::allocate",
    "max_core::kernel::cpu::scratch::Arena::of_thread",
    // Parts of long rows, which threads take.
    "max_core::kernel::cpu::rows::split_reduction::fold",
    "max_core::kernel::cpu::rows::split_reduction::leaves_idle",
    "max_core::kernel::cpu::rows::split_reduction::materialize",
    "max_core::kernel::cpu::rows::split_reduction::write",
    // Which way programs run, and rows on their way between memory and vectors across programs.
    "max_core::kernel::cpu::across::launch::goes_across",
    "max_core::kernel::cpu::across::permute::permute_avx2",
    "max_core::kernel::cpu::across::permute::permute_avx512",
    "max_core::kernel::cpu::across::transpose::read_words",
    "max_core::kernel::cpu::across::transpose::squares_avx512",
    "max_core::kernel::cpu::across::transpose::write_words",
    // GEMM and the packing of their operands, compiled once for each level.
    "max_core::kernel::cpu::gemm::dot_in_memory",
    "max_core::kernel::cpu::gemm::dot_scaled::Product::add",
    "max_core::kernel::cpu::gemm::dot_scaled::Product::few",
    "max_core::kernel::cpu::gemm::dot_scaled::Product::new",
    "max_core::kernel::cpu::gemm::dot_scaled::Product::release",
    "max_core::kernel::cpu::gemm::dot_scaled::gemv_int8::Few::add_to",
    "max_core::kernel::cpu::gemm::dot_scaled::gemv_int8::Few::begin_row",
    "max_core::kernel::cpu::gemm::dot_scaled::gemv_int8::Few::end_row",
    "max_core::kernel::cpu::gemm::dot_scaled::gemv_int8::Few::finish",
    "max_core::kernel::cpu::gemm::dot_scaled::microkernel_int8::add_offsets",
    "max_core::kernel::cpu::gemm::dot_scaled::microkernel_int8::scale_row",
    "max_core::kernel::cpu::gemm::store_deferred",
    "max_core::kernel::cpu::gemm::computed_lhs",
    "max_core::kernel::cpu::gemm::matrix_unit::blocked::computed_lhs_blocks",
    "max_core::kernel::cpu::tile::materialize",
    "max_core::kernel::cpu::gemm::microkernel::f32_v3",
    "max_core::kernel::cpu::gemm::microkernel::f32_v4",
    "max_core::kernel::cpu::gemm::microkernel::f64_v3",
    "max_core::kernel::cpu::gemm::microkernel::f64_v4",
    "max_core::kernel::cpu::gemm::microkernel::i32_v3",
    "max_core::kernel::cpu::gemm::microkernel::i32_v4",
    "max_core::kernel::cpu::gemm::microkernel::avx512::f32_v4",
    "max_core::kernel::cpu::gemm::microkernel::avx512::f64_v4",
    "max_core::kernel::cpu::gemm::matrix_unit::amx::block",
    "max_core::kernel::cpu::gemm::matrix_unit::amx::multiply",
    "max_core::kernel::cpu::gemm::matrix_unit::amx::pack_columns",
    "max_core::kernel::cpu::gemm::matrix_unit::amx::pack_rows",
    "max_core::kernel::cpu::gemm::microkernel::gemv_t::gemv_t_v3",
    "max_core::kernel::cpu::gemm::microkernel::gemv_t::gemv_t_v4",
    "max_core::kernel::cpu::pack::claim",
    "max_core::kernel::cpu::pack::panels_v3",
    "max_core::kernel::cpu::pack::panels_v4",
    "max_core::kernel::cpu::scratch::tile",
    "max_core::kernel::cpu_features::matrix_units",
    "core::panicking::panic_cannot_unwind",
];

/// Kernels with a reason to call more.
const CALLS: [(&str, &str, &str); 2] =
    [("mod", "fmodf", "an exact remainder is a loop"), ("mod", "fmod", "an exact remainder is a loop")];

/// Kernels with a reason not to use vectors.
const SCALAR: [(&str, &str); 3] = [
    ("mod", "calls fmod for each element"),
    ("merge_runs", "each element waits for a comparison of the last one"),
    ("pow_integer", "each element has as many rounds as its power has bits"),
];

/// A function of this program.
struct Function<'a> {
    name: String,
    address: u64,
    code: &'a [u8],
}

struct Program<'a> {
    /// By address.
    functions: BTreeMap<u64, Function<'a>>,
    /// What the loader puts into a slot: the name of a function of a shared library, or an address of this program.
    slots: HashMap<u64, String>,
    /// What is added to addresses when the program is loaded.
    bias: u64,
}

impl<'a> Program<'a> {
    fn read(file: &'a object::File<'a>) -> Result<Self, object::Error> {
        let mut functions = BTreeMap::new();
        let mut anchor = 0;
        for symbol in file.symbols().filter(|s| s.kind() == object::SymbolKind::Text && s.size() > 0) {
            let Some(section) = symbol.section_index() else { continue };
            let section = file.section_by_index(section)?;
            let start = (symbol.address() - section.address()) as usize;
            let code = &section.data()?[start..start + symbol.size() as usize];
            let name = format!("{:#}", rustc_demangle::demangle(symbol.name()?));
            if name == "disassembly_anchor" {
                anchor = symbol.address();
            }
            functions.insert(symbol.address(), Function { name, address: symbol.address(), code });
        }
        let mut slots = HashMap::new();
        let dynamic: HashMap<_, _> = file.dynamic_symbols().map(|s| (s.index(), s)).collect();
        for (at, relocation) in file.dynamic_relocations().into_iter().flatten() {
            let name = match relocation.target() {
                RelocationTarget::Symbol(index) => dynamic.get(&index).and_then(|s| s.name().ok()).map(str::to_owned),
                _ => functions.get(&(relocation.addend() as u64)).map(|f: &Function| f.name.clone()),
            };
            slots.extend(name.map(|name| (at, name)));
        }
        let bias = (disassembly_anchor as *const () as u64).wrapping_sub(anchor);
        Ok(Program { functions, slots, bias })
    }

    /// The function that an address is in.
    fn function(&self, address: u64) -> Option<&Function<'a>> {
        let (_, f) = self.functions.range(..=address).next_back()?;
        (address < f.address + f.code.len() as u64).then_some(f)
    }

    fn name(&self, address: u64) -> String {
        self.function(address).map_or(format!("{address:#x}"), |f| f.name.clone())
    }
}

/// What a function calls or jumps to outside of itself, and the vector registers it uses.
#[derive(Default)]
struct Uses {
    calls: HashSet<String>,
    xmm: usize,
    ymm: usize,
    zmm: usize,
}

fn uses(program: &Program, function: &Function) -> Uses {
    let mut uses = Uses::default();
    let mut info = InstructionInfoFactory::new();
    let range = function.address..function.address + function.code.len() as u64;
    let pointers = pointers(program, function);
    for instruction in &mut Decoder::with_ip(64, function.code, function.address, DecoderOptions::NONE) {
        for used in info.info(&instruction).used_registers() {
            let register = used.register();
            uses.xmm += usize::from(register.is_xmm());
            uses.ymm += usize::from(register.is_ymm());
            uses.zmm += usize::from(register.is_zmm());
        }
        let through = (instruction.is_call_near_indirect(), instruction.op0_kind(), instruction.memory_base());
        if let (true, OpKind::Register, _) | (true, OpKind::Memory, Register::RSP | Register::RBP) = through {
            // Through a pointer that was loaded before, for several calls, and perhaps spilled.
            if pointers.is_empty() {
                uses.calls.insert("a function pointer".to_owned());
            }
            uses.calls.extend(pointers.iter().cloned());
        } else if let Some(call) = target(program, &instruction, &range) {
            uses.calls.insert(call);
        }
    }
    uses
}

/// The functions whose addresses are loaded into registers.
fn pointers(program: &Program, function: &Function) -> HashSet<String> {
    let name = |i: Instruction| {
        let rip =
            i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Memory && i.memory_base() == Register::RIP;
        let address = i.ip_rel_memory_address();
        match i.mnemonic() {
            Mnemonic::Mov if rip => program.slots.get(&address).cloned(),
            Mnemonic::Lea if rip => program.functions.get(&address).map(|f| f.name.clone()),
            _ => None,
        }
    };
    Decoder::with_ip(64, function.code, function.address, DecoderOptions::NONE).into_iter().filter_map(name).collect()
}

/// The function that an instruction goes to, if that is another one.
fn target(program: &Program, i: &Instruction, own: &std::ops::Range<u64>) -> Option<String> {
    match i.flow_control() {
        FlowControl::Call | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            let to = i.near_branch_target();
            (!own.contains(&to)).then(|| program.name(to))
        }
        FlowControl::IndirectCall | FlowControl::IndirectBranch => {
            if i.op0_kind() == OpKind::Memory && i.memory_base() == Register::RIP {
                let slot = i.ip_rel_memory_address();
                return Some(program.slots.get(&slot).cloned().unwrap_or(format!("slot {slot:#x}")));
            }
            // A jump through a table is a `match`.
            (i.flow_control() == FlowControl::IndirectCall).then(|| "a function pointer".to_owned())
        }
        _ => None,
    }
}

fn entries() -> Vec<(&'static KernelDef, &'static Instance)> {
    max::kernels::link();
    let library = KernelLibrary::linked();
    let all = library.tables().filter(|def| def.krate.as_str() == "max-kernels");
    let all = all.flat_map(|def| def.instances.as_slice().iter().map(move |i| (def, i)));
    all.filter(|(_, i)| matches!(i.level, Level::V3 | Level::V4)).collect()
}

/// The levels above that this build has. A native build has lower ones too, of kernels that have none for the machine's own:
/// `softmax` has all.
fn levels() -> Vec<Level> {
    let entries = entries();
    let of_all = entries.iter().filter(|(def, _)| def.name.as_str() == "softmax");
    let mut levels: Vec<Level> = of_all.map(|(_, instance)| instance.level).collect();
    levels.sort();
    levels.dedup();
    levels
}

#[test]
fn entries_call_nothing_and_use_their_vectors() {
    if cfg!(debug_assertions) {
        println!("SKIPPED: code that is not optimized calls everything");
        return;
    }
    let data = std::fs::read(std::env::current_exe().expect("a path")).expect("a readable file");
    let file = object::File::parse(&*data).expect("an executable");
    let program = Program::read(&file).expect("symbols");
    let mut failures = Vec::new();
    let entries = entries();
    assert!(entries.len() > 250, "{} entries", entries.len());
    for (def, instance) in entries {
        let kernel = def.name.as_str();
        let dtypes: Vec<DType> = instance.dtypes.as_slice().iter().filter_map(|&c| DType::from_code(c)).collect();
        let names: Vec<&str> = dtypes.iter().map(|d| d.short_name()).collect();
        let entry = format!("{kernel}<{}> at {}", names.join(", "), instance.level.name());
        let address = (instance.run as usize as u64).wrapping_sub(program.bias);
        let Some(function) = program.functions.get(&address) else {
            failures.push(format!("{entry}: no function at {address:#x}"));
            continue;
        };
        let uses = uses(&program, function);
        let mut calls: Vec<&String> = uses
            .calls
            .iter()
            .filter(|call| !ALLOWED.contains(&call.as_str()))
            .filter(|call| !CALLS.iter().any(|(k, f, _)| *k == kernel && f == call))
            .collect();
        calls.sort();
        if !calls.is_empty() {
            failures.push(format!("{entry} calls {calls:?}"));
        }
        let float = dtypes.iter().all(|d| matches!(d, DType::F32 | DType::F16 | DType::BF16)) && !dtypes.is_empty();
        let wide = if instance.level == Level::V4 { uses.zmm } else { uses.ymm };
        if float && wide == 0 && !SCALAR.iter().any(|(k, _)| *k == kernel) {
            failures.push(format!("{entry} uses {} xmm, {} ymm, {} zmm registers", uses.xmm, uses.ymm, uses.zmm));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// The innermost loops of a function that multiply and add.
fn loops(function: &Function) -> Vec<Vec<Instruction>> {
    let code: Vec<Instruction> =
        Decoder::with_ip(64, function.code, function.address, DecoderOptions::NONE).into_iter().collect();
    let back = |i: &Instruction| {
        let branch = matches!(i.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch);
        let to = i.near_branch_target();
        (branch && to >= function.address && to < i.ip()).then_some((to, i.ip()))
    };
    let ranges: Vec<(u64, u64)> = code.iter().filter_map(back).collect();
    let innermost =
        |(from, to): &&(u64, u64)| !ranges.iter().any(|(f, t)| f >= from && t <= to && (f, t) != (from, to));
    let body = |(from, to): &(u64, u64)| -> Vec<Instruction> {
        code.iter().filter(|i| i.ip() >= *from && i.ip() <= *to).copied().collect()
    };
    ranges.iter().filter(innermost).map(body).filter(|body| body.iter().any(multiplies)).collect()
}

fn multiplies(i: &Instruction) -> bool {
    let name = format!("{:?}", i.mnemonic());
    ["Vfmadd", "Vpmaddwd", "Vdpbf16ps", "Vpdpbusd", "Tdp"].iter().any(|product| name.starts_with(product))
}

#[test]
fn loops_of_products_stay_in_registers() {
    if cfg!(debug_assertions) {
        println!("SKIPPED: code that is not optimized keeps nothing in registers");
        return;
    }
    max::kernels::link();
    let data = std::fs::read(std::env::current_exe().expect("a path")).expect("a readable file");
    let file = object::File::parse(&*data).expect("an executable");
    let program = Program::read(&file).expect("symbols");
    // The multiplications of the largest block: rows by vectors of columns, in two steps, or four where columns are taken
    // three vectors at a time; of signed bytes, two more. By tile registers, those of the parts of a line of `f32`.
    let microkernels = [
        ("microkernel::f32_v4", 56),
        ("microkernel::f64_v4", 56),
        ("microkernel::i32_v4", 56),
        ("microkernel::f32_v3", 24),
        ("microkernel::f64_v3", 24),
        ("microkernel::i32_v3", 24),
        ("microkernel::avx512::f32_v4", 96),
        ("microkernel::avx512::f64_v4", 96),
        ("matrix_unit::bf16_epilogue::multiply", 16),
        ("matrix_unit::vnni::vnni_bf16", 16),
        ("matrix_unit::vnni::vnni_i8_u8", 16),
        ("matrix_unit::vnni::vnni_i8_i8", 18),
        ("matrix_unit::amx::block", 24),
    ];
    let levels = levels();
    for (name, most) in microkernels {
        // Those that no kernel of the build calls are not in it.
        let level = if name.ends_with("_v3") { Level::V3 } else { Level::V4 };
        if !levels.contains(&level) {
            println!("SKIPPED: {name}, since this build has no {}", level.name());
            continue;
        }
        let name = format!("max_core::kernel::cpu::gemm::{name}");
        // One for each number of vectors of columns.
        let loops: Vec<_> = program.functions.values().filter(|f| f.name == name).flat_map(loops).collect();
        let counts: Vec<usize> = loops.iter().map(|l| l.iter().filter(|i| multiplies(i)).count()).collect();
        assert!(counts.contains(&most), "{name}: no loop has {most} multiplications: {counts:?}");
        for body in &loops {
            for i in body {
                assert!(i.flow_control() != FlowControl::Call, "{name}: a call at {:#x}", i.ip());
                let vector = |r: Register| match name.rsplit("::").next() {
                    Some("block") => r.is_tmm(),
                    Some(name) if name.ends_with("v3") => r.is_ymm(),
                    _ => r.is_zmm(),
                };
                assert!(!multiplies(i) || vector(i.op0_register()), "{name}: a narrow product at {:#x}", i.ip());
                let moved = (0..i.op_count())
                    .any(|k| i.op_kind(k) == OpKind::Register && i.op_register(k).is_vector_register());
                let stack = i.memory_base() == Register::RSP;
                assert!(!(moved && stack), "{name}: a spilled vector at {:#x}", i.ip());
            }
        }
    }
}

/// The multiplications of an exponential.
const EXPONENTIAL: usize = 7;

/// The vector instructions of a loop that use memory of the stack, but for those that walk an array there.
fn spills(body: &[Instruction]) -> usize {
    let vector = |i: &Instruction| {
        (0..i.op_count()).any(|k| i.op_kind(k) == OpKind::Register && i.op_register(k).is_vector_register())
    };
    body.iter().filter(|i| i.memory_base() == Register::RSP && i.memory_index() == Register::None && vector(i)).count()
}

#[test]
fn loops_of_exponentials_stay_in_registers() {
    if cfg!(debug_assertions) {
        println!("SKIPPED: code that is not optimized keeps nothing in registers");
        return;
    }
    let data = std::fs::read(std::env::current_exe().expect("a path")).expect("a readable file");
    let file = object::File::parse(&*data).expect("an executable");
    let program = Program::read(&file).expect("symbols");
    let half = |code: &u8| matches!(DType::from_code(*code), Some(DType::F32 | DType::F16 | DType::BF16));
    let mut count = 0;
    for (def, instance) in entries() {
        let (kernel, level) = (def.name.as_str(), instance.level.name());
        if !matches!(kernel, "softmax" | "logsoftmax" | "softmax_columns" | "logsoftmax_columns")
            || !instance.dtypes.as_slice().iter().all(half)
        {
            continue;
        }
        let address = (instance.run as usize as u64).wrapping_sub(program.bias);
        let function = program.functions.get(&address).unwrap_or_else(|| panic!("no {kernel} at {level}"));
        let wide = |r: Register| if instance.level == Level::V4 { r.is_zmm() } else { r.is_ymm() };
        // The main loops: nothing but exponentials is multiplied there, of 64 elements, and little else is done.
        let products = |l: &&Vec<Instruction>| l.iter().filter(|i| multiplies(i)).count();
        // The end of a row is masked, and done once.
        let masked = |i: &Instruction| i.op_mask() != Register::None;
        let is_main = |l: &&Vec<Instruction>| {
            let n = products(l);
            n >= 4 * EXPONENTIAL && n % EXPONENTIAL == 0 && n * 8 >= l.len() && !l.iter().any(masked)
        };
        let loops = loops(function);
        assert!(loops.iter().any(|l| is_main(&l)), "{kernel} at {level} has no loop of exponentials");
        for body in loops.iter().filter(is_main) {
            for i in body {
                assert!(i.flow_control() != FlowControl::Call, "{kernel} at {level}: a call at {:#x}", i.ip());
                assert!(
                    !multiplies(i) || wide(i.op0_register()),
                    "{kernel} at {level}: a narrow product at {:#x}",
                    i.ip()
                );
            }
            // Eight vectors of AVX2 at a time, and the constants of an exponential, are more than its 16 registers; those of
            // AVX-512 suffice but for a few, and which, depends on how the crate is divided into units of compilation.
            // What belongs to each column takes more of them.
            let share = if kernel.ends_with("_columns") { 5 } else { 6 };
            let most = body.len() / if instance.level == Level::V4 { 16 } else { share };
            assert!(spills(body) <= most, "{kernel} at {level}: {} of {} use the stack", spills(body), body.len());
        }
        count += 1;
    }
    assert!(count >= 12 * levels().len(), "{count} entries");
}
