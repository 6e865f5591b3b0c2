//! `mma.sync`, `ldmatrix` and their kin: fragments by the tables of the ISA,
//! written out here a second time, from the elements' side.

use crate::{launch, words};

/// A small exact value for each element of a matrix.
fn value(row: usize, col: usize, seed: usize) -> i32 {
    ((row * 7 + col * 3 + seed * 5) % 13) as i32 - 6
}

/// The elements of A or B.
#[derive(Clone, Copy)]
struct Kind {
    /// Bits of an element.
    bits: usize,
    encode: fn(i32) -> u64,
    /// What is added to each value.
    offset: i32,
}

impl Kind {
    fn new(name: &str) -> Kind {
        let (bits, encode, offset): (_, fn(i32) -> u64, _) = match name {
            "f16" => (16, f16, 0),
            "bf16" => (16, bf16, 0),
            "tf32" => (32, tf32, 0),
            "e4m3" => (8, |v| f8(v, 7, 3), 0),
            "e5m2" => (8, |v| f8(v, 15, 2), 0),
            "s8" => (8, |v| u64::from(v as i8 as u8), -60),
            // Above what a signed byte holds.
            "u8" => (8, |v| u64::from(v as u8), 200),
            _ => panic!("no elements of {name}"),
        };
        Kind { bits, encode, offset }
    }
}

struct Case {
    /// `m16n8k16.row.col.f32.f16.f16.f32`
    name: &'static str,
    m: usize,
    k: usize,
    a: Kind,
    b: Kind,
    f16_sum: bool,
    integer: bool,
}

fn f16(v: i32) -> u64 {
    u64::from(half::f16::from_f32(v as f32).to_bits())
}

fn bf16(v: i32) -> u64 {
    u64::from(half::bf16::from_f32(v as f32).to_bits())
}

fn tf32(v: i32) -> u64 {
    u64::from((v as f32).to_bits())
}

/// An 8-bit float of an integer of magnitude up to 8, by the bias of its exponent and the bits of its mantissa.
fn f8(v: i32, bias: i32, mantissa: u32) -> u64 {
    if v == 0 {
        return 0;
    }
    let bits = (v.unsigned_abs() as f32).to_bits();
    let (exp, man) = ((bits >> 23) as i32 - 127 + bias, bits >> (23 - mantissa) & ((1 << mantissa) - 1));
    (u64::from(v < 0) << 7) | (exp as u64) << mantissa | u64::from(man)
}

/// The lane, the register and the element in it that hold `A[row][col]`.
fn place_a(row: usize, col: usize, per: usize, m: usize) -> (usize, usize, usize) {
    let lane = (row % 8) * 4 + (col / per) % 4;
    let register = (row / 8) + (m / 8) * (col / (4 * per));
    (lane, register, col % per)
}

/// Likewise for `B[row][col]`.
fn place_b(row: usize, col: usize, per: usize) -> (usize, usize, usize) {
    (col * 4 + (row / per) % 4, row / (4 * per), row % per)
}

