//! `setmaxnreg`: who gets registers from whom, and what the checks find.

use ptx_sim::{FaultKind, Launch, Memory, Module, run};

/// Runs a kernel of 384 threads with these directives, of which the first warpgroup is at `takes` and the third at `gives`.
fn roles(directives: &str, takes: &str, gives: &str) -> Result<(), FaultKind> {
    let text = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n
         .visible .entry k() {directives} {{
         .reg .b32 %r<8>; .reg .pred %q<8>;
         mov.u32 %r1, %tid.x; setp.ge.u32 %q1, %r1, 256; @%q1 bra gives;
         setp.ge.u32 %q2, %r1, 128; @%q2 bra done;
         {takes} bra done;
         gives: {gives}
         done: ret; }}"
    );
    crate::dump(&text);
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let mut launch = Launch::new("k", 2, 384, &[]);
    launch.step_limit = 1 << 16;
    run(&module, launch, &mut Memory::new()).map(|_| ()).map_err(|fault| *fault.kind)
}

/// 65536 registers are 168 for each of 384 threads, in multiples of 8.
const ONE_BLOCK: &str = ".maxntid 384, 1, 1 .minnctapersm 1";

#[test]
fn registers_go_from_one_warpgroup_to_another() {
    let (takes, gives) = ("setmaxnreg.inc.sync.aligned.u32 296;", "setmaxnreg.dec.sync.aligned.u32 40;");
    let takes = |n: u32| takes.replace("296", &n.to_string());
    // The first asks before the third has released: it waits.
    for (directives, most) in [(ONE_BLOCK, 256), (".maxntid 384 .minnctapersm 2", 120), (".maxnreg 160", 256)] {
        roles(directives, &takes(most), gives).unwrap_or_else(|e| panic!("{directives}: {e}"));
    }
    // 80 - 40 registers are there, and no more.
    let kind = roles(".maxntid 384 .minnctapersm 2", &takes(128), gives).unwrap_err();
    assert!(matches!(kind, FaultKind::Deadlock { .. }), "{kind}");
    // Nobody releases any, but those that it has it may ask for.
    assert!(matches!(roles(ONE_BLOCK, &takes(176), "").unwrap_err(), FaultKind::Deadlock { .. }));
    roles(ONE_BLOCK, &takes(168), "").unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn faults_of_registers() {
    use FaultKind::*;
    let fault = |directives: &str, gives: &str| roles(directives, "", gives).unwrap_err();
    let dec = "setmaxnreg.dec.sync.aligned.u32 40;";
    // How many there are at the start is not known.
    assert!(matches!(fault("", dec), BadRegisters { .. }));
    assert!(matches!(fault(".maxntid 384", dec), BadRegisters { .. }));
    assert!(matches!(fault(ONE_BLOCK, "setmaxnreg.dec.sync.aligned.u32 176;"), BadRegisters { .. }));
    assert!(matches!(fault(ONE_BLOCK, "setmaxnreg.inc.sync.aligned.u32 160;"), BadRegisters { .. }));
    // One warp of four leaves it out; one lane does.
    let but = |first: u32, end: u32| {
        format!("setp.lt.u32 %q3, %r1, {first}; setp.ge.or.u32 %q3, %r1, {end}, %q3; @%q3 {dec}")
    };
    assert!(matches!(fault(ONE_BLOCK, &but(320, 352)), BadRegisters { .. }));
    assert!(matches!(fault(ONE_BLOCK, &but(320, 321)), MissingLanes { .. }));
}

#[test]
fn only_that_architecture_has_it_and_only_some_numbers() {
    let text = |target: &str, count: &str| {
        format!(
            ".version 8.0\n.target {target}\n.address_size 64\n.visible .entry k() {ONE_BLOCK} {{
             setmaxnreg.dec.sync.aligned.u32 {count}; ret; }}"
        )
    };
    assert!(Module::parse(&text("sm_90a", "40")).is_ok());
    for (target, count) in [("sm_90", "40"), ("sm_90a", "16"), ("sm_90a", "44"), ("sm_90a", "264"), ("sm_90a", "%r1")] {
        assert!(Module::parse(&text(target, count)).is_err(), "{target} {count}");
    }
}
