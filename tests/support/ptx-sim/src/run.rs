//! Launching a kernel: blocks one after another, the warps of a block in
//! turns.
//!
//! Blocks run in order, so that kernels in which a block waits for an earlier
//! one end, and results (of float atomics too) are the same on every run. A
//! block that waits for a later one does not end: the step limit stops it.

use crate::exec::{Barrier, Halt, Machine, Stop};
use crate::fault::{Fault, FaultKind};
use crate::memory::blocks::Blocks;
use crate::memory::shared::{MAX_WARPS, Shared};
use crate::memory::{DevicePtr, Memory};
use crate::module::Module;
use crate::parse::syntax::Space;
use crate::program::{BarrierKind, Op, Program, Special};
use crate::stats::Stats;
use crate::warp::registers::Registers;
use crate::warp::warpgroup::Warpgroup;
use crate::warp::{State, Warp, lanes};

/// A kernel argument; its size must be that of the parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// The address of an allocation.
    Ptr(DevicePtr),
    /// 8 unsigned bits.
    U8(u8),
    /// 16 bits, also for f16 and bf16.
    U16(u16),
    /// 32 unsigned bits.
    U32(u32),
    /// 64 unsigned bits.
    U64(u64),
    /// 32 signed bits.
    I32(i32),
    /// 64 signed bits.
    I64(i64),
    /// An f32.
    F32(f32),
    /// An f64.
    F64(f64),
    /// A parameter that is an array of bytes.
    Bytes(Vec<u8>),
}

impl Arg {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Arg::Ptr(v) => v.0.to_le_bytes().to_vec(),
            Arg::U8(v) => vec![*v],
            Arg::U16(v) => v.to_le_bytes().to_vec(),
            Arg::U32(v) => v.to_le_bytes().to_vec(),
            Arg::U64(v) => v.to_le_bytes().to_vec(),
            Arg::I32(v) => v.to_le_bytes().to_vec(),
            Arg::I64(v) => v.to_le_bytes().to_vec(),
            Arg::F32(v) => v.to_le_bytes().to_vec(),
            Arg::F64(v) => v.to_le_bytes().to_vec(),
            Arg::Bytes(v) => v.clone(),
        }
    }
}

/// Which warp of a block has its turn first, where nothing orders them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WarpOrder {
    /// The one with the lowest threads.
    #[default]
    Ascending,
    /// The one with the highest threads.
    Descending,
}

/// What to run, and on how many threads.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The name of the kernel.
    pub entry: &'a str,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z; 1 to 1024 in all.
    pub block: [u32; 3],
    /// The arguments, in the order of the parameters.
    pub args: &'a [Arg],
    /// Bytes for the `.extern .shared` array.
    pub dynamic_shared: u32,
    /// Warp instructions after which the run is given up.
    pub step_limit: u64,
    /// Which warp of a block has its turn first.
    pub warp_order: WarpOrder,
}

impl<'a> Launch<'a> {
    /// A launch of one-dimensional blocks without dynamic shared memory, and
    /// with a limit of 2^32 warp instructions.
    #[must_use]
    pub fn new(entry: &'a str, grid: u32, block: u32, args: &'a [Arg]) -> Self {
        Launch {
            entry,
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            args,
            dynamic_shared: 0,
            step_limit: 1 << 32,
            warp_order: WarpOrder::default(),
        }
    }
}

/// The most shared memory of a block: that of sm_90.
const MAX_SHARED: u64 = 227 * 1024;

