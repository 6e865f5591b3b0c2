//! `wgmma`: fragments, canonical layouts and swizzling by the tables of the
//! ISA, written out here from the elements' side; and what the checks find.

use crate::{launch, words};
use ptx_sim::FaultKind;

/// A small exact value for each element of a matrix.
fn value(row: usize, col: usize, seed: usize) -> i32 {
    ((row * 7 + col * 3 + seed * 5) % 13) as i32 - 6
}

fn half(bf16: bool, v: i32) -> u16 {
    if bf16 { half::bf16::from_f32(v as f32).to_bits() } else { half::f16::from_f32(v as f32).to_bits() }
}

/// A factor in shared memory: elements across the sum, and how it lies there.
#[derive(Clone, Copy)]
struct Factor {
    extent: usize,
    /// 0 to 3: 16 bytes without swizzling, 32, 64 or 128 with.
    bits: u32,
    /// Whether neighbours in memory are neighbours across the sum.
    across: bool,
}

/// Steps of the sum of one instruction.
const STEPS: usize = 16;

impl Factor {
    /// Elements of two bytes in a row of a pattern.
    fn row(self) -> usize {
        8 << self.bits
    }

    /// The offsets of the canonical layout, in elements, of a compact matrix:
    /// leading and stride.
    fn offsets(self) -> (usize, usize) {
        let pattern = 8 * self.row();
        match (self.bits, self.across) {
            // ((8,m),(T,2k)):((1T,SBO),(1,LBO)), 8 rows of T elements after each other.
            (0, false) => (8 * self.extent, pattern),
            // ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))
            (0, true) => (pattern * self.extent / 8, pattern),
            // ((8,m),(T,2)):((2T,SBO),(1,T)) and its kin
            (_, false) => (8, pattern),
            // ((T,2,m),(8,k)):((1,T,LBO),(2T,SBO)) and its kin
            (_, true) => (pattern * STEPS / 8, pattern),
        }
    }

    /// The byte at which an element lies, by the canonical layouts.
    fn at(self, mn: usize, k: usize) -> usize {
        let (leading, stride) = self.offsets();
        let row = self.row();
        let element = match (self.bits, self.across) {
            (0, false) => mn % 8 * 8 + mn / 8 * stride + k % 8 + k / 8 * leading,
            (0, true) => mn % 8 + mn / 8 * stride + k % 8 * 8 + k / 8 * leading,
            (_, false) => mn % 8 * row + mn / 8 * stride + k,
            (_, true) => mn % row + mn / row * leading + k % 8 * row + k / 8 * stride,
        };
        // Swizzle<bits, 4, 3>
        let byte = 2 * element;
        let mask = ((1 << self.bits) - 1) << 7;
        byte ^ (byte & mask) >> 3
    }

    fn image(self, bf16: bool, value: impl Fn(usize, usize) -> i32) -> Vec<u8> {
        let mut image = vec![0; BYTES];
        for mn in 0..self.extent {
            for k in 0..STEPS {
                let at = self.at(mn, k);
                image[at..at + 2].copy_from_slice(&half(bf16, value(mn, k)).to_le_bytes());
            }
        }
        image
    }

    /// The upper 48 bits of its descriptor, and those below for a start of 0.
    fn descriptor(self) -> u64 {
        let (leading, stride) = self.offsets();
        let mode = [0u64, 3, 2, 1][self.bits as usize];
        (mode << 62) | (((2 * stride as u64) >> 4) << 32) | (((2 * leading as u64) >> 4) << 16)
    }
}

/// Bytes of shared memory of each factor.
const BYTES: usize = 32768;

/// Copies the images of the factors to shared memory, in 128 or 256 threads;
/// `%rd8` and `%rd9` become the addresses of the factors as descriptors have them.
fn fill() -> String {
    format!(
        ".shared .align 1024 .b8 a[{BYTES}]; .shared .align 1024 .b8 b[{BYTES}];
         .reg .f32 %s<128>; mov.u32 %r31, %tid.x; mov.u32 %r29, %ntid.x; mul.lo.u32 %r30, %r31, 4;
         mov.u32 %r28, a; mov.u32 %r27, b;
        copy:
         cvt.u64.u32 %rd1, %r30; add.s64 %rd2, %p0, %rd1; add.s64 %rd3, %p1, %rd1;
         ld.global.b32 %r1, [%rd2]; ld.global.b32 %r2, [%rd3];
         add.u32 %r3, %r28, %r30; add.u32 %r4, %r27, %r30; st.shared.b32 [%r3], %r1; st.shared.b32 [%r4], %r2;
         mad.lo.u32 %r30, %r29, 4, %r30; setp.lt.u32 %q1, %r30, {BYTES}; @%q1 bra copy;
         shr.u32 %r28, %r28, 4; shr.u32 %r27, %r27, 4; cvt.u64.u32 %rd8, %r28; cvt.u64.u32 %rd9, %r27;"
    )
}

