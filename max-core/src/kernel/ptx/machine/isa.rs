//! The table of instructions: of each its operands, where code goes on behind it, and which targets have it.
//!
//! It has the instructions and modifiers that the back end uses, from the PTX ISA's manual. Of others
//! [`Opcode::parse`](super::opcode::Opcode::parse) finds no row, which the verifier reports.

use self::Kind::{
    Address, Any, B32, B64, First, Global, Int, Matrix, Moved, Pred, Shared, Target, Tensor, Typed, Wide,
};
use self::Role::{Def, Update, Use};

/// Where code goes on behind an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel::ptx) enum Control {
    /// At the next one.
    Next,
    /// At a label.
    Branch,
    /// Nowhere: the thread ends.
    Return,
}

/// What an operand must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel::ptx) enum Kind {
    /// A register or a number of the instruction's last type; of loads and stores, vectors of these too.
    Typed,
    /// Of its first type.
    First,
    /// Of twice the bits of its type.
    Wide,
    /// Registers that have as many bits as the type, or what has an address.
    Moved,
    /// Any register.
    Any,
    Pred,
    B32,
    B64,
    /// A matrix descriptor, or registers that hold a thread's elements of the matrix.
    Matrix,
    /// A number that is part of the instruction.
    Int,
    /// Memory of the space that the modifiers name; of shared memory, of global memory.
    Address,
    Shared,
    Global,
    /// A box of a tensor map.
    Tensor,
    /// A label.
    Target,
}

/// Whether an instruction reads an operand or writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel::ptx) enum Role {
    Def(Kind),
    Use(Kind),
    /// Both, as accumulators.
    Update(Kind),
}

impl Role {
    pub fn kind(self) -> Kind {
        match self {
            Def(kind) | Use(kind) | Update(kind) => kind,
        }
    }
}

/// A row of the table.
#[derive(Debug)]
pub(in crate::kernel::ptx) struct Instruction {
    /// The mnemonic, and the modifiers that tell it from others.
    pub name: &'static str,
    /// The modifiers that it may have besides, of which types and shapes are not.
    pub modifiers: &'static str,
    /// The types that it may have.
    pub types: &'static str,
    pub operands: &'static [Role],
    /// How many of the last operands may be left out.
    pub optional: usize,
    pub control: Control,
    /// Whether its registers may be wider than its types, as those of memory and of conversions.
    pub is_wide: bool,
    /// Whether all threads of a warp have to execute it together (`.aligned`, barriers, shuffles).
    pub convergent: bool,
    /// The first target that has it, and whether none but that one, `sm_90a`.
    pub sm: u32,
    pub arch_specific: bool,
    /// The first version of PTX that has it, 78 for 7.8.
    pub ptx: u32,
}

const INTEGERS: &str = "s32 u32 s64 u64";
const NUMBERS: &str = "s32 u32 s64 u64 f32 f64";
const BITS: &str = "b32 b64 pred";
const MEMORY_TYPES: &str = "b8 s8 u8 b16 s16 u16 b32 u32 b64 u64 f32 f64";

const fn row(
    name: &'static str,
    modifiers: &'static str,
    types: &'static str,
    operands: &'static [Role],
) -> Instruction {
    Instruction {
        name,
        modifiers,
        types,
        operands,
        optional: 0,
        control: Control::Next,
        is_wide: false,
        convergent: false,
        sm: 80,
        arch_specific: false,
        ptx: 70,
    }
}

impl Instruction {
    const fn optional(self, optional: usize) -> Self {
        Instruction { optional, ..self }
    }

    const fn control(self, control: Control) -> Self {
        Instruction { control, ..self }
    }

    const fn wide(self) -> Self {
        Instruction { is_wide: true, ..self }
    }

    const fn convergent(self) -> Self {
        Instruction { convergent: true, ..self }
    }

    const fn since(self, sm: u32, ptx: u32) -> Self {
        Instruction { sm, ptx, ..self }
    }

