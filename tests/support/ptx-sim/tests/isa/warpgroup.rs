//! `wgmma`: fragments, canonical layouts and swizzling by the tables of the
//! ISA, written out here from the elements' side; and what the checks find.

use crate::{launch, module, words};
use ptx_sim::{FaultKind, Module};

/// A small exact number for each place of a matrix.
fn value(row: usize, col: usize, seed: usize) -> i32 {
    ((row * 7 + col * 3 + seed * 5) % 13) as i32 - 6
}

/// The types of elements.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Element {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    S8,
    U8,
}
use Element::*;

impl Element {
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Elements in 16 bytes: `T` in the tables of canonical layouts.
    fn in_unit(self) -> usize {
        match self {
            F16 | Bf16 => 8,
            Tf32 => 4,
            E4m3 | E5m2 | S8 | U8 => 16,
        }
    }

    /// Steps of the sum of one instruction.
    fn steps(self) -> usize {
        2 * self.in_unit()
    }

    fn is_integer(self) -> bool {
        matches!(self, S8 | U8)
    }

    /// A small exact value for each element of a matrix.
    fn value(self, row: usize, col: usize, seed: usize) -> i32 {
        value(row, col, seed) + if self == U8 { 250 - 6 } else { 0 }
    }

    fn bytes(self, v: i32) -> Vec<u8> {
        // Of 8-bit floats, 0 to 6 with exponent and fraction written out; bits of an f32 that tf32 does not have are not looked at.
        let float8 = |bias: u8, fraction: u32| match v.unsigned_abs() {
            0 => 0,
            n => {
                let exponent = n.ilog2();
                let code = (u32::from(bias) + exponent) << fraction | ((n - (1 << exponent)) << fraction >> exponent);
                code as u8 | if v < 0 { 0x80 } else { 0 }
            }
        };
        match self {
            F16 => half::f16::from_f32(v as f32).to_le_bytes().to_vec(),
            Bf16 => half::bf16::from_f32(v as f32).to_le_bytes().to_vec(),
            Tf32 => ((v as f32).to_bits() | 0x1abc).to_le_bytes().to_vec(),
            E4m3 => vec![float8(7, 3)],
            E5m2 => vec![float8(15, 2)],
            S8 | U8 => vec![v as u8],
        }
    }
}

/// A factor in shared memory: elements across the sum, and how it lies there.
#[derive(Clone, Copy)]
struct Factor {
    element: Element,
    extent: usize,
    /// 0 to 3: 16 bytes without swizzling, 32, 64 or 128 with.
    bits: u32,
    /// Whether neighbours in memory are neighbours across the sum.
    across: bool,
}

impl Factor {
    /// Elements in a row of a pattern.
    fn row(self) -> usize {
        self.element.in_unit() << self.bits
    }

    /// Bytes of an element.
    fn size(self) -> usize {
        16 / self.element.in_unit()
    }

    /// The offsets of the canonical layout, in elements, of a compact matrix:
    /// leading and stride.
    fn offsets(self) -> (usize, usize) {
        let (pattern, unit) = (8 * self.row(), self.element.in_unit());
        match (self.bits, self.across) {
            // ((8,m),(T,2k)):((1T,SBO),(1,LBO)), 8 rows of T elements after each other.
            (0, false) => (unit * self.extent, pattern),
            // ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))
            (0, true) => (pattern * self.extent / 8, pattern),
            // ((8,m),(T,2)):((2T,SBO),(1,T)) and its kin
            (_, false) => (unit, pattern),
            // ((T,2,m),(8,k)):((1,T,LBO),(2T,SBO)) and its kin
            (_, true) => (pattern * self.element.steps() / 8, pattern),
        }
    }

    /// The byte at which an element lies, by the canonical layouts.
    fn at(self, mn: usize, k: usize) -> usize {
        let (leading, stride) = self.offsets();
        let (row, unit) = (self.row(), self.element.in_unit());
        let element = match (self.bits, self.across) {
            (0, false) => mn % 8 * unit + mn / 8 * stride + k % unit + k / unit * leading,
            (0, true) => mn % 8 + mn / 8 * stride + k % 8 * 8 + k / 8 * leading,
            (_, false) => mn % 8 * row + mn / 8 * stride + k,
            (_, true) => mn % row + mn / row * leading + k % 8 * row + k / 8 * stride,
        };
        // Swizzle<bits, 4, 3>
        let byte = self.size() * element;
        let mask = ((1 << self.bits) - 1) << 7;
        byte ^ (byte & mask) >> 3
    }

    fn image(self, value: impl Fn(usize, usize) -> i32) -> Vec<u8> {
        let mut image = vec![0; BYTES];
        for mn in 0..self.extent {
            for k in 0..self.element.steps() {
                let at = self.at(mn, k);
                image[at..at + self.size()].copy_from_slice(&self.element.bytes(value(mn, k)));
            }
        }
        image
    }

