//! The kernel being lowered: the registers of values, instructions, and what is computed once in the prologue.

use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;

use super::analysis::hazards::Hazards;
use super::analysis::plan::Plan;
use super::machine::barriers::{BlockBarrier, Effect};
use super::machine::isa::IMPLICIT_DEF;
use super::machine::verify::Environment;
use super::machine::{Class, Function, Guard, Label, Operand, Reg, Special, Symbol, mem, mem_at};
use super::memory::tma::BARRIER;
use super::memory::vectorize::Element;
use super::print::Printed;
use super::warp_specialization::{PRODUCER_THREADS, Ring};
use super::{BLOCK_SIZE, FLOAT8_MMA, Module, Options, PtxError, Slot, Target};
use crate::dtype::DType;
use crate::kernel::abi::KernelKind;
use crate::kernel::ir::{Inst, Kernel, Loc, Op, Type, Value};

/// The most registers of a `dot` and its operands for which two blocks on a processor have enough.
const TWO_BLOCKS_REGISTERS: usize = 64;
/// Blocks that there is room for on a processor, of kernels with loops in lane code: a thread has up to 80 registers.
/// So it has where it takes several elements of rows at a time that need two registers each.
const LOOPS_BLOCKS: u32 = 3;
/// Where these need one: up to 64 registers.
const VECTORIZED_BLOCKS: u32 = 4;
/// So many parameters of an entry take registers of their own beside these.
const MANY_PARAMS: usize = 28;
/// Where that is not enough, as for polynomials of elements of 8 bytes, or both of these: up to 128 registers.
const WIDE_BLOCKS: u32 = 2;
/// So many parameters need these too.
const WIDE_PARAMS: usize = 36;

/// What is computed once, at the entry's start, if it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fixed {
    /// A parameter of the entry.
    Slot(Slot),
    /// The low bits of a kernel's parameter.
    LowBits { param: u32, class: Class },
    /// The thread's index in its block.
    Thread,
    /// The same, in 64 bits.
    Thread64,
    /// Whether this is the block's first thread.
    Leader,
    /// The thread's index in its warp.
    Lane,
    /// The warp's index in its block.
    Warp,
    /// The address of shared memory.
    SharedStart,
    /// The address of the part of shared memory that operations use while they run.
    Shared,
    /// The thread's index divided by that power of two.
    ThreadRow(u32),
    /// The remainder of that division.
    ThreadColumn(u32),
    /// The first row of a fragment that this thread holds, where so many warps below each other have that many rows
    /// each.
    LaneRow { warp_rows: u32, height: u32 },
    /// Its first column.
    LaneColumn { warp_rows: u32, width: u32, neighbours: u32 },
    /// The index of the thread's warpgroup in its block.
    Warpgroup,
    /// Whether the launch has all tensor maps.
    Mapped,
    /// The address of a tensor map.
    Map(Slot),
}

/// A kernel on its way to PTX.
pub(super) struct Gen<'k> {
    pub kernel: &'k Kernel,
    /// The registers of each value: one, or those of a tile.
    values: Vec<Vec<Reg>>,
    /// Whether lane code is being written.
    pub in_lanes: bool,
    pub plan: Rc<Plan>,
    /// What the code requests that is no parameter of the entry.
    pub missing: Option<Slot>,
    /// The stage addresses of a pipelined loop's tiles, while its body is written.
    pub pipeline: HashMap<Value, Reg>,
    /// The partial sums of sliced `dot`s, while the loop is written that they are kept through.
    pub partials: HashMap<Value, Vec<Reg>>,
    /// Where the cached rows are, and whether there was room for them.
    pub cached: HashMap<usize, (Reg, Reg)>,
    /// The bytes of shared memory that there are for a row, and where those of the first one begin.
    pub room: Option<(Reg, Reg)>,
    /// Elements that were loaded before the lane code that is being written, by the load; and those that are stored
    /// behind it, by the operand.
    pub loaded: HashMap<Value, Element>,
    pub to_store: HashMap<u32, Element>,
    /// Whether threads use vectorized access to rows.
    pub vectorizes: bool,
    /// The consumers' place in the ring of stages, with warp specialization.
    pub ring: Option<Ring>,
    /// Bytes of shared memory.
    pub shared_bytes: u64,
    pub printed: Printed,
    /// This program instance's index along each grid axis.
    pub program_ids: Vec<Reg>,
    params: Vec<Slot>,
    pub options: Options,
    /// The source line of what is being written.
    loc: Loc,
    fixed: HashMap<Fixed, Reg>,
    pub function: Function,
}

