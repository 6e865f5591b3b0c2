//! Snapshots of small kernels before barriers are placed, and of the barriers: `snapshots/NAME.txt`. `MAX_BLESS=1` writes
//! what stands behind the kernels anew.

use std::path::Path;
use std::rc::Rc;

use crate::kernel::ir::parse;
use crate::kernel::ptx::analysis::plan::{Effort, Plan};
use crate::kernel::ptx::emitter::Gen;
use crate::kernel::ptx::{Options, Target, slots};

#[track_caller]
fn assert_snapshot(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../src/kernel/ptx/machine/snapshots/{name}.txt"));
    let kept = std::fs::read_to_string(&path).expect("the file");
    let kernel_text = kept.split("\n== ").next().unwrap_or_default().trim_end();
    let kernel = parse(kernel_text).unwrap_or_else(|error| panic!("{error}"));
    let options = Options::new(Target { sm: 80, arch_specific: false });
    let plan = Rc::new(Plan::new(&kernel, Effort::ALL[0], options));
    let mut g = Gen::new(&kernel, slots(&kernel), options, plan);
    g.program();
    let mut text = format!("{kernel_text}\n\n== before barriers are placed\n{}", g.function);
    g.place_barriers();
    text += "\n== barriers\n";
    let with_barriers = g.function.to_string();
    for block in with_barriers.split_inclusive(":\n").zip(with_barriers.split(":\n").skip(1)) {
        let head = block.0.lines().last().unwrap_or_default();
        let barriers = block.1.lines().filter(|line| line.contains("bar.sync") || line.contains("wait_all"));
        barriers.for_each(|line| text += &format!("{head}\n{line}\n"));
    }
    if std::env::var_os("MAX_BLESS").is_some() {
        std::fs::write(&path, &text).expect("the file");
    }
    assert!(text == kept || std::env::var_os("MAX_BLESS").is_some(), "MAX_BLESS=1 accepts the change:\n{text}");
}

#[test]
fn what_a_loop_leaves_is_pending_at_its_head() {
    assert_snapshot("loop");
}

#[test]
fn what_one_side_of_a_branch_leaves_is_pending_behind_it() {
    assert_snapshot("branch");
}

#[test]
fn the_next_instance_uses_the_same_shared_memory() {
    assert_snapshot("scratch");
}
