//! Tests of the simulator against the definitions of the PTX ISA.

mod checks;
mod convert;
mod float;
mod integer;
mod mbarrier;
mod memory;
mod print;
mod programs;
mod registers;
mod strict;
mod tensor;
mod throughput;
mod warp;
mod warpgroup;

use ptx_sim::{Arg, Fault, FaultKind, Launch, Memory, Module, Stats, run};

/// A module with one entry `k` with pointer parameters `p0`, `p1`, …, already
/// loaded to `%p0`, `%p1`, …, and registers of every type: `%r` (b32),
/// `%rd` (b64), `%h` (b16), `%f` (f32), `%d` (f64), `%q` (pred), each numbered
/// from 0 to 31.
fn module(params: usize, body: &str) -> String {
    let list: Vec<String> = (0..params).map(|i| format!(".param .u64 p{i}")).collect();
    let loads: Vec<String> = (0..params).map(|i| format!("ld.param.u64 %p{i}, [p{i}];")).collect();
    format!(
        ".version 8.4\n.target sm_90a\n.address_size 64\n\
         .extern .shared .align 16 .b8 dynamic[];\n\
         .visible .entry k({}) {{\n\
         .reg .b32 %r<32>; .reg .b64 %rd<32>; .reg .b16 %h<32>;\n\
         .reg .f32 %f<32>; .reg .f64 %d<32>; .reg .pred %q<32>; .reg .b64 %p<{}>;\n\
         {}\n{body}\nret;\n}}\n",
        list.join(", "),
        params.max(1),
        loads.join(" "),
    )
}

/// Runs `body` on one block; the parameters are `inputs` and then an output
/// of `out` bytes, which comes back.
#[track_caller]
fn launch(body: &str, threads: u32, inputs: &[&[u8]], out: usize) -> Result<(Vec<u8>, Stats), Fault> {
    let text = module(inputs.len() + 1, body);
    dump(&text);
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let mut memory = Memory::new();
    let mut args: Vec<Arg> = inputs.iter().map(|i| Arg::Ptr(memory.alloc_from(i))).collect();
    let result = memory.alloc(out);
    args.push(Arg::Ptr(result));
    let stats = run(&module, Launch::new("k", 1, threads, &args), &mut memory)?;
    assert_eq!(memory.unwritten(result), None, "the whole output is written");
    Ok((memory.bytes(result).to_vec(), stats))
}

/// With `PTX_SIM_DUMP=dir`, keeps the text, so that an assembler can be asked
/// whether the tests are PTX at all.
fn dump(text: &str) {
    use std::hash::{DefaultHasher, Hash, Hasher};
    if let Ok(dir) = std::env::var("PTX_SIM_DUMP") {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        std::fs::write(format!("{dir}/{:016x}.ptx", hasher.finish()), text).unwrap();
    }
}

/// The fault of a run that must have one.
#[track_caller]
fn fault(body: &str, threads: u32, out: usize) -> FaultKind {
    match launch(body, threads, &[], out) {
        Ok(_) => panic!("no fault"),
        Err(fault) => *fault.kind,
    }
}

/// Runs `body` in one thread, in which it leaves its result in `%rd0`.
#[track_caller]
fn eval(body: &str) -> u64 {
    let body = format!("{body}\nst.global.b64 [%p0], %rd0;");
    let (out, _) = launch(&body, 1, &[], 8).unwrap_or_else(|e| panic!("{e}"));
    u64::from_le_bytes(out.try_into().unwrap())
}

/// The 32 bits that `body` leaves in `%r0`.
#[track_caller]
fn eval32(body: &str) -> u32 {
    eval(&format!("{body}\ncvt.u64.u32 %rd0, %r0;")) as u32
}

/// The 16 bits that `body` leaves in `%h0`.
#[track_caller]
fn eval16(body: &str) -> u16 {
    eval(&format!("{body}\ncvt.u64.u16 %rd0, %h0;")) as u16
}

/// The f32 that `body` leaves in `%f0`.
#[track_caller]
fn eval_f32(body: &str) -> f32 {
    f32::from_bits(eval32(&format!("{body}\nmov.b32 %r0, %f0;")))
}

/// `f32` as a PTX literal.
fn lit(v: f32) -> String {
    format!("0f{:08X}", v.to_bits())
}

/// Runs `body` in each of 32 lanes, in which it leaves its result in `%r0`.
#[track_caller]
fn lanes(body: &str) -> Vec<u32> {
    let body = format!(
        "{body}\nmov.u32 %r31, %tid.x; mul.wide.u32 %rd31, %r31, 4;\n\
         add.s64 %rd31, %p0, %rd31; st.global.b32 [%rd31], %r0;"
    );
    let (out, _) = launch(&body, 32, &[], 128).unwrap_or_else(|e| panic!("{e}"));
    words(&out)
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
