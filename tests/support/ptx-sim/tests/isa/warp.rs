//! What the lanes of a warp do together.

use crate::{fault, lanes, launch, words};
use ptx_sim::FaultKind;

/// `%r1` is the lane; shuffles 100 + lane, plus 1000 where out of range.
fn shuffle(mode: &str, b: &str, c: &str) -> Vec<u32> {
    lanes(&format!(
        "mov.u32 %r1, %laneid; add.u32 %r2, %r1, 100;
         shfl.sync.{mode}.b32 %r3|%q0, %r2, {b}, {c}, -1;
         selp.b32 %r4, 0, 1000, %q0; add.u32 %r0, %r3, %r4;"
    ))
}

#[test]
fn shuffles_of_a_whole_warp() {
    let expect = |f: &dyn Fn(u32) -> (u32, bool)| -> Vec<u32> {
        (0..32)
            .map(|lane| match f(lane) {
                (from, true) => 100 + from,
                (_, false) => 1100 + lane,
            })
            .collect()
    };
    assert_eq!(shuffle("up", "3", "0"), expect(&|l| (l.wrapping_sub(3), l >= 3)));
    assert_eq!(shuffle("down", "3", "31"), expect(&|l| (l + 3, l + 3 <= 31)));
    assert_eq!(shuffle("bfly", "5", "31"), expect(&|l| (l ^ 5, true)));
    assert_eq!(shuffle("idx", "7", "31"), expect(&|_| (7, true)));
    // The source lane counts modulo 32.
    assert_eq!(shuffle("idx", "39", "31"), expect(&|_| (7, true)));
}

#[test]
fn shuffles_of_segments() {
    // Segments of 8: mask 0x18 in bits 8 to 12, clamp 7 (or 0 for up).
    let expect = |f: &dyn Fn(u32) -> (u32, bool)| -> Vec<u32> {
        (0..32)
            .map(|lane| match f(lane % 8) {
                (from, true) => 100 + lane / 8 * 8 + from,
                (_, false) => 1100 + lane,
            })
            .collect()
    };
    assert_eq!(shuffle("up", "2", "0x1800"), expect(&|l| (l.wrapping_sub(2), l >= 2)));
    assert_eq!(shuffle("down", "2", "0x1807"), expect(&|l| (l + 2, l + 2 < 8)));
    assert_eq!(shuffle("bfly", "4", "0x1807"), expect(&|l| (l ^ 4, true)));
    // A butterfly past the segment goes up only out of range, down in range.
    let far = shuffle("bfly", "8", "0x1807");
    assert_eq!((far[0], far[8]), (1100, 100));
    assert_eq!(shuffle("idx", "3", "0x1807"), expect(&|_| (3, true)));
}

#[test]
fn shuffle_in_half_a_warp() {
    let body = "mov.u32 %r1, %laneid; mov.u32 %r0, 0; setp.ge.u32 %q1, %r1, 16;
        @%q1 bra other;
        shfl.sync.bfly.b32 %r0, %r1, 1, 31, 0xffff;
    other:";
    let expected: Vec<u32> = (0..32).map(|l| if l < 16 { l ^ 1 } else { 0 }).collect();
    assert_eq!(lanes(body), expected);
}

#[test]
fn lanes_wait_for_each_other() {
    // Both sides of a branch meet at one shuffle, though by different ways.
    let body = "mov.u32 %r1, %laneid; and.b32 %r2, %r1, 1; setp.eq.u32 %q1, %r2, 0;
        @%q1 bra even;
        mov.u32 %r3, 10;
        bra meet;
    even:
        mov.u32 %r3, 20;
    meet:
        shfl.sync.bfly.b32 %r0, %r3, 1, 31, -1;";
    let expected: Vec<u32> = (0..32).map(|l| if l % 2 == 0 { 10 } else { 20 }).collect();
    assert_eq!(lanes(body), expected);
}

#[test]
fn misused_shuffles_are_faults() {
    let kind = fault(
        "mov.u32 %r1, %laneid; setp.lt.u32 %q1, %r1, 16;
         @%q1 bra low; bra high;
     low: shfl.sync.idx.b32 %r0, %r1, 0, 31, -1;
     high: bar.warp.sync -1;",
        32,
        4,
    );
    assert_eq!(kind, FaultKind::MissingLanes { arrived: 0xffff, missing: 0xffff_0000 });
    let kind = fault(
        "mov.u32 %r1, %laneid; setp.lt.u32 %q1, %r1, 16;
         @%q1 shfl.sync.idx.b32 %r0, %r1, 0, 31, -1;",
        32,
        4,
    );
    assert_eq!(kind, FaultKind::MissingLanes { arrived: 0xffff, missing: 0xffff_0000 });
    let kind = fault("mov.u32 %r1, 0; shfl.sync.idx.b32 %r0, %r1, 20, 31, 0xffff;", 16, 4);
    assert_eq!(kind, FaultKind::InactiveLane { lane: 20 });
    let kind = fault("mov.u32 %r1, 0; shfl.sync.idx.b32 %r0, %r1, 0, 31, 0xffff;", 32, 4);
    assert_eq!(kind, FaultKind::NotAMember { lane: 16, mask: 0xffff });
}