fn list(kind: &str, count: usize) -> String {
    let names: Vec<String> = (0..count).map(|i| format!("%{kind}{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

fn set(kind: &str, count: usize, value: impl Fn(usize) -> String) -> String {
    (0..count).map(|i| format!("mov.b32 %{kind}{i}, {};", value(i))).collect()
}

/// Writes `count` sums of each thread side by side.
fn keep(count: usize) -> String {
    let stores: String = (0..count).map(|i| format!("st.global.f32 [%rd2+{}], %s{i};", 4 * i)).collect();
    format!("mul.wide.u32 %rd1, %r31, {}; add.s64 %rd2, %p2, %rd1; {stores}", 4 * count)
}

/// The thread of a warpgroup and the register that hold an element of the sums.
fn place(row: usize, col: usize) -> (usize, usize) {
    (row / 16 * 32 + row % 8 * 4 + col % 8 / 2, col / 8 * 4 + row % 16 / 8 * 2 + col % 2)
}

fn product(columns: usize, bf16: bool, a: Factor, b: Factor, start: i32) {
    let count = columns / 2;
    let ty = if bf16 { "bf16" } else { "f16" };
    let (of_a, of_b) = (|row, k| value(row, k, 1), |col, k| value(k, col, 2));
    let body = format!(
        "{} {} fence.proxy.async.shared::cta; bar.sync 0; add.s64 %rd8, %rd8, {:#x}; add.s64 %rd9, %rd9, {:#x};
         wgmma.fence.sync.aligned;
         wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{ty}.{ty} {}, %rd8, %rd9, 1, 1, 1, {}, {};
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; {}",
        fill(),
        set("s", count, |_| format!("0f{:08X}", (start as f32).to_bits())),
        a.descriptor(),
        b.descriptor(),
        list("s", count),
        u8::from(a.across),
        u8::from(b.across),
        keep(count),
    );
    let images = [a.image(bf16, of_a), b.image(bf16, of_b)];
    let (out, stats) = launch(&body, 128, &[&images[0], &images[1]], 512 * count).unwrap_or_else(|e| panic!("{e}"));
    let got = words(&out);
    for row in 0..64 {
        for col in 0..columns {
            let (thread, register) = place(row, col);
            let want: i32 = start + (0..STEPS).map(|k| of_a(row, k) * of_b(col, k)).sum::<i32>();
            let case = format!("{row}, {col} of {columns} columns, {} {} {} {}", a.bits, a.across, b.bits, b.across);
            assert_eq!(f32::from_bits(got[thread * count + register]), want as f32, "{case}");
        }
    }
    assert_eq!(stats.count("wgmma.mma_async"), 128);
}

#[test]
fn products_of_every_layout() {
    for a_bits in 0..4 {
        for across in [(false, false), (true, false), (false, true), (true, true)] {
            for b_bits in 0..4 {
                let a = Factor { extent: 64, bits: a_bits, across: across.0 };
                let b = Factor { extent: 64, bits: b_bits, across: across.1 };
                product(64, (a_bits + b_bits) % 2 == 1, a, b, 0);
            }
        }
    }
}

#[test]
fn products_of_every_width() {
    for columns in (8..=256).step_by(8) {
        let a = Factor { extent: 64, bits: 3, across: false };
        product(columns, columns % 16 == 0, a, Factor { extent: columns, bits: 3, across: false }, columns as i32);
    }
}

#[test]
fn the_left_factor_may_be_in_registers() {
    // Of the fragment, register i holds row lane / 4 + 8 (i % 2) and columns 2 (lane % 4) + 8 (i / 2) and the next one.
    let b = Factor { extent: 32, bits: 2, across: true };
    let mut a = vec![0; BYTES];
    for row in 0..64 {
        for k in 0..STEPS {
            let thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
            let register = row % 16 / 8 + k / 8 * 2;
            let at = (thread * 4 + register) * 4 + k % 2 * 2;
            a[at..at + 2].copy_from_slice(&half(true, value(row, k, 1)).to_le_bytes());
        }
    }
    let body = format!(
        "{} {} mul.wide.u32 %rd1, %r31, 16; add.s64 %rd2, %p0, %rd1; ld.global.v4.b32 {}, [%rd2];
         fence.proxy.async; bar.sync 0; add.s64 %rd9, %rd9, {:#x}; wgmma.fence.sync.aligned;
         wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {}, {}, %rd9, 0, 1, -1, 1;
         wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {}, {}, %rd9, 1, 1, -1, 1;
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; {}",
        fill(),
        set("s", 16, |_| "0f3F800000".to_owned()),
        list("r", 4),
        b.descriptor(),
        list("s", 16),
        list("r", 4),
        list("s", 16),
        list("r", 4),
        keep(16),
    );
    let image = b.image(true, |col, k| value(k, col, 2));
    let (out, _) = launch(&body, 128, &[&a, &image], 512 * 16).unwrap_or_else(|e| panic!("{e}"));
    let got = words(&out);
    for row in 0..64 {
        for col in 0..32 {
            let (thread, register) = place(row, col);
            // The first product is not added to what the registers held.
            let want: i32 = -2 * (0..STEPS).map(|k| value(row, k, 1) * value(k, col, 2)).sum::<i32>();
            assert_eq!(f32::from_bits(got[thread * 16 + register]), want as f32, "{row}, {col}");
        }
    }
}

/// A product of zeros in two warpgroups, with `@proxy`, `@fence`, `@after` (the product), `@wait` and `@end` to be
/// replaced.
const CHECKED: &str = "mov.b32 %r1, 0; st.shared.b32 [%r8], %r1; st.shared.b32 [%r8+1024], %r1;
    st.shared.b32 [%r8+2048], %r1; st.shared.b32 [%r8+3072], %r1;
    mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0; @proxy bar.sync 0; @fence
    @guard wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd1, %rd2, 1, 1, 1, 0, 0;
    @after wgmma.commit_group.sync.aligned; @wait @end st.global.f32 [%rd4], %f0;";

fn checked(changes: &[(&str, &str)]) -> Result<(), FaultKind> {
    let mut body = format!(
        ".shared .align 1024 .b8 t[4096]; mov.u32 %r31, %tid.x; mov.u32 %r30, t; mad.lo.u32 %r8, %r31, 4, %r30;
         shr.u32 %r29, %r30, 4; mov.b32 %r28, 0x40000040; mov.b64 %rd1, {{%r29, %r28}}; mov.b64 %rd2, {{%r29, %r28}};
         mul.wide.u32 %rd3, %r31, 4; add.s64 %rd4, %p0, %rd3; setp.ge.u32 %q1, %r31, 0; {CHECKED}"
    );
    // Rows of 128 bytes: the left factor takes eight patterns of them, here one again and again.
    body = body.replace("0x40000040", "0x40000000");
    let whole = [
        ("@proxy", "fence.proxy.async.shared::cta;"),
        ("@fence", "wgmma.fence.sync.aligned;"),
        ("@guard", ""),
        ("@after", ""),
        ("@wait", "wgmma.wait_group.sync.aligned 0;"),
        ("@end", ""),
    ];
    for (name, text) in changes.iter().chain(&whole) {
        body = body.replace(name, text);
    }
    launch(&body, 256, &[], 1024).map(|_| ()).map_err(|fault| *fault.kind)
}

#[test]
fn a_whole_product_passes_the_checks() {
    checked(&[]).unwrap_or_else(|e| panic!("{e}"));
    // Another product of the same sums needs no fence, and may be in another group.
    let again = "wgmma.commit_group.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
        {%f0, %f1, %f2, %f3}, %rd1, %rd2, 1, 1, 1, 0, 0;";
    checked(&[("@after", again)]).unwrap_or_else(|e| panic!("{e}"));
    // Memory that was read may be written once all have waited.
    let write = "bar.sync 0; st.shared.b32 [%r8], %r1;";
    checked(&[("@end", write)]).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn faults_of_products() {
    let fault = |changes: &[(&str, &str)]| match checked(changes) {
        Ok(()) => panic!("no fault with {changes:?}"),
        Err(kind) => kind,
    };
    use FaultKind::*;
    assert!(matches!(fault(&[("@proxy", "")]), ProxyFence { .. }));
    // A fence before the write, or behind the barrier, is none.
    assert!(matches!(fault(&[("@proxy", "fence.proxy.async; st.shared.b32 [%r8], %r1;")]), ProxyFence { .. }));
    assert!(matches!(
        fault(&[("@proxy", ""), ("@fence", "fence.proxy.async; wgmma.fence.sync.aligned;")]),
        ProxyFence { .. }
    ));
    assert!(matches!(fault(&[("@fence", "")]), Unfenced { .. }));
    let late = "wgmma.fence.sync.aligned; mov.f32 %f2, 0f3F800000;";
    assert!(matches!(fault(&[("@fence", late)]), Unfenced { register } if register == "%f2"));
    assert!(matches!(fault(&[("@after", "add.rn.f32 %f9, %f1, %f1;")]), PendingSum { register } if register == "%f1"));
    assert!(
        matches!(fault(&[("@after", "mov.f32 %f3, %f9;"), ("@fence", "mov.f32 %f9, %f0; wgmma.fence.sync.aligned;")]),
        PendingSum { register } if register == "%f3")
    );
    assert!(matches!(fault(&[("@wait", "")]), PendingSum { .. }));
    // One group may be under way: it is not waited for.
    assert!(matches!(fault(&[("@wait", "wgmma.wait_group.sync.aligned 1;")]), PendingSum { .. }));
    assert!(matches!(fault(&[("@wait", "ret;")]), PendingProducts));
    assert!(matches!(fault(&[("@after", "st.shared.b32 [%r8], %r1;")]), PendingRead { .. }));
    assert!(matches!(fault(&[("@end", "st.shared.b32 [%r8], %r1;")]), PendingRead { .. } | Race { .. }));
    // The third warp of each warpgroup leaves the product out.
    let guard = "and.b32 %r2, %r31, 96; setp.ne.u32 %q1, %r2, 64; @%q1";
    assert!(matches!(
        fault(&[("@guard", guard), ("@wait", "wgmma.wait_group.sync.aligned 0;")]),
        WarpgroupDiverges { .. }
    ));
    // One lane does.
    assert!(matches!(fault(&[("@guard", "setp.ne.u32 %q1, %r31, 7; @%q1")]), MissingLanes { .. }));
    // Another descriptor in one warp, in one lane.
    let other =
        "setp.ge.u32 %q1, %r31, 32; add.s64 %rd9, %rd1, 2; selp.b64 %rd1, %rd9, %rd1, %q1; wgmma.fence.sync.aligned;";
    assert!(matches!(fault(&[("@fence", other)]), WarpgroupDiverges { .. }));
    let other =
        "setp.eq.u32 %q1, %r31, 9; add.s64 %rd9, %rd1, 2; selp.b64 %rd1, %rd9, %rd1, %q1; wgmma.fence.sync.aligned;";
    assert!(matches!(fault(&[("@fence", other)]), NotUniform { .. }));
}

#[test]
fn descriptors_that_describe_nothing() {
    for (change, reason) in [
        ("add.s64 %rd1, %rd1, 8;", "not in the first row"),
        ("add.s64 %rd1, %rd1, 7;", "beyond a row"),
        ("or.b64 %rd1, %rd1, 0x4000000000000;", "base offset"),
        ("or.b64 %rd1, %rd1, 0x8000000000000;", "base offset"),
        ("or.b64 %rd1, %rd1, 0x10000000000000;", "reserved"),
        ("or.b64 %rd1, %rd1, 0x4000;", "reserved"),
        ("or.b64 %rd1, %rd1, 0x1000000000;", "multiples of a pattern"),
    ] {
        let fence = format!("{change} wgmma.fence.sync.aligned;");
        match checked(&[("@fence", &fence)]) {
            Err(FaultKind::BadDescriptor { reason: said, .. }) => assert!(said.contains(reason), "{change}: {said}"),
            other => panic!("{change}: {other:?}"),
        }
    }
}

#[test]
fn blocks_without_whole_warpgroups_have_no_products() {
    let body = "mov.b64 %rd1, 0; wgmma.fence.sync.aligned; mov.f32 %f0, 0f00000000;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd1, %rd1, 0, 1, 1, 0, 0;";
    let fault = launch(body, 96, &[], 0).unwrap_err();
    assert!(matches!(*fault.kind, FaultKind::WarpgroupDiverges { .. }), "{fault}");
}