impl<'k> Gen<'k> {
    pub fn new(kernel: &'k Kernel, params: Vec<Slot>, options: Options, plan: Rc<Plan>) -> Self {
        Gen {
            kernel,
            values: vec![Vec::new(); kernel.values.len()],
            in_lanes: false,
            shared_bytes: u64::from(plan.shared_bytes) + u64::from(plan.aliased_bytes),
            plan,
            pipeline: HashMap::new(),
            partials: HashMap::new(),
            ring: None,
            cached: HashMap::new(),
            room: None,
            loaded: HashMap::new(),
            to_store: HashMap::new(),
            vectorizes: false,
            printed: Printed::default(),
            program_ids: Vec::new(),
            params,
            missing: None,
            options,
            // What stands before the first instruction, such as the loads of an elementwise kernel, is for its sake.
            loc: kernel.body.insts.first().map(|inst| inst.loc).unwrap_or_default(),
            fixed: HashMap::new(),
            function: Function::new(),
        }
    }

    /// A new register.
    pub fn reg(&mut self, class: Class) -> Reg {
        self.function.reg(class)
    }

    pub fn label(&mut self) -> Label {
        self.function.label()
    }

    /// Appends an instruction; `emit!` is the short form.
    pub fn emit(&mut self, opcode: impl AsRef<str>, guard: Option<Guard>, operands: impl IntoIterator<Item = Operand>) {
        let loc = self.shown_loc();
        self.function.push(opcode.as_ref(), guard, operands, loc);
    }

    /// The source line of what is being written, if that is to be shown.
    fn shown_loc(&self) -> Loc {
        if self.options.annotate { self.loc } else { Loc::default() }
    }

    pub fn place_label(&mut self, label: Label) {
        self.function.place_label(label);
    }

    /// Says which source line what follows is for, if that is known; gives back which it was.
    pub fn at(&mut self, loc: Loc) -> Loc {
        let before = self.loc;
        if loc.line != 0 {
            self.loc = loc;
        }
        before
    }

    /// The source line of what is being written, `src/kernel.rs:7`, if it is known.
    pub fn source_line(&self) -> Option<String> {
        (self.loc.line != 0).then(|| format!("{}:{}", self.file(self.loc.file), self.loc.line))
    }