#[test]
fn votes() {
    let vote = |test: &str, op: &str| {
        lanes(&format!(
            "mov.u32 %r1, %laneid; {test}; vote.sync.{op}.pred %q2, %q1, -1;
             selp.b32 %r0, 1, 0, %q2;"
        ))[0]
    };
    let (some, all, none) = ("setp.lt.u32 %q1, %r1, 3", "setp.lt.u32 %q1, %r1, 32", "setp.gt.u32 %q1, %r1, 31");
    assert_eq!([vote(some, "any"), vote(all, "any"), vote(none, "any")], [1, 1, 0]);
    assert_eq!([vote(some, "all"), vote(all, "all"), vote(none, "all")], [0, 1, 0]);
    assert_eq!([vote(some, "uni"), vote(all, "uni"), vote(none, "uni")], [0, 1, 1]);
    let ballot = "mov.u32 %r1, %laneid; setp.lt.u32 %q1, %r1, 3;
        vote.sync.ballot.b32 %r0, !%q1, -1;";
    assert_eq!(lanes(ballot), [0xffff_fff8; 32]);
}

#[test]
fn matches() {
    let body = "mov.u32 %r1, %laneid; and.b32 %r2, %r1, 1; match.any.sync.b32 %r0, %r2, -1;";
    let expected: Vec<u32> = (0..32).map(|l| if l % 2 == 0 { 0x5555_5555 } else { 0xaaaa_aaaa }).collect();
    assert_eq!(lanes(body), expected);
    let all = |value: &str| {
        lanes(&format!(
            "mov.u32 %r1, %laneid; mov.u32 %r2, 5; match.all.sync.b32 %r3|%q1, {value}, -1;
             selp.b32 %r0, %r3, 7, %q1;"
        ))
    };
    assert_eq!(all("%r2"), [u32::MAX; 32]);
    assert_eq!(all("%r1"), [7; 32]);
}

#[test]
fn reductions_of_a_warp() {
    let redux = |op: &str, mask: &str| {
        lanes(&format!(
            "mov.u32 %r1, %laneid; sub.u32 %r2, %r1, 16; mov.u32 %r0, 0;
             setp.ge.u32 %q1, %r1, 16; @%q1 bra skip;
             redux.sync.{op} %r0, %r2, {mask}; bra end;
         skip: redux.sync.{op} %r0, %r2, 0xffff0000;
         end:"
        ))
    };
    let signed: Vec<i32> = (-16..16).collect();
    let sums = redux("add.s32", "0xffff");
    assert_eq!(sums[0] as i32, signed[..16].iter().sum::<i32>());
    assert_eq!(sums[31] as i32, signed[16..].iter().sum::<i32>());
    assert_eq!(redux("min.s32", "0xffff")[0] as i32, -16);
    assert_eq!(redux("max.s32", "0xffff")[0] as i32, -1);
    assert_eq!(redux("max.u32", "0xffff")[0] as i32, -1);
    assert_eq!(redux("min.u32", "0xffff")[31], 0);
    assert_eq!(redux("or.b32", "0xffff")[31], 15);
    assert_eq!(redux("xor.b32", "0xffff")[31], 0);
    assert_eq!(redux("and.b32", "0xffff")[0], 0xffff_fff0);
}

#[test]
fn lane_masks_and_election() {
    for (name, f) in [
        ("eq", (|l| 1u32 << l) as fn(u32) -> u32),
        ("lt", |l| (1u32 << l) - 1),
        ("le", |l| ((2u64 << l) - 1) as u32),
        ("gt", |l| !((2u64 << l) - 1) as u32),
        ("ge", |l| !((1u32 << l) - 1)),
    ] {
        let got = lanes(&format!("mov.u32 %r0, %lanemask_{name};"));
        assert_eq!(got, (0..32).map(f).collect::<Vec<_>>(), "{name}");
    }
    let elect = "mov.u32 %r1, 100; elect.sync %r2|%q1, 0xffffffff; @%q1 mov.u32 %r1, 5;
        add.u32 %r0, %r1, %r2;";
    let got = lanes(elect);
    assert_eq!(got.iter().filter(|v| **v < 100).count(), 1);
}

#[test]
fn barriers_reduce() {
    let run = |op: &str| {
        let body = format!(
            "mov.u32 %r1, %tid.x; setp.lt.u32 %q1, %r1, 40; {op}
             mul.wide.u32 %rd1, %r1, 4; add.s64 %rd2, %p0, %rd1; st.global.u32 [%rd2], %r0;"
        );
        let (out, stats) = launch(&body, 96, &[], 4 * 96).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(stats.barriers, 1);
        let out = words(&out);
        assert!(out.iter().all(|v| *v == out[0]));
        out[0]
    };
    assert_eq!(run("bar.red.popc.u32 %r0, 0, %q1;"), 40);
    assert_eq!(run("bar.red.and.pred %q2, 0, %q1; selp.b32 %r0, 1, 0, %q2;"), 0);
    assert_eq!(run("bar.red.or.pred %q2, 0, %q1; selp.b32 %r0, 1, 0, %q2;"), 1);
    assert_eq!(run("bar.red.or.pred %q2, 0, 96, !%q1; selp.b32 %r0, 1, 0, %q2;"), 1);
}

#[test]
fn producer_and_consumer() {
    // Warp 0 writes and arrives; warp 1 waits and reads: no race, no deadlock.
    let body = "
        .shared .align 4 .b32 box[32];
        mov.u32 %r1, %tid.x; mov.u32 %r2, %laneid; mov.u32 %r3, box;
        shl.b32 %r4, %r2, 2; add.u32 %r5, %r3, %r4;
        setp.ge.u32 %q1, %r1, 32; @%q1 bra consumer;
        st.shared.u32 [%r5], %r2;
        bar.arrive 1, 64;
        bra end;
    consumer:
        bar.sync 1, 64;
        xor.b32 %r6, %r5, 4;
        ld.shared.u32 %r7, [%r6];
        mul.wide.u32 %rd1, %r2, 4; add.s64 %rd2, %p0, %rd1; st.global.u32 [%rd2], %r7;
    end:";
    let (out, _) = launch(body, 64, &[], 128).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(words(&out), (0..32).map(|l| l ^ 1).collect::<Vec<u32>>());
}