    /// The upper 48 bits of its descriptor, and those below for a start of 0.
    fn descriptor(self) -> u64 {
        let (leading, stride) = self.offsets();
        let mode = [0u64, 3, 2, 1][self.bits as usize];
        let units = |elements: usize| (elements / self.element.in_unit()) as u64;
        (mode << 62) | (units(stride) << 32) | (units(leading) << 16)
    }
}

/// Bytes of shared memory of each factor.
const BYTES: usize = 32768;

/// Copies the images of the factors to shared memory, in 128 or 256 threads;
/// `%rd8` and `%rd9` become the addresses of the factors as descriptors have them.
fn fill() -> String {
    format!(
        ".shared .align 1024 .b8 a[{BYTES}]; .shared .align 1024 .b8 b[{BYTES}];
         .reg .b32 %s<128>; mov.u32 %r31, %tid.x; mov.u32 %r29, %ntid.x; mul.lo.u32 %r30, %r31, 4;
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
    let stores: String = (0..count).map(|i| format!("st.global.b32 [%rd2+{}], %s{i};", 4 * i)).collect();
    format!("mul.wide.u32 %rd1, %r31, {}; add.s64 %rd2, %p2, %rd1; {stores}", 4 * count)
}

/// The thread of a warpgroup and the register that hold an element of the sums.
fn place(row: usize, col: usize) -> (usize, usize) {
    (row / 16 * 32 + row % 8 * 4 + col % 8 / 2, col / 8 * 4 + row % 16 / 8 * 2 + col % 2)
}

/// The instruction, of factors in shared memory or of a left one in registers: to `%s`, with what stands for the left
/// factor and the numbers behind the right one, `numbers`.
fn instruction(columns: usize, [a, b]: [Element; 2], left: &str, numbers: &str) -> String {
    let (k, [a_word, b_word]) = (a.steps(), [a, b].map(Element::name));
    let sum = if a.is_integer() { "s32" } else { "f32" };
    let sums = list("s", columns / 2);
    format!("wgmma.mma_async.sync.aligned.m64n{columns}k{k}.{sum}.{a_word}.{b_word} {sums}, {left}, %rd9, {numbers};")
}

/// What stands behind the right factor: whether the sums are added to, the factors' signs where they have some, and how they
/// lie where that can be said.
fn numbers(a: Factor, b: Factor) -> String {
    match a.element {
        F16 | Bf16 => format!("1, 1, 1, {}, {}", u8::from(a.across), u8::from(b.across)),
        Tf32 | E4m3 | E5m2 => "1, 1, 1".to_owned(),
        S8 | U8 => "1".to_owned(),
    }
}

fn product(a: Factor, b: Factor, start: i32) {
    let (columns, elements) = (b.extent, [a.element, b.element]);
    let count = columns / 2;
    let (of_a, of_b) = (|row, k| elements[0].value(row, k, 1), |col: usize, k: usize| elements[1].value(k, col, 2));
    let sum_bits = |v: i32| if elements[0].is_integer() { v as u32 } else { (v as f32).to_bits() };
    let body = format!(
        "{} {} fence.proxy.async.shared::cta; bar.sync 0; add.s64 %rd8, %rd8, {:#x}; add.s64 %rd9, %rd9, {:#x};
         wgmma.fence.sync.aligned; {}
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; {}",
        fill(),
        set("s", count, |_| format!("{:#x}", sum_bits(start))),
        a.descriptor(),
        b.descriptor(),
        instruction(columns, elements, "%rd8", &numbers(a, b)),
        keep(count),
    );
    let images = [a.image(of_a), b.image(of_b)];
    let (out, stats) = launch(&body, 128, &[&images[0], &images[1]], 512 * count).unwrap_or_else(|e| panic!("{e}"));
    let got = words(&out);
    for row in 0..64 {
        for col in 0..columns {
            let (thread, register) = place(row, col);
            let more = (0..elements[0].steps()).map(|k| of_a(row, k) * of_b(col, k)).sum::<i32>();
            let case =
                format!("{row}, {col} of {columns}, {elements:?} {} {} {} {}", a.bits, a.across, b.bits, b.across);
            assert_eq!(got[thread * count + register], sum_bits(start.wrapping_add(more)), "{case}");
        }
    }
    assert_eq!(stats.count("wgmma.mma_async"), 128);
}

/// Pairs of types that are multiplied.
const PAIRS: [[Element; 2]; 11] = [
    [F16, F16],
    [Bf16, Bf16],
    [Tf32, Tf32],
    [E4m3, E4m3],
    [E4m3, E5m2],
    [E5m2, E4m3],
    [E5m2, E5m2],
    [S8, S8],
    [S8, U8],
    [U8, S8],
    [U8, U8],
];

#[test]
fn products_of_every_layout() {
    for [left, right] in PAIRS {
        for a_bits in 0..4 {
            for across in [(false, false), (true, false), (false, true), (true, true)] {
                // Elements of other sizes lie along the sum.
                if across != (false, false) && left.in_unit() != 8 {
                    continue;
                }
                for b_bits in 0..4 {
                    let a = Factor { element: left, extent: 64, bits: a_bits, across: across.0 };
                    let b = Factor { element: right, extent: 64, bits: b_bits, across: across.1 };
                    product(a, b, 0);
                }
            }
        }
    }
}

#[test]
fn products_of_every_width() {
    for [left, right] in [[F16, F16], [Bf16, Bf16], [Tf32, Tf32], [E5m2, E4m3], [U8, S8]] {
        for columns in (8..=256_usize).step_by(8) {
            if left.is_integer() && !columns.is_multiple_of(16) && ![8, 24].contains(&columns) {
                continue;
            }
            let a = Factor { element: left, extent: 64, bits: 3, across: false };
            product(a, Factor { element: right, extent: columns, ..a }, columns as i32);
        }
    }
}

#[test]
fn sums_of_integers_wrap_around() {
    let a = Factor { element: S8, extent: 64, bits: 3, across: false };
    for start in [i32::MAX - 40, i32::MIN + 40] {
        product(a, a, start);
    }
}

#[test]
fn only_halves_lie_across_the_sum_and_integers_have_some_widths() {
    let says = |columns: usize, elements: [Element; 2], left: &str, numbers: &str, what: &str| {
        let body = format!(".reg .b32 %s<128>; {}", instruction(columns, elements, left, numbers));
        let said = Module::parse(&module(1, &body)).err().map(|e| e.message).unwrap_or_default();
        assert!(said.contains(what), "{elements:?} {columns} {numbers}: {said}");
    };
    let (operands, registers) = ("number of operands", "{%r0, %r1, %r2, %r3}");
    for [a, b] in PAIRS {
        match a {
            F16 | Bf16 => {
                says(64, [a, b], "%rd8", "1, 1, 1", operands);
                says(64, [a, b], registers, "1, 1, 1, 0, 0", operands);
            }
            Tf32 | E4m3 | E5m2 => {
                says(64, [a, b], "%rd8", "1, 1, 1, 0, 0", operands);
                says(64, [a, b], registers, "1, 1, 1, 0", operands);
            }
            S8 | U8 => {
                says(64, [a, b], "%rd8", "1, 1, 1", operands);
                says(64, [a, b], "%rd8", "1, 1, 1, 0, 0", operands);
                says(40, [a, b], "%rd8", "1", "no shape");
            }
        }
    }
    for pair in [[F16, Bf16], [Tf32, F16], [S8, E4m3], [E5m2, U8], [Bf16, S8]] {
        says(64, pair, "%rd8", "1, 1, 1, 0, 0", "not simulated");
    }
}

#[test]
fn the_left_factor_may_be_in_registers() {
    // Of the fragment, register i holds row lane / 4 + 8 (i % 2), and of every 16 bytes of it, from i / 2 times as many on, as
    // many elements as a register has room for.
    for [left, right] in PAIRS {
        let across = left.in_unit() == 8;
        let b = Factor { element: right, extent: 32, bits: 2, across };
        let (steps, size) = (left.steps(), 16 / left.in_unit());
        let mut a = vec![0; BYTES];
        for row in 0..64 {
            for k in 0..steps {
                let thread = row / 16 * 32 + row % 8 * 4 + k % left.in_unit() / (4 / size);
                let register = row % 16 / 8 + k / left.in_unit() * 2;
                let at = (thread * 4 + register) * 4 + k % (4 / size) * size;
                a[at..at + size].copy_from_slice(&left.bytes(left.value(row, k, 1)));
            }
        }
        // The first product is not added to what the registers held.
        let (first, second) = match left {
            F16 | Bf16 => ("0, 1, -1, 1", "1, 1, -1, 1"),
            Tf32 | E4m3 | E5m2 => ("0, 1, -1", "1, 1, -1"),
            S8 | U8 => ("0", "1"),
        };
        let registers = list("r", 4);
        let body = format!(
            "{} {} mul.wide.u32 %rd1, %r31, 16; add.s64 %rd2, %p0, %rd1; ld.global.v4.b32 {registers}, [%rd2];
             fence.proxy.async; bar.sync 0; add.s64 %rd9, %rd9, {:#x}; wgmma.fence.sync.aligned; {} {}
             wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; {}",
            fill(),
            set("s", 16, |_| "0x3F800000".to_owned()),
            b.descriptor(),
            instruction(32, [left, right], &registers, first),
            instruction(32, [left, right], &registers, second),
            keep(16),
        );
        let image = b.image(|col, k| right.value(k, col, 2));
        let (out, _) = launch(&body, 128, &[&a, &image], 512 * 16).unwrap_or_else(|e| panic!("{e}"));
        let got = words(&out);
        for row in 0..64 {
            for col in 0..32 {
                let (thread, register) = place(row, col);
                let sum: i32 = (0..steps).map(|k| left.value(row, k, 1) * right.value(k, col, 2)).sum();
                let want = if left.is_integer() { 2 * sum as u32 } else { (-2.0 * sum as f32).to_bits() };
                let got = got[thread * 16 + register];
                // Sums of zeros that are negated keep no sign.
                assert!(
                    got == want || (sum == 0 && got << 1 == 0),
                    "{left:?} {right:?} {row}, {col}: {got:#x} {want:#x}"
                );
            }
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