fn run(case: &Case) {
    let (m, k) = (case.m, case.k);
    let registers = |elements: usize, bits: usize| elements * bits / 32 / 32;
    let (ra, rb) = (registers(m * k, case.a.bits), registers(k * 8, case.b.bits));
    let rc = registers(m * 8, if case.f16_sum { 16 } else { 32 });
    let mut a = vec![0u32; 32 * ra];
    let mut b = vec![0u32; 32 * rb];
    let mut c = vec![0u32; 32 * rc];
    let value_a = |row: usize, col: usize| value(row, col, 1) + case.a.offset;
    let value_b = |row: usize, col: usize| value(row, col, 2) + case.b.offset;
    for row in 0..m {
        for col in 0..k {
            let (lane, register, i) = place_a(row, col, 32 / case.a.bits, m);
            a[lane * ra + register] |= ((case.a.encode)(value_a(row, col)) as u32) << (i * case.a.bits % 32);
        }
    }
    for row in 0..k {
        for col in 0..8 {
            let (lane, register, i) = place_b(row, col, 32 / case.b.bits);
            b[lane * rb + register] |= ((case.b.encode)(value_b(row, col)) as u32) << (i * case.b.bits % 32);
        }
    }
    let sum = |v: i32| match (case.f16_sum, case.integer) {
        (true, _) => f16(v) as u32,
        (_, true) => v as u32,
        _ => (v as f32).to_bits(),
    };
    let place_c = |row: usize, col: usize| {
        let (lane, i) = ((row % 8) * 4 + col / 2, (row / 8) * 2 + col % 2);
        if case.f16_sum { (lane, i / 2, 16 * (i % 2)) } else { (lane, i, 0) }
    };
    let mut expected = vec![0u32; 32 * rc];
    for row in 0..m {
        for col in 0..8 {
            let (lane, register, shift) = place_c(row, col);
            let start = value(row, col, 3);
            c[lane * rc + register] |= sum(start) << shift;
            let product: i32 = (0..k).map(|i| value_a(row, i) * value_b(i, col)).sum();
            expected[lane * rc + register] |= sum(start + product) << shift;
        }
    }
    let list = |kind: &str, first: usize, n: usize| {
        let names: Vec<String> = (first..first + n).map(|i| format!("%{kind}{i}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let load = |pointer: usize, first: usize, n: usize| {
        let one = |i: usize| format!("ld.global.b32 %r{}, [%rd{}+{}];", first + i, pointer, 4 * i);
        let bytes = 4 * n;
        format!("mul.wide.u32 %rd9, %r31, {bytes}; add.s64 %rd{pointer}, %p{}, %rd9;", pointer)
            + &(0..n).map(one).collect::<String>()
    };
    let float = !case.f16_sum && !case.integer;
    let kind = if float { "f" } else { "r" };
    let moves: String = (0..rc)
        .map(|i| {
            if float { format!("mov.b32 %f{i}, %r{};", 16 + i) } else { format!("mov.b32 %r{}, %r{};", 24 + i, 16 + i) }
        })
        .collect();
    let (c_list, d_list) =
        if float { (list("f", 0, rc), list("f", 4, rc)) } else { (list("r", 24, rc), list("r", 20, rc)) };
    let stores: String = (0..rc)
        .map(|i| {
            let from = if float { 4 + i } else { 20 + i };
            format!("st.global.b32 [%rd3+{}], %{kind}{from};", 4 * i)
        })
        .collect();
    let body = format!(
        "mov.u32 %r31, %laneid; {} {} {} {moves}
         mma.sync.aligned.{} {d_list}, {}, {}, {c_list};
         mul.wide.u32 %rd9, %r31, {}; add.s64 %rd3, %p3, %rd9; {stores}",
        load(0, 0, ra),
        load(1, 8, rb),
        load(2, 16, rc),
        case.name,
        list("r", 0, ra),
        list("r", 8, rb),
        4 * rc,
    );
    let bytes = |v: &[u32]| v.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let inputs = [bytes(&a), bytes(&b), bytes(&c)];
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let (out, _) = launch(&body, 32, &inputs, 128 * rc).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(words(&out), expected, "{}", case.name);
}

#[test]
fn products_of_every_shape() {
    for (name, m, k) in [
        ("m16n8k8.row.col.f32.f16.f16.f32", 16, 8),
        ("m16n8k16.row.col.f32.f16.f16.f32", 16, 16),
        ("m16n8k16.row.col.f16.f16.f16.f16", 16, 16),
        ("m16n8k8.row.col.f32.bf16.bf16.f32", 16, 8),
        ("m16n8k16.row.col.f32.bf16.bf16.f32", 16, 16),
        ("m16n8k4.row.col.f32.tf32.tf32.f32", 16, 4),
        ("m16n8k8.row.col.f32.tf32.tf32.f32", 16, 8),
        ("m16n8k32.row.col.f32.e4m3.e4m3.f32", 16, 32),
        ("m16n8k32.row.col.f32.e5m2.e5m2.f32", 16, 32),
        ("m16n8k32.row.col.f32.e4m3.e5m2.f32", 16, 32),
        ("m16n8k32.row.col.f32.e5m2.e4m3.f32", 16, 32),
        ("m8n8k16.row.col.s32.s8.s8.s32", 8, 16),
        ("m16n8k16.row.col.s32.s8.s8.s32", 16, 16),
        ("m16n8k32.row.col.satfinite.s32.s8.s8.s32", 16, 32),
        ("m8n8k16.row.col.s32.u8.u8.s32", 8, 16),
        ("m16n8k16.row.col.s32.u8.s8.s32", 16, 16),
        ("m16n8k32.row.col.s32.u8.u8.s32", 16, 32),
        ("m16n8k32.row.col.s32.s8.u8.s32", 16, 32),
        ("m16n8k32.row.col.satfinite.s32.u8.s8.s32", 16, 32),
    ] {
        // The last words are the types of D, A, B and C.
        let words: Vec<&str> = name.split('.').collect();
        let [.., d, a, b, _] = words[..] else { panic!("{name} names its types") };
        let (a, b) = (Kind::new(a), Kind::new(b));
        run(&Case { name, m, k, a, b, f16_sum: d == "f16", integer: d == "s32" });
    }
}

#[test]
fn sums_of_integers_wrap_or_saturate() {
    // Products of 255 and of 127 in four steps of the first row and column, added to what is just below the largest sum.
    for (clamp, want) in [(".satfinite", i32::MAX), ("", (i32::MAX - 9).wrapping_add(4 * 255 * 127))] {
        let body = format!(
            "mov.u32 %r31, %laneid; setp.eq.u32 %q1, %r31, 0; selp.b32 %r0, 0xffffffff, 0, %q1;
            selp.b32 %r1, 0x7f7f7f7f, 0, %q1; mov.b32 %r2, 0; mov.b32 %r3, {};
            mma.sync.aligned.m16n8k16.row.col{clamp}.s32.u8.s8.s32 {{%r4, %r5, %r6, %r7}}, {{%r0, %r2}}, {{%r1}},
                {{%r3, %r3, %r3, %r3}};
            mul.wide.u32 %rd9, %r31, 4; add.s64 %rd0, %p0, %rd9; st.global.b32 [%rd0], %r4;",
            i32::MAX - 9
        );
        let (out, _) = launch(&body, 32, &[], 128).unwrap_or_else(|e| panic!("{e}"));
        let all: Vec<i32> = words(&out).into_iter().map(|word| word as i32).collect();
        assert_eq!((all[0], all[1]), (want, i32::MAX - 9), "{clamp}");
    }
}

#[test]
fn accumulation_rounds_to_the_sum_type() {
    // Of A only row 0, column 0 is 1; B's first row is 2^-20; C is 1.
    let body = "mov.u32 %r31, %laneid; setp.eq.u32 %q1, %r31, 0; mov.b32 %r0, 0; mov.b32 %r1, 0;
        selp.b32 %r2, 0x3f800000, 0, %q1; mov.b32 %r3, 0;
        and.b32 %r4, %r31, 3; setp.eq.u32 %q2, %r4, 0; selp.b32 %r5, 0x33000000, 0, %q2;
        mov.f32 %f0, 0f3F800000;
        mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1, %f2, %f3, %f4},
            {%r2, %r0, %r1, %r3}, {%r5, %r0}, {%f0, %f0, %f0, %f0};
        @%q1 st.global.f32 [%p0], %f1;";
    let (out, _) = launch(body, 32, &[], 4).unwrap_or_else(|e| panic!("{e}"));
    // 1 + 2^-25 rounds to 1.
    assert_eq!(words(&out), [1f32.to_bits()]);
}

/// 8x8 matrices of 16-bit elements numbered `100 * matrix + 8 * row + col`, in
/// shared memory with rows 16 bytes apart.
const FILL: &str = "
    .shared .align 16 .b16 tile[256];
    mov.u32 %r31, %laneid; mov.u32 %r30, tile;
    mov.u32 %r29, %r31;
fill:
    shr.u32 %r28, %r29, 6; and.b32 %r27, %r29, 63; mad.lo.u32 %r26, %r28, 100, %r27;
    cvt.u16.u32 %h1, %r26; mad.lo.u32 %r25, %r29, 2, %r30; st.shared.b16 [%r25], %h1;
    add.u32 %r29, %r29, 32; setp.lt.u32 %q1, %r29, 256; @%q1 bra fill;
    bar.warp.sync -1;
    mad.lo.u32 %r24, %r31, 16, %r30;";

const KEEP: &str = "
    mul.wide.u32 %rd1, %r31, 16; add.s64 %rd2, %p0, %rd1;
    st.global.v4.b32 [%rd2], {%r0, %r1, %r2, %r3};";

fn expected(transposed: bool) -> Vec<u32> {
    let element = |matrix: usize, row: usize, col: usize| (100 * matrix + 8 * row + col) as u32;
    (0..32)
        .flat_map(|lane| {
            let (g, t) = (lane / 4, lane % 4);
            (0..4).map(move |matrix| match transposed {
                false => element(matrix, g, 2 * t) | element(matrix, g, 2 * t + 1) << 16,
                true => element(matrix, 2 * t, g) | element(matrix, 2 * t + 1, g) << 16,
            })
        })
        .collect()
}

#[test]
fn ldmatrix_gives_the_fragments() {
    for (trans, transposed) in [("", false), (".trans", true)] {
        let body = format!(
            "{FILL} ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r0, %r1, %r2, %r3}}, [%r24];
             {KEEP}"
        );
        let (out, stats) = launch(&body, 32, &[], 512).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(words(&out), expected(transposed));
        assert_eq!(stats.bank_conflicts, 0);
    }
    // Of x2 and x1 only the first lanes' addresses matter.
    let body = format!(
        "{FILL} setp.ge.u32 %q2, %r31, 16; selp.b32 %r24, 3, %r24, %q2;
         ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r0, %r1}}, [%r24];
         ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {{%r2}}, [%r24]; mov.b32 %r3, 0; {KEEP}"
    );
    let (out, _) = launch(&body, 32, &[], 512).unwrap_or_else(|e| panic!("{e}"));
    let (plain, trans) = (expected(false), expected(true));
    for (lane, got) in words(&out).chunks(4).enumerate() {
        assert_eq!(got[..3], [plain[4 * lane], plain[4 * lane + 1], trans[4 * lane]]);
    }
}

#[test]
fn stmatrix_and_movmatrix_undo_and_transpose() {
    let body = format!(
        "{FILL} ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r0, %r1, %r2, %r3}}, [%r24];
         bar.warp.sync -1;
         stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r24], {{%r0, %r1, %r2, %r3}};
         bar.warp.sync -1;
         ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r0, %r1, %r2, %r3}}, [%r24]; {KEEP}"
    );
    let (out, _) = launch(&body, 32, &[], 512).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(words(&out), expected(true));
    let body = format!(
        "{FILL} ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r0, %r1, %r2, %r3}}, [%r24];
         movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r0;
         movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r1;
         movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r2;
         movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r3; {KEEP}"
    );
    let (out, _) = launch(&body, 32, &[], 512).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(words(&out), expected(true));
}