/// Runs a kernel to its end.
///
/// # Errors
/// The first [`Fault`], in the order in which threads are simulated. Memory
/// is then as the kernel left it.
pub fn run(module: &Module, launch: Launch, memory: &mut Memory) -> Result<Stats, Fault> {
    let fail = |reason: String| Fault {
        kind: Box::new(FaultKind::InvalidLaunch { reason }),
        entry: launch.entry.to_owned(),
        line: 0,
        text: String::new(),
        source_line: None,
        thread: [0; 3],
        block: [0; 3],
    };
    let Some((_, program)) = module.programs.iter().find(|(n, _)| n == launch.entry) else {
        let names: Vec<&str> = module.programs.iter().map(|(n, _)| n.as_str()).collect();
        return Err(fail(format!("no entry of this name; there are {names:?}")));
    };
    let threads = check(program, &launch).map_err(fail)?;
    let params = params(program, launch.args).map_err(fail)?;
    let mut shared = program.shared.clone();
    if let Some(index) = program.dynamic {
        shared.ranges[index].end = shared.ranges[index].start + u64::from(launch.dynamic_shared);
    }
    let local_size = program.local.end() as usize;
    let warps = threads.div_ceil(32) as usize;
    let globals = globals(module, program, memory);
    memory.launch(Blocks::of(program, launch.grid));
    let mut machine = Machine {
        program,
        memory,
        shared: Shared::new(shared, program.granule, program.uses_async_proxy),
        local: vec![0; local_size * warps * 32],
        local_written: vec![false; local_size * warps * 32],
        local_size,
        params,
        barriers: vec![Barrier::default(); 16],
        warpgroups: Vec::new(),
        mbarriers: Default::default(),
        registers: Default::default(),
        full_warps: threads as usize / 32,
        stats: Stats::default(),
        counts: vec![0; program.instrs.len()],
        steps: 0,
        step_limit: launch.step_limit,
        result: Box::new([0; 32]),
        fragments: Default::default(),
    };
    let mut warps: Vec<Warp> = (0..warps).map(|i| Warp::new(i, program)).collect();
    for z in 0..launch.grid[2] {
        for y in 0..launch.grid[1] {
            for x in 0..launch.grid[0] {
                start(&mut warps, program, &launch, [x, y, z], threads, &globals);
                machine.memory.next_block();
                machine.shared.reset();
                machine.local_written.fill(false);
                machine.barriers.fill(Barrier::default());
                machine.mbarriers = Default::default();
                machine.registers = Registers::new(program, warps.len());
                machine.warpgroups = (0..warps.len().div_ceil(4)).map(|_| Warpgroup::default()).collect();
                block(&mut machine, &mut warps, launch.warp_order)
                    .map_err(|(halt, warp)| explain(module, &machine, &launch, [x, y, z], &warps, halt, warp))?;
            }
        }
    }
    machine.memory.launch(Blocks::default());
    let mut stats = machine.stats;
    stats.warp_instructions = machine.steps;
    for (instr, count) in program.instrs.iter().zip(&machine.counts) {
        stats.instructions += count;
        if *count > 0 {
            let kind = &program.kinds[instr.kind as usize];
            *stats.by_kind.entry(kind.clone()).or_default() += count;
        }
    }
    stats.by_kind.remove("(end)");
    Ok(stats)
}

/// The threads of a block, if the launch is possible.
fn check(program: &Program, launch: &Launch) -> Result<u32, String> {
    let product = |d: [u32; 3]| d.iter().map(|v| u64::from(*v)).product::<u64>();
    let threads = product(launch.block);
    if threads == 0 || threads > 1024 || launch.block[2] > 64 {
        return Err(format!("a block of {:?} threads; 1 to 1024 are possible", launch.block));
    }
    if product(launch.grid) == 0 {
        return Err(format!("a grid of {:?} blocks", launch.grid));
    }
    if launch.grid[1] > 65535 || launch.grid[2] > 65535 {
        return Err(format!("a grid of {:?}: y and z go up to 65535", launch.grid));
    }
    match program.max_threads {
        Some((dims, true)) if dims != launch.block => {
            return Err(format!("the kernel requires blocks of {dims:?}, not {:?}", launch.block));
        }
        Some((dims, false)) if threads > product(dims) => {
            return Err(format!("{threads} threads, the kernel declares at most {dims:?}"));
        }
        _ => {}
    }
    let shared = program.shared.used + u64::from(launch.dynamic_shared);
    if shared > MAX_SHARED {
        return Err(format!("{shared} bytes of shared memory; {MAX_SHARED} are possible"));
    }
    if launch.dynamic_shared > 0 && program.dynamic.is_none() {
        return Err("dynamic shared memory for a kernel that declares no `.extern .shared`".into());
    }
    Ok(threads as u32)
}

