//! The decoded form of a kernel: a flat array of instructions whose operands
//! are rows of the register file.
//!
//! A row holds one value for each of the 32 lanes of a warp. Literals and
//! special registers (`%tid.x`) are rows too, filled when a warp starts, so
//! that executing an instruction never asks what an operand is.

use crate::memory::mbarrier::{CopyTensor, MbarrierOp};
use crate::ops::convert::Convert;
use crate::ops::{F1, F2, F3, F4};
use crate::parse::syntax::Space;
use crate::types::{Mods, Ty};
use crate::warp::mma::Mma;
use crate::warp::registers::SetMaxRegisters;
use crate::warp::warpgroup::Wgmma;

/// A row of the register file.
pub(crate) type Reg = u32;

/// A predicate register; all lanes of a warp in one word.
pub(crate) type Pred = u16;

/// A predicate as a source: `None` is the constant true.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PredSrc {
    pub index: Option<Pred>,
    pub negated: bool,
}

/// How a comparison joins with a further predicate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Join {
    None,
    And,
    Or,
    Xor,
}

/// A value that a row holds from the start of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    Lane,
    Warp,
    Warps,
    MaskEq,
    MaskLt,
    MaskLe,
    MaskGt,
    MaskGe,
    DynamicShared,
    TotalShared,
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum VoteMode {
    All,
    Any,
    Uni,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ReduxOp {
    Add,
    MinS,
    MaxS,
    MinU,
    MaxU,
    And,
    Or,
    Xor,
}

/// What a barrier does beside waiting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BarrierKind {
    Sync,
    Arrive,
    Popc { d: Reg, p: PredSrc },
    And { d: Pred, p: PredSrc },
    Or { d: Pred, p: PredSrc },
}

