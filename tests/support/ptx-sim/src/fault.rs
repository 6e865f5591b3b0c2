//! What can go wrong while a kernel runs, with the place and the thread.

use crate::parse::syntax::Space;
use thiserror::Error;

/// A run that was stopped: what happened, at which PTX line, in which thread.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "{kind}\n    at PTX line {line}: {text}{}\n    in thread {thread:?} of block {block:?} of `{entry}`",
    source_line.as_ref().map_or(String::new(), |place| format!("\n    for {place}"))
)]
pub struct Fault {
    /// What happened.
    pub kind: Box<FaultKind>,
    /// The kernel.
    pub entry: String,
    /// The 1-based line of the PTX text; 0 if no instruction is at fault.
    pub line: u32,
    /// That line, trimmed.
    pub text: String,
    /// The place in the source that it is for, if `.loc` says it: `src/softmax.rs:12:5`.
    pub source_line: Option<String>,
    /// `%tid` of the thread.
    pub thread: [u32; 3],
    /// `%ctaid` of its block.
    pub block: [u32; 3],
}

/// The kinds of faults.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// The launch itself is not possible.
    #[error("invalid launch: {reason}")]
    InvalidLaunch {
        /// Why, and what would be possible.
        reason: String,
    },
    /// An access that is not inside one allocation or variable.
    #[error("{space} access of {bytes} bytes at {address:#x} is out of bounds{nearest}")]
    OutOfBounds {
        /// The state space after resolving generic addresses.
        space: Space,
        /// The address in that space.
        address: u64,
        /// Bytes of the access.
        bytes: u32,
        /// The allocation that is meant, if one can be named.
        nearest: Nearest,
    },
    /// An address that is no multiple of the size of the access.
    #[error("{space} access of {bytes} bytes at {address:#x} is misaligned{nearest}")]
    Misaligned {
        /// The state space.
        space: Space,
        /// The address in that space.
        address: u64,
        /// Bytes of the access.
        bytes: u32,
        /// The allocation.
        nearest: Nearest,
    },
    /// A read of memory that nothing has written.
    #[error("{space} read of {bytes} bytes at {address:#x}, which is not initialised{nearest}")]
    UninitialisedMemory {
        /// The state space.
        space: Space,
        /// The address in that space.
        address: u64,
        /// Bytes of the access.
        bytes: u32,
        /// The allocation.
        nearest: Nearest,
    },
    /// A read of a register that nothing has written in this thread.
    #[error("register `{register}` is read before it is written")]
    UninitialisedRegister {
        /// Its name in the PTX.
        register: String,
    },
    /// A store to memory that only may be read.
    #[error("store to read-only memory at {address:#x}{nearest}")]
    ReadOnly {
        /// The address.
        address: u64,
        /// The allocation.
        nearest: Nearest,
    },
    /// Two threads touch one byte of shared memory, one of them writes, and
    /// no barrier lies between.
    #[error(
        "race on shared memory at {address:#x}{nearest}: thread {other:?} {} it at line \
         {other_line} with no barrier between",
        if *.other_wrote { "wrote" } else { "read" }
    )]
    Race {
        /// The shared address.
        address: u64,
        /// `%tid` of the other thread.
        other: [u32; 3],
        /// The line of its access.
        other_line: u32,
        /// Whether that was a write.
        other_wrote: bool,
        /// The variable.
        nearest: Nearest,
    },
    /// Two blocks touch one byte of global memory, one of them writes, and not both do so atomically.
    #[error(
        "race on global memory at {address:#x}{nearest}: block {other:?} {} it too, and nothing orders blocks",
        if *.other_wrote { "writes" } else { "reads" }
    )]
    RaceOfBlocks {
        /// The address.
        address: u64,
        /// `%ctaid` of the other block.
        other: [u32; 3],
        /// Whether that one wrote.
        other_wrote: bool,
        /// The allocation.
        nearest: Nearest,
    },
    /// Shared memory read while an asynchronous copy to it is under way.
    #[error("shared memory at {address:#x}{nearest} is read before cp.async has arrived")]
    PendingCopy {
        /// The shared address.
        address: u64,
        /// The variable.
        nearest: Nearest,
    },
    /// A register of `wgmma` that was written after the last `wgmma.fence`.
    #[error("register `{register}` is not as it was at the last wgmma.fence, or there was none")]
    Unfenced {
        /// Its name in the PTX.
        register: String,
    },
    /// A register of `wgmma` that is used before the product is there.
    #[error("register `{register}` is used before the wgmma that takes it has completed")]
    PendingSum {
        /// Its name in the PTX.
        register: String,
    },
    /// Lanes that end before their products.
    #[error("the warp ends before its wgmma have been waited for")]
    PendingProducts,
    /// Shared memory that is written while a product may still read it.
    #[error("shared memory at {address:#x}{nearest} is written before the wgmma that reads it has completed")]
    PendingRead {
        /// The shared address.
        address: u64,
        /// The variable.
        nearest: Nearest,
    },
    /// Shared memory that the asynchronous proxy reads without a fence behind the write.
    #[error(
        "shared memory at {address:#x}{nearest} is read asynchronously, with no fence.proxy.async behind its write"
    )]
    ProxyFence {
        /// The shared address.
        address: u64,
        /// The variable.
        nearest: Nearest,
    },
    /// An `mbarrier` that is none, or is used in a way that it does not allow.
    #[error("the mbarrier at {address:#x}: {reason}")]
    BadMbarrier {
        /// The shared address.
        address: u64,
        /// Why.
        reason: String,
    },
    /// A bulk copy that is not possible.
    #[error("the copy of a tensor is not possible: {reason}")]
    BadTensorCopy {
        /// Why.
        reason: String,
    },
    /// A block that ends before its bulk copies.
    #[error("the block ends before its bulk copies have been waited for")]
    PendingBulk,
    /// A `setmaxnreg` that is not possible.
    #[error("the registers of a warpgroup cannot be changed: {reason}")]
    BadRegisters {
        /// Why.
        reason: String,
    },
    /// A matrix descriptor that describes no matrix.
    #[error("the matrix descriptor {bits:#018x} is not possible: {reason}")]
    BadDescriptor {
        /// The descriptor.
        bits: u64,
        /// Why.
        reason: String,
    },
    /// Warps of a warpgroup that do not execute the same.
    #[error("the warps of a warpgroup do not execute the same wgmma: {reason}")]
    WarpgroupDiverges {
        /// How.
        reason: String,
    },
    /// A barrier that part of a warp can never reach.
    #[error("divergent barrier: lanes {arrived:#010x} of the warp wait, {missing:#010x} never come")]
    DivergentBarrier {
        /// Lanes at the barrier.
        arrived: u32,
        /// Lanes that are elsewhere for good.
        missing: u32,
    },
    /// An instruction of a whole warp, which part of the lanes never reach.
    #[error("lanes {missing:#010x} are in the member mask but never come; lanes {arrived:#010x} wait")]
    MissingLanes {
        /// Lanes at the instruction.
        arrived: u32,
        /// Lanes that are elsewhere for good.
        missing: u32,
    },
    /// A lane that executes a `.sync` instruction without being in its mask.
    #[error("lane {lane} executes the instruction but is not in its member mask {mask:#010x}")]
    NotAMember {
        /// The lane.
        lane: u32,
        /// Its mask.
        mask: u32,
    },
    /// A shuffle that reads a lane which does not take part.
    #[error("shuffle reads lane {lane}, which does not take part")]
    InactiveLane {
        /// The source lane.
        lane: u32,
    },
    /// An operand that must be equal in all lanes is not.
    #[error("{what} differs between the lanes of a warp")]
    NotUniform {
        /// The operand.
        what: String,
    },
    /// A barrier number above 15 or a thread count that is no multiple of 32.
    #[error("barrier {id} with {threads:?} threads is not possible")]
    BadBarrier {
        /// The barrier.
        id: u64,
        /// Its number of threads.
        threads: Option<u64>,
    },
    /// Every warp waits and none can go on.
    #[error("deadlock: {waiting}")]
    Deadlock {
        /// Which warps wait, and where.
        waiting: String,
    },
    /// A format of `vprintf` that is not simulated.
    #[error("`{what}` in the format {format:?} is not simulated")]
    Print {
        /// The format.
        format: String,
        /// The part in question.
        what: String,
    },
    /// The kernel executed `trap`.
    #[error("trap")]
    Trap,
    /// More instructions than the launch allows.
    #[error("the step limit of {limit} warp instructions is reached: does a loop not end?")]
    StepLimit {
        /// The limit.
        limit: u64,
    },
}

/// The allocation or variable next to an address, for messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nearest {
    /// Its name: of a variable, or `allocation N`.
    pub name: Option<String>,
    /// The address relative to its start.
    pub offset: i64,
    /// Its size in bytes.
    pub bytes: u64,
}

impl std::fmt::Display for Nearest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => write!(f, " (`{name}` of {} bytes, offset {})", self.bytes, self.offset),
            None => f.write_str(" (inside no allocation)"),
        }
    }
}