/// The parameter space with the arguments in it.
fn params(program: &Program, args: &[Arg]) -> Result<Vec<u8>, String> {
    let ranges = &program.params.ranges;
    if ranges.len() != args.len() {
        return Err(format!("{} arguments for {} parameters", args.len(), ranges.len()));
    }
    let mut space = vec![0; program.params.end() as usize];
    for (range, arg) in ranges.iter().zip(args) {
        let bytes = arg.bytes();
        let want = (range.end - range.start) as usize;
        if bytes.len() != want {
            return Err(format!("`{}` has {want} bytes, the argument {arg:?} {}", range.name, bytes.len()));
        }
        space[range.start as usize..range.end as usize].copy_from_slice(&bytes);
    }
    Ok(space)
}

/// Allocates the module's variables that the kernel names.
fn globals(module: &Module, program: &Program, memory: &mut Memory) -> Vec<(u32, u64)> {
    let mut out = Vec::new();
    for (row, index) in &program.globals {
        let variable = &module.variables[*index];
        // Without an initial value, module memory is zero.
        let mut data = variable.init.clone().unwrap_or_default();
        data.resize(variable.bytes as usize, 0);
        let ptr = match variable.space {
            Space::Const => memory.alloc_read_only(&data),
            _ => memory.alloc_from(&data),
        };
        memory.name_last(&variable.name);
        out.push((*row, ptr.0));
    }
    out
}

/// Prepares the warps for a block.
fn start(
    warps: &mut [Warp],
    program: &Program,
    launch: &Launch,
    block: [u32; 3],
    threads: u32,
    globals: &[(u32, u64)],
) {
    let count = warps.len() as u64;
    for warp in warps {
        let first = warp.index as u32 * 32;
        let live = threads - first;
        warp.restart(if live >= 32 { u32::MAX } else { (1 << live) - 1 }, program);
        for (row, address) in globals {
            warp.fill(*row, |_| *address);
        }
        let index = warp.index as u64;
        for (row, special) in &program.specials {
            warp.fill(*row, |lane| match special {
                Special::Tid(axis) => u64::from(coordinates(first + lane as u32, launch.block)[*axis]),
                Special::Ntid(axis) => u64::from(launch.block[*axis]),
                Special::Ctaid(axis) => u64::from(block[*axis]),
                Special::Nctaid(axis) => u64::from(launch.grid[*axis]),
                Special::Lane => lane as u64,
                Special::Warp => index,
                Special::Warps => count,
                Special::MaskEq => 1 << lane,
                Special::MaskLt => (1 << lane) - 1,
                Special::MaskLe => (2 << lane) - 1,
                Special::MaskGt => 0xffff_ffff & !((2 << lane) - 1),
                Special::MaskGe => 0xffff_ffff & !((1 << lane) - 1),
                Special::DynamicShared => u64::from(launch.dynamic_shared),
                Special::TotalShared => program.shared.used + u64::from(launch.dynamic_shared),
                Special::Zero => 0,
            });
        }
    }
}

/// `%tid` of a thread by its number in the block.
fn coordinates(thread: u32, block: [u32; 3]) -> [u32; 3] {
    [thread % block[0], thread / block[0] % block[1], thread / (block[0] * block[1])]
}