    /// A source file of the kernel.
    fn file(&self, index: u32) -> &'k str {
        self.kernel.files.get(index as usize).map_or("?", String::as_str)
    }

    /// The one register of a value.
    pub fn get(&self, value: Value) -> Reg {
        self.values[value.0 as usize][0]
    }

    /// The registers of a value.
    pub fn all(&self, value: Value) -> Vec<Reg> {
        self.values[value.0 as usize].clone()
    }

    pub fn set(&mut self, value: Value, reg: Reg) {
        self.values[value.0 as usize] = vec![reg];
    }

    pub fn set_all(&mut self, value: Value, regs: Vec<Reg>) {
        self.values[value.0 as usize] = regs;
    }

    /// The dtype of a scalar, a variable or a tile's elements.
    pub fn dtype(&self, value: Value) -> DType {
        match self.kernel.ty(value) {
            Type::Scalar(d) | Type::Var(d) | Type::Tile(d, ..) | Type::TileVar(d, ..) => d,
        }
    }

    /// A copy of a register.
    pub fn copy(&mut self, from: Reg) -> Reg {
        let to = self.reg(from.class);
        self.mov(to, from);
        to
    }

    pub fn mov(&mut self, to: Reg, from: Reg) {
        emit!(self, format!("mov.{}", to.class.ty()), to, from);
    }

    /// A register that holds an immediate.
    pub fn immediate(&mut self, class: Class, value: impl Into<Operand>) -> Reg {
        let reg = self.reg(class);
        emit!(self, format!("mov.{}", class.ty()), reg, value);
        reg
    }

    /// A register that may be read before it has a value, where what is read is not used.
    pub fn undefined(&mut self, class: Class) -> Reg {
        let reg = self.reg(class);
        self.leave_undefined(reg);
        reg
    }

    /// Says that a register may be read before it is assigned, where what is read is not used.
    pub fn leave_undefined(&mut self, reg: Reg) {
        self.emit_in_prologue(IMPLICIT_DEF, [reg.into()]);
    }

    /// A register that is zero.
    pub fn zero(&mut self, class: Class) -> Reg {
        self.immediate(class, class.zero())
    }

    /// A new register that an instruction of two operands fills.
    pub fn op2(&mut self, class: Class, instruction: &str, a: impl Into<Operand>, b: impl Into<Operand>) -> Reg {
        let d = self.reg(class);
        emit!(self, instruction, d, a, b);
        d
    }

    /// A new register that an instruction of one operand fills.
    pub fn op1(&mut self, class: Class, instruction: &str, a: impl Into<Operand>) -> Reg {
        let d = self.reg(class);
        emit!(self, instruction, d, a);
        d
    }

    /// `condition ? a : b`.
    pub fn selp(&mut self, class: Class, a: impl Into<Operand>, b: impl Into<Operand>, condition: Reg) -> Reg {
        let d = self.reg(class);
        emit!(self, format!("selp.{}", class.ty()), d, a, b, condition);
        d
    }

    /// Puts a barrier here, before which what is being copied to shared memory has arrived.
    pub fn bar(&mut self) {
        self.mark(Effect::Barrier);
    }

    /// Puts a barrier here if what is touched next must wait for what was touched before.
    pub fn before(&mut self, next: Hazards) {
        let next = Rc::new(next);
        self.mark(Effect::BarrierIf(next.clone()));
        self.mark(Effect::Touch(next));
    }

    /// Says that what follows touches memory.
    pub fn touch(&mut self, touched: Hazards) {
        self.mark(Effect::Touch(Rc::new(touched)));
    }

    /// Says what happens here to the memory that threads share.
    pub fn mark(&mut self, effect: Effect) {
        let loc = self.shown_loc();
        self.function.mark(effect, loc);
    }

    /// How the threads that compute meet.
    pub fn barrier(&self) -> BlockBarrier {
        let operands = match self.plan.producer {
            Some(_) => vec![Operand::Int(1), BLOCK_SIZE.into()],
            None => vec![Operand::Int(0)],
        };
        BlockBarrier { operands, fences_async_proxy: self.plan.has_wgmma() }
    }

    /// Requests that much shared memory beside that of the tiles that live there.
    pub fn need_shared(&mut self, bytes: u64) {
        self.shared_bytes = self.shared_bytes.max(u64::from(self.plan.shared_bytes) + bytes);
    }

    /// The number of the entry's parameter that holds something. If none does, `missing` says what, and there is no
    /// code.
    fn index_of(&mut self, slot: Slot) -> u32 {
        let index = (0..).zip(&self.params).find(|(_, known)| **known == slot).map(|(index, _)| index);
        index.unwrap_or_else(|| {
            self.missing.get_or_insert(slot);
            0
        })
    }

    /// A register that is filled at the entry's start.
    pub fn fixed(&mut self, what: Fixed) -> Reg {
        if let Some(&reg) = self.fixed.get(&what) {
            return reg;
        }
        let reg = match what {
            Fixed::Slot(slot) => {
                let index = self.index_of(slot);
                let parameter = self.at_start(Class::B64, "ld.param.u64", [mem(Symbol::Param(index))]);
                match slot {
                    Slot::Pointer { .. } => self.at_start(Class::B64, "cvta.to.global.u64", [parameter.into()]),
                    Slot::Dim { .. } | Slot::Stride { .. } | Slot::Param { .. } | Slot::Count => parameter,
                    Slot::Grid { .. } | Slot::TensorMap { .. } | Slot::Mapped => parameter,
                }
            }
            Fixed::LowBits { param, class } => {
                let index = self.index_of(Slot::Param { index: param });
                self.at_start(class, format!("ld.param.{}", class.ty()), [mem(Symbol::Param(index))])
            }
            Fixed::Thread => self.at_start(Class::B32, "mov.u32", [Special::Thread.into()]),
            Fixed::Thread64 => {
                let thread = self.fixed(Fixed::Thread);
                self.at_start(Class::B64, "cvt.u64.u32", [thread.into()])
            }
            Fixed::Leader => self.of_thread(Class::Pred, "setp.eq.u32", 0),
            Fixed::Lane => self.of_thread(Class::B32, "and.b32", 31),
            Fixed::Warp => self.of_thread(Class::B32, "shr.u32", 5),
            Fixed::Warpgroup => {
                let group = self.of_thread(Class::B32, "shr.u32", 7);
                // From one lane, so that the assembler sees that all lanes have the same.
                let operands = [group.into(), Operand::Int(0), Operand::Int(31), Operand::Int(-1)];
                self.at_start(Class::B32, "shfl.sync.idx.b32", operands)
            }
            Fixed::Mapped => {
                let mapped = self.fixed(Fixed::Slot(Slot::Mapped));
                self.at_start(Class::Pred, "setp.ne.s64", [mapped.into(), Operand::Int(0)])
            }
            Fixed::Map(slot) => {
                let index = self.index_of(slot);
                let parameter = self.at_start(Class::B64, "mov.b64", [Symbol::Param(index).into()]);
                self.at_start(Class::B64, "cvta.param.u64", [parameter.into()])
            }
            Fixed::SharedStart => self.at_start(Class::B32, "mov.u32", [Symbol::Shared.into()]),
            Fixed::Shared => {
                let start = self.fixed(Fixed::SharedStart);
                match self.plan.shared_bytes {
                    0 => start,
                    bytes => self.at_start(Class::B32, "add.u32", [start.into(), bytes.into()]),
                }
            }
            Fixed::ThreadRow(divisor) => self.of_thread(Class::B32, "shr.u32", divisor.trailing_zeros()),
            Fixed::ThreadColumn(divisor) => self.of_thread(Class::B32, "and.b32", divisor - 1),
            Fixed::LaneRow { warp_rows, height } => {
                let (warp, lane) = (self.fixed(Fixed::Warp), self.fixed(Fixed::Lane));
                let row = self.at_start(Class::B32, "and.b32", [warp.into(), (warp_rows - 1).into()]);
                let in_fragment = self.at_start(Class::B32, "shr.u32", [lane.into(), Operand::Int(2)]);
                self.at_start(Class::B32, "mad.lo.u32", [row.into(), height.into(), in_fragment.into()])
            }
            Fixed::LaneColumn { warp_rows, width, neighbours } => {
                let (warp, lane) = (self.fixed(Fixed::Warp), self.fixed(Fixed::Lane));
                let column = self.at_start(Class::B32, "shr.u32", [warp.into(), warp_rows.trailing_zeros().into()]);
                let pair = self.at_start(Class::B32, "and.b32", [lane.into(), Operand::Int(3)]);
                let in_fragment = self.at_start(Class::B32, "shl.b32", [pair.into(), neighbours.ilog2().into()]);
                self.at_start(Class::B32, "mad.lo.u32", [column.into(), width.into(), in_fragment.into()])
            }
        };
        self.fixed.insert(what, reg);
        reg
    }

    /// Makes `mbarrier`s that wait for so many arrivals each, at an offset in shared memory, at the entry's start; gives
    /// the address of the first. A barrier of the block has to follow before they are used, which the hazards see to.
    pub fn fixed_barriers(&mut self, offset: u32, arrivals: &[u32]) -> Reg {
        let (shared, one) = (self.fixed(Fixed::SharedStart), self.fixed(Fixed::Leader));
        let first = self.at_start(Class::B32, "add.u32", [shared.into(), offset.into()]);
        let leader = Some(Guard::when(one));
        for (i, &count) in (0..).zip(arrivals) {
            let operands = [mem_at(first, BARRIER * i), count.into()];
            self.function.push_to_prologue("mbarrier.init.shared::cta.b64", leader, operands);
        }
        self.function.push_to_prologue("fence.mbarrier_init.release.cluster", leader, []);
        first
    }

    /// A register that is 0 when the entry starts.
    pub fn zero_at_start(&mut self) -> Reg {
        self.at_start(Class::B32, "mov.b32", [Operand::Int(0)])
    }

    /// A register that an instruction of the thread's index and a number fills in the prologue.
    fn of_thread(&mut self, class: Class, opcode: &str, number: u32) -> Reg {
        let thread = self.fixed(Fixed::Thread);
        self.at_start(class, opcode, [thread.into(), number.into()])
    }

    /// A register that an instruction of the prologue fills.
    fn at_start<const N: usize>(&mut self, class: Class, opcode: impl AsRef<str>, operands: [Operand; N]) -> Reg {
        let reg = self.reg(class);
        let operands = [Operand::Reg(reg)].into_iter().chain(operands);
        self.function.push_to_prologue(opcode.as_ref(), None, operands);
        reg
    }

    /// Appends an instruction to the prologue, behind what is computed there.
    pub fn emit_in_prologue<const N: usize>(&mut self, opcode: &str, operands: [Operand; N]) {
        self.function.push_to_prologue(opcode, None, operands);
    }

    /// Makes barriers of the candidates that need one.
    pub fn place_barriers(&mut self) {
        let barrier = self.barrier();
        self.function.place_barriers(Hazards::at_entry(self.plan.clone()), &barrier);
    }

    /// Checks the code, for a version of PTX.
    fn verify(&self, ptx_version: u32) -> Result<(), PtxError> {
        let Target { sm, arch_specific } = self.options.target;
        let environment = Environment { sm, arch_specific, ptx_version };
        let invalid = |fault| PtxError::Machine { kernel: self.kernel.name.clone(), fault };
        self.function.verify(environment).map_err(invalid)
    }

    /// The module, once all code is lowered.
    pub fn finish(mut self, shared_bytes: u32) -> Result<Module, PtxError> {
        self.place_barriers();
        self.divide_room(shared_bytes);
        self.function.push("ret", None, [], Loc::default());
        let entry = entry_name(&self.kernel.name);
        let target = self.options.target;
        let needed = if self.plan.has_new_byte_dots() { FLOAT8_MMA } else { 0 };
        let version = target.ptx_version().max(needed);
        self.verify(version)?;
        let (major, minor) = (version / 10, version % 10);
        let mut text = format!(".version {major}.{minor}\n.target {target}\n.address_size 64\n\n");
        if self.function.has_lines() {
            for (i, file) in (1..).zip(&self.kernel.files) {
                let _ = writeln!(text, ".file {i} \"{}\"", file_name(file));
            }
            text.push('\n');
        }
        text += &self.printed.module();
        if shared_bytes > 0 || self.room.is_some() {
            let _ = writeln!(text, ".extern .shared .align {} .b8 shared[];\n", self.plan.alignment.max(16));
        }
        let _ = writeln!(text, ".visible .entry {entry}(");
        for (i, slot) in self.params.iter().enumerate() {
            let comma = if i + 1 < self.params.len() { "," } else { "" };
            let (ty, array) = param_type(*slot);
            let _ = writeln!(text, "    .param {ty} p{i}{array}{comma} // {}", self.describe(*slot));
        }
        let resident = self.plan.producer.as_ref().map(|producer| producer.blocks);
        let block_size = BLOCK_SIZE + if resident.is_some() { PRODUCER_THREADS } else { 0 };
        let _ = writeln!(text, ")\n.maxntid {block_size}, 1, 1");
        if let Some(blocks) = resident {
            // With it, the assembler knows how many registers a thread has at the start.
            let _ = writeln!(text, ".minnctapersm {blocks}");
        } else if let Some(registers) = self.plan.dot_registers {
            // Without a number, the assembler spills registers of `dot`s for the sake of more blocks on a processor.
            let two = 2 * shared_bytes <= target.features().shared_bytes && registers <= TWO_BLOCKS_REGISTERS;
            let blocks = if two { 2 } else { 1 };
            let _ = writeln!(text, ".minnctapersm {blocks}");
        } else if self.is_wide() || self.loops_in_lanes() && self.vectorizes_much() {
            let _ = writeln!(text, ".minnctapersm {WIDE_BLOCKS}");
        } else if self.loops_in_lanes() || self.vectorizes_much() {
            // The assembler takes several steps of such a loop at once, and then makes the same trade.
            let _ = writeln!(text, ".minnctapersm {LOOPS_BLOCKS}");
        } else if self.vectorizes {
            // So it does with the elements that a thread takes.
            let _ = writeln!(text, ".minnctapersm {VECTORIZED_BLOCKS}");
        }
        text += "{\n";
        self.function.print_registers(&mut text);
        text += &self.printed.entry();
        let name = |file| file_name(self.file(file)).rsplit('/').next().unwrap_or_default().to_owned();
        self.function.print(&mut text, name);
        text += "}\n";
        let cached_rows = self.plan.rows.operands();
        let (params, grid, grid_terms) = (self.params, self.kernel.grid.clone(), self.kernel.grid_terms.clone());
        Ok(Module { text, entry, block_size, resident, shared_bytes, cached_rows, params, grid, grid_terms })
    }

    fn loops_in_lanes(&self) -> bool {
        loops_in_lanes(&self.kernel.body.insts, false)
    }

    /// Whether threads take several elements at a time that need two registers each, or of which much else is kept.
    fn vectorizes_much(&self) -> bool {
        self.vectorizes && (self.has_doubles() || self.params.len() > MANY_PARAMS || scans(&self.kernel.body.insts))
    }

    /// Whether the code keeps elements of very many operands, or several of 8 bytes.
    fn is_wide(&self) -> bool {
        self.params.len() > WIDE_PARAMS || self.kernel.kind == KernelKind::Elementwise && self.has_doubles()
    }

    /// Whether an operand has elements of 8 bytes.
    fn has_doubles(&self) -> bool {
        self.kernel.operands.iter().any(|operand| operand.dtype.size_in_bytes() == 8)
    }

    /// A parameter's meaning, for a comment.
    fn describe(&self, slot: Slot) -> String {
        let operand = |i: u32| ascii(&self.kernel.operands[i as usize].name);
        match slot {
            Slot::Pointer { operand: o } => operand(o),
            Slot::Dim { operand: o, axis } => format!("{} dim {axis}", operand(o)),
            Slot::Stride { operand: o, axis } => format!("{} stride {axis}", operand(o)),
            Slot::Param { index } => ascii(&self.kernel.params[index as usize].name),
            Slot::Count => "elements".to_owned(),
            Slot::TensorMap { operand: o, columns, rows, .. } => format!("map of {}, {rows}x{columns}", operand(o)),
            Slot::Mapped => "whether there are maps".to_owned(),
            Slot::Grid { axis } => format!("grid {axis}"),
        }
    }
}