    const fn of_sm_90a(self) -> Self {
        Instruction { sm: 90, arch_specific: true, ptx: 80, convergent: true, ..self }
    }
}

const UNARY: &[Role] = &[Def(Typed), Use(Typed)];
const BINARY: &[Role] = &[Def(Typed), Use(Typed), Use(Typed)];
const TERNARY: &[Role] = &[Def(Typed), Use(Typed), Use(Typed), Use(Typed)];

/// The instructions, of which the longest name that fits an opcode is meant.
pub(in crate::kernel::ptx) const INSTRUCTIONS: &[Instruction] = &[
    // Arithmetic.
    row("add", "rn", NUMBERS, BINARY),
    row("sub", "rn", NUMBERS, BINARY),
    row("mul", "rn", "f32 f64", BINARY),
    row("mul.lo", "", INTEGERS, BINARY),
    row("mul.wide", "", "s32 u32", &[Def(Wide), Use(Typed), Use(Typed)]),
    row("mad.lo", "", INTEGERS, TERNARY),
    row("fma", "rn", "f32 f64", TERNARY),
    row("div", "rn", NUMBERS, BINARY),
    row("rem", "", INTEGERS, BINARY),
    row("min", "NaN", NUMBERS, BINARY),
    row("max", "NaN", NUMBERS, BINARY),
    row("neg", "", "s32 s64 f32 f64", UNARY),
    row("abs", "", "f32 f64", UNARY),
    row("sqrt", "rn", "f32 f64", UNARY),
    row("ex2", "approx ftz", "f32", UNARY),
    row("dp4a", "", "u32 s32", TERNARY),
    // Bits.
    row("and", "", BITS, BINARY),
    row("or", "", BITS, BINARY),
    row("xor", "", BITS, BINARY),
    row("not", "", BITS, UNARY),
    row("shl", "", "b32 b64", &[Def(Typed), Use(Typed), Use(B32)]),
    row("shr", "", INTEGERS, &[Def(Typed), Use(Typed), Use(B32)]),
    row("brev", "", "b32", UNARY),
    row("bfe", "", "s32 u32", &[Def(Typed), Use(Typed), Use(B32), Use(B32)]),
    row("bfi", "", "b32", &[Def(Typed), Use(Typed), Use(Typed), Use(B32), Use(B32)]),
    row("prmt", "", "b32", TERNARY),
    // Comparison, selection, conversion.
    row(
        "setp",
        "eq ne lt le gt ge neu nan",
        "s32 u32 s64 u64 b16 b32 b64 f32 f64",
        &[Def(Pred), Use(Typed), Use(Typed)],
    ),
    row("selp", "", "b16 b32 b64 f32 f64", &[Def(Typed), Use(Typed), Use(Typed), Use(Pred)]),
    row(
        "cvt",
        "rn rna rmi rpi rzi rni",
        "s8 s16 s32 s64 u8 u16 u32 u64 f16 bf16 f16x2 bf16x2 tf32 f32 f64",
        &[Def(First), Use(Typed), Use(Typed)],
    )
    .optional(1)
    .wide(),
    row("mov", "", "pred b16 b32 u32 b64 u64 f32 f64", &[Def(Moved), Use(Moved)]),
    row("cvta", "to global local", "u64", &[Def(B64), Use(B64)]),
    row("cvta.param", "", "u64", &[Def(B64), Use(B64)]).since(80, 77),
    // Memory.
    row("ld", "relaxed gpu global shared local param v2 v4", MEMORY_TYPES, &[Def(Typed), Use(Address)]).wide(),
    row("st", "relaxed gpu global shared local param v2 v4", MEMORY_TYPES, &[Use(Address), Use(Typed)]).wide(),
    row("red", "relaxed gpu global add min max and or xor", "s32 u32 s64 u64 b32 b64 f64", &[Use(Address), Use(Typed)])
        .wide(),
    row("atom", "relaxed gpu global cas", "b16 b32 b64", &[Def(Typed), Use(Address), Use(Typed), Use(Typed)]).wide(),
    row("cp.async", "cg shared global", "", &[Use(Shared), Use(Global), Use(Int), Use(B32)]),
    row("cp.async.commit_group", "", "", &[]),
    row("cp.async.wait_group", "", "", &[Use(Int)]),
    row("cp.async.wait_all", "", "", &[]),
    row(
        "cp.async.bulk.tensor",
        "1d 2d 3d 4d 5d shared::cluster global tile mbarrier::complete_tx::bytes",
        "",
        &[Use(Shared), Use(Tensor), Use(Shared)],
    )
    .since(90, 80),
    row("fence.proxy.async", "shared::cta", "", &[]).since(90, 80),
    row("fence.mbarrier_init", "release cluster", "", &[]).since(90, 80),
    // Threads that meet.
    row("bar.sync", "", "", &[Use(Int), Use(Int)]).optional(1).convergent(),
    row("bar.warp.sync", "", "", &[Use(Int)]).convergent(),
    row("shfl.sync", "up down bfly idx", "b32", &[Def(Typed), Use(Typed), Use(B32), Use(B32), Use(B32)]).convergent(),
    row("mbarrier.init", "shared::cta", "b64", &[Use(Shared), Use(B32)]).since(80, 78),
    row("mbarrier.arrive", "shared::cta", "b64", &[Def(B64), Use(Shared)]).since(80, 78),
    row("mbarrier.arrive.expect_tx", "shared::cta", "b64", &[Def(B64), Use(Shared), Use(B32)]).since(90, 80),
    row("mbarrier.try_wait", "parity shared::cta", "b64", &[Def(Pred), Use(Shared), Use(B32)]).since(90, 78),
    // Tensor cores.
    row("ldmatrix.sync", "aligned m8n8 x2 x4 trans shared", "b16", &[Def(B32), Use(Shared)]).convergent(),
    row(
        "mma.sync",
        "aligned m16n8k8 m16n8k16 m16n8k32 row col",
        "f32 s32 f16 bf16 tf32 s8 u8 e4m3 e5m2",
        &[Def(First), Use(B32), Use(B32), Use(First)],
    )
    .convergent(),
    row(
        "wgmma.mma_async",
        "sync aligned",
        "f32 s32 f16 bf16 tf32 s8 u8 e4m3 e5m2",
        &[Update(First), Use(Matrix), Use(B64), Use(Int), Use(Int), Use(Int), Use(Int), Use(Int)],
    )
    .optional(4)
    .of_sm_90a(),
    row("wgmma.fence", "sync aligned", "", &[]).of_sm_90a(),
    row("wgmma.commit_group", "sync aligned", "", &[]).of_sm_90a(),
    row("wgmma.wait_group", "sync aligned", "", &[Use(Int)]).of_sm_90a(),
    row("setmaxnreg", "inc dec sync aligned", "u32", &[Use(Int)]).of_sm_90a(),
    // Control flow.
    row("bra", "", "", &[Use(Target)]).control(Control::Branch),
    row("ret", "", "", &[]).control(Control::Return),
    row(IMPLICIT_DEF, "", "", &[Def(Any)]),
    // A call of the driver's `vprintf`, which the printer spells out: the addresses of the format and of the values.
    row(CALL_VPRINTF, "", "", &[Use(B64), Use(B64)]),
];

/// The pseudo-instruction that assigns a register whatever it has: it is no text.
pub(in crate::kernel::ptx) const IMPLICIT_DEF: &str = "implicit_def";

/// The pseudo-instruction that calls `vprintf`.
pub(in crate::kernel::ptx) const CALL_VPRINTF: &str = "call.vprintf";

/// Types and modifiers that came later than the instructions that take them: the first target and PTX version.
pub(in crate::kernel::ptx) const LATER: &[(&str, u32, u32)] =
    &[("e4m3", 89, 84), ("e5m2", 89, 84), ("shared::cta", 80, 78), ("shared::cluster", 90, 78)];