/// Runs one block; an error comes with its warp.
fn block(machine: &mut Machine, warps: &mut [Warp], order: WarpOrder) -> Result<(), (Halt, usize)> {
    loop {
        let mut progress = false;
        for turn in 0..warps.len() {
            let i = match order {
                WarpOrder::Ascending => turn,
                WarpOrder::Descending => warps.len() - 1 - turn,
            };
            if matches!(warps[i].state, State::Polling(before) if before != machine.mbarriers.changes) {
                warps[i].state = State::Ready;
            }
            while warps[i].state == State::Ready {
                progress = true;
                let stop = machine.run_warp(&mut warps[i]).map_err(|halt| (halt, i))?;
                release(machine, warps);
                if matches!(stop, Stop::Turn) {
                    break;
                }
            }
        }
        if warps.iter().all(|w| w.state == State::Done) {
            if machine.mbarriers.copying() {
                return Err((crate::exec::trouble(FaultKind::PendingBulk, 0), 0));
            }
            if let Some(warp) = machine.registers.differs() {
                let reason = "the warps of a warpgroup have not all made the same change".to_owned();
                return Err((crate::exec::trouble(FaultKind::BadRegisters { reason }, 0), warp));
            }
            let mut groups = machine.warpgroups.iter().enumerate();
            let behind = groups.find_map(|(i, group)| Some(4 * i + group.behind()?));
            return behind.map_or(Ok(()), |warp| {
                let reason = "it ends, and another warp has issued more products".to_owned();
                Err((crate::exec::trouble(FaultKind::WarpgroupDiverges { reason }, 0), warp))
            });
        }
        if !progress {
            let list: Vec<String> = warps
                .iter()
                .filter_map(|w| match w.state {
                    State::Waiting(id) => {
                        let line = machine.program.instrs[w.pc as usize].line;
                        Some(format!("warp {} at barrier {id} in line {line}", w.index))
                    }
                    State::Polling(_) => {
                        let line = machine.program.instrs[w.pc as usize].line;
                        Some(format!("warp {} at an mbarrier, or for registers, in line {line}", w.index))
                    }
                    State::Ready | State::Done => None,
                })
                .collect();
            let waiting = list.join(", ");
            let first = warps.iter().position(|w| w.state != State::Done).unwrap_or(0);
            return Err((crate::exec::trouble(FaultKind::Deadlock { waiting }, 0), first));
        }
    }
}

/// Lets go all warps at barriers that are complete.
fn release(machine: &mut Machine, warps: &mut [Warp]) {
    for id in 0..machine.barriers.len() {
        let barrier = &machine.barriers[id];
        if barrier.arrived == 0 {
            continue;
        }
        let live = warps.iter().filter(|w| w.state != State::Done);
        let live = live.fold(0u32, |bits, w| bits | 1 << w.index);
        let complete = match barrier.expected {
            Some(threads) => barrier.threads >= threads,
            None => live & !barrier.arrived == 0,
        };
        if !complete {
            continue;
        }
        let barrier = std::mem::take(&mut machine.barriers[id]);
        machine.stats.barriers += 1;
        for index in lanes(barrier.waiting) {
            let warp = &mut warps[index];
            machine.shared.leave(index, &barrier.joined);
            if let Op::Barrier { kind, .. } = &machine.program.instrs[warp.pc as usize].op {
                let live = warp.live;
                match kind {
                    BarrierKind::Popc { d, .. } => {
                        for lane in lanes(live) {
                            warp.set(*d, lane, u64::from(barrier.popc));
                        }
                    }
                    BarrierKind::And { d, .. } => {
                        warp.set_pred(*d, live, if barrier.any_false { 0 } else { live });
                    }
                    BarrierKind::Or { d, .. } => {
                        warp.set_pred(*d, live, if barrier.any { live } else { 0 });
                    }
                    BarrierKind::Sync | BarrierKind::Arrive => {}
                }
            }
            warp.pc += 1;
            warp.state = State::Ready;
        }
    }
}

fn explain(
    module: &Module,
    machine: &Machine,
    launch: &Launch,
    block: [u32; 3],
    warps: &[Warp],
    halt: Halt,
    warp: usize,
) -> Fault {
    let line_of = |pc: u32| machine.program.instrs.get(pc as usize).map_or(0, |i| i.line);
    let (kind, lane) = match halt {
        Halt::Trouble(t) => (t.kind, t.lane),
        Halt::Race(conflict, lane) => (
            Box::new(FaultKind::Race {
                address: conflict.address,
                other: coordinates(conflict.thread, launch.block),
                other_line: line_of(conflict.pc),
                other_wrote: conflict.wrote,
                nearest: machine.shared.nearest(conflict.address),
            }),
            lane,
        ),
    };
    let line = line_of(warps[warp].pc);
    let text = module.lines.get((line as usize).wrapping_sub(1)).cloned().unwrap_or_default();
    Fault {
        kind,
        entry: launch.entry.to_owned(),
        line,
        text,
        source_line: module.source(line),
        thread: coordinates((warp * 32) as u32 + lane, launch.block),
        block,
    }
}

const _: () = assert!(MAX_WARPS * 32 == 1024);