/// Whether lane code has loops.
pub(super) fn loops_in_lanes(insts: &[Inst], inside: bool) -> bool {
    insts.iter().any(|inst| {
        let is_loop = matches!(inst.op, Op::For { .. } | Op::While { .. });
        let inside = inside || matches!(inst.op, Op::Lanes { .. } | Op::Fold { .. } | Op::Scan { .. });
        inside && is_loop || inst.op.blocks().into_iter().any(|(block, _)| loops_in_lanes(&block.insts, inside))
    })
}

/// Whether code has scans, which keep what came up to each element.
fn scans(insts: &[Inst]) -> bool {
    let inner = |inst: &Inst| inst.op.blocks().into_iter().any(|(block, _)| scans(&block.insts));
    insts.iter().any(|inst| matches!(inst.op, Op::Scan { .. }) || inner(inst))
}

/// A parameter's type, and what follows its name.
fn param_type(slot: Slot) -> (&'static str, &'static str) {
    let ty = match slot {
        Slot::TensorMap { .. } => return (".align 128 .b8", "[128]"),
        Slot::Pointer { .. } => ".u64",
        Slot::Param { .. } => ".b64",
        Slot::Dim { .. } | Slot::Stride { .. } | Slot::Count | Slot::Mapped | Slot::Grid { .. } => ".s64",
    };
    (ty, "")
}

/// The kernel's name with what PTX does not allow in names replaced.
fn entry_name(kernel: &str) -> String {
    let plain: String = kernel.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("max_{plain}")
}

/// A text as it stands in a comment or a string of PTX: the assembler takes no other characters than those of ASCII, not
/// even in comments, and lines end comments.
pub(super) fn ascii(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).map(|c| if c.is_ascii() { c } else { '?' }).collect()
}

/// A file's path as it stands in a string of PTX, which has no way to write some characters.
fn file_name(path: &str) -> String {
    ascii(&path.replace('\\', "/").replace(|c: char| c == '"' || c.is_control(), "_"))
}