/// Where an access goes: `[addr + offset]` in `space`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub space: Space,
    pub base: Reg,
    pub offset: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub at: Address,
    /// Bytes of one element.
    pub bytes: u32,
    /// Bits to shift left and arithmetically right to extend the sign.
    pub sign_shift: u32,
    /// Mask of the destination's width, applied after sign extension.
    pub mask: u64,
    pub dst: Box<[Reg]>,
    /// Volatile, relaxed or acquire: no race with other such accesses.
    pub strong: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub at: Address,
    pub bytes: u32,
    pub src: Box<[Reg]>,
    pub strong: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Atom {
    pub at: Address,
    /// Bytes of one element.
    pub bytes: u32,
    /// The function of old value and operand; unused by compare and swap.
    pub f: F2,
    pub mods: Mods,
    /// Destinations, none for `red`.
    pub dst: Box<[Reg]>,
    pub src: Box<[Reg]>,
    /// The new value of compare and swap; `src` is then the expected one.
    pub swap: Option<Reg>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shfl {
    pub mode: ShflMode,
    pub d: Reg,
    pub p: Option<Pred>,
    pub a: Reg,
    pub b: Reg,
    pub c: Reg,
    pub mask: Reg,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Compare {
    pub f: F2,
    pub mods: Mods,
    pub a: Reg,
    pub b: Reg,
    pub join: Join,
    pub c: PredSrc,
    /// f16x2 and bf16x2: two answers.
    pub pair: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Nop,
    Un {
        f: F1,
        m: Mods,
        d: Reg,
        a: Reg,
    },
    Bin {
        f: F2,
        m: Mods,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Tri {
        f: F3,
        m: Mods,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Quad {
        f: F4,
        m: Mods,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
        e: Reg,
    },
    /// A conversion by the general path; the result is extended to `mask`.
    Convert {
        c: Convert,
        m: Mods,
        d: Reg,
        a: Reg,
        sign_shift: u32,
        mask: u64,
    },
    Mov {
        d: Reg,
        a: Reg,
    },
    Pack {
        d: Reg,
        parts: Box<[Reg]>,
        bits: u32,
    },
    Unpack {
        parts: Box<[Reg]>,
        a: Reg,
        bits: u32,
    },
    Setp {
        compare: Compare,
        p: Option<Pred>,
        q: Option<Pred>,
    },
    /// Writes `one` (of each half, for pairs) where the comparison holds.
    Set {
        compare: Compare,
        d: Reg,
        one: u64,
    },
    Testp {
        f: F1,
        m: Mods,
        p: Pred,
        a: Reg,
    },
    Selp {
        d: Reg,
        a: Reg,
        b: Reg,
        p: PredSrc,
    },
    /// `table` bit `2a + b` is the result.
    PredLogic {
        table: u8,
        p: Pred,
        a: PredSrc,
        b: PredSrc,
    },
    /// `lop3` with a predicate result: `p = (d != 0) join q`.
    Lop3Pred {
        table: u8,
        d: Reg,
        p: Pred,
        abc: [Reg; 3],
        join: Join,
        q: PredSrc,
    },
    /// `add`/`sub` with carry in and out.
    Carry {
        sub: bool,
        carry_in: bool,
        carry_out: bool,
        wide: bool,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Clock {
        d: Reg,
        wide: bool,
    },
    Load(Box<Load>),
    Store(Box<Store>),
    Atom(Box<Atom>),
    ToGeneric {
        space: Space,
        d: Reg,
        a: Reg,
    },
    FromGeneric {
        space: Space,
        d: Reg,
        a: Reg,
    },
    IsSpace {
        space: Space,
        p: Pred,
        a: Reg,
    },
    Bra {
        target: u32,
    },
    Exit,
    Trap,
    /// `vprintf`, with the places in local memory of the addresses of its format and its values.
    Print {
        format: u64,
        values: u64,
    },
    Barrier {
        id: Reg,
        threads: Option<Reg>,
        kind: BarrierKind,
    },
    WarpBarrier {
        mask: Reg,
    },
    Shfl(Box<Shfl>),
    Vote {
        mode: VoteMode,
        d: Reg,
        p: Pred,
        a: PredSrc,
        mask: Reg,
    },
    MatchAny {
        d: Reg,
        a: Reg,
        mask: Reg,
    },
    MatchAll {
        d: Reg,
        p: Option<Pred>,
        a: Reg,
        mask: Reg,
    },
    Redux {
        op: ReduxOp,
        d: Reg,
        a: Reg,
        mask: Reg,
    },
    ActiveMask {
        d: Reg,
    },
    Elect {
        d: Reg,
        p: Pred,
        mask: Reg,
    },
    CopyAsync {
        dst: Address,
        src: Address,
        bytes: u32,
        src_bytes: Option<Reg>,
    },
    CopyCommit,
    /// Waits until at most this many groups are pending; `None` waits for all.
    CopyWait {
        pending: Option<u32>,
    },
    LdMatrix {
        dst: Box<[Reg]>,
        at: Address,
        trans: bool,
    },
    StMatrix {
        src: Box<[Reg]>,
        at: Address,
        trans: bool,
    },
    MovMatrix {
        d: Reg,
        a: Reg,
    },
    Mma(Box<Mma>),
    Mbarrier(Box<MbarrierOp>),
    CopyTensor(Box<CopyTensor>),
    /// Writes of the generic proxy so far come before accesses of the
    /// asynchronous one.
    ProxyFence,
    SetMaxRegisters(SetMaxRegisters),
    WgmmaFence,
    Wgmma(Box<Wgmma>),
    WgmmaCommit,
    /// Waits until at most this many groups are under way.
    WgmmaWait {
        pending: u32,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Instr {
    pub op: Op,
    pub guard: Option<PredSrc>,
    pub line: u32,
    /// Index of its opcode and modifiers in `Program::kinds`.
    pub kind: u16,
}

/// A variable's place in its state space.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub name: String,
    pub start: u64,
    pub end: u64,
}

/// The variables of a state space, with gaps between them so that an access
/// past one is not an access to the next. Gaps are multiples of
/// [`Layout::GAP`], which leaves alignment and shared memory banks as they
/// would be without gaps.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub ranges: Vec<Range>,
    /// Bytes that the variables take without gaps.
    pub used: u64,
    next: u64,
}

impl Layout {
    /// Bytes before the first variable and between variables.
    pub const GAP: u64 = 1024;

    pub fn new() -> Self {
        Layout { ranges: Vec::new(), used: 0, next: Self::GAP }
    }

    /// Places a variable and gives its address.
    pub fn place(&mut self, name: &str, bytes: u64, align: u32) -> u64 {
        let pad = self.used.next_multiple_of(u64::from(align.max(1))) - self.used;
        let start = self.next + pad;
        self.used += pad + bytes;
        self.next = start + bytes + Self::GAP;
        self.ranges.push(Range { name: name.to_owned(), start, end: start + bytes });
        start
    }

    /// The end of the address space in use.
    pub fn end(&self) -> u64 {
        self.ranges.iter().map(|r| r.end).max().unwrap_or(0)
    }

    /// The variable that holds all `bytes` at `address`.
    #[inline]
    pub fn find(&self, address: u64, bytes: u64) -> Option<&Range> {
        self.ranges.iter().find(|r| address >= r.start && address.checked_add(bytes).is_some_and(|e| e <= r.end))
    }
}

/// A kernel ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub instrs: Vec<Instr>,
    /// Opcode with modifiers, as written, of each kind of instruction.
    pub kinds: Vec<String>,
    pub rows: usize,
    /// The name of each row, for messages.
    pub row_names: Vec<String>,
    pub constants: Vec<(Reg, u64)>,
    pub specials: Vec<(Reg, Special)>,
    /// Rows that hold the address of a module variable, by its index.
    pub globals: Vec<(Reg, usize)>,
    pub pred_names: Vec<String>,
    pub shared: Layout,
    /// The index in `shared` of the variable of dynamic size.
    pub dynamic: Option<usize>,
    pub local: Layout,
    pub params: Layout,
    pub param_types: Vec<(Ty, u64)>,
    /// The narrowest element of any access, in bytes: the unit of the race
    /// detector.
    pub granule: u32,
    pub uses_copy_async: bool,
    /// Whether shared memory is also accessed asynchronously.
    pub uses_async_proxy: bool,
    /// Whether accesses of one block may be ordered before those of another: by a fence, or an access that is one.
    pub orders_blocks: bool,
    /// The registers that `wgmma` takes and gives.
    pub wgmma_rows: Vec<Reg>,
    pub max_threads: Option<([u32; 3], bool)>,
    /// `.minnctapersm` and `.maxnreg`.
    pub min_blocks: Option<u32>,
    pub max_registers: Option<u32>,
}
