//! `sin`, `cos` and `tan`.
//!
//! x = (q + f) π/2 with an integer q, of which the low two bits matter, and |f| <= 1/2; then a polynomial for the sine
//! or cosine of f π/2. The reduction is exact for every x, as Payne and Hanek's: of the product of x and 2/π, only the
//! bits below 4 are formed. `f32` does it in `f64`, with products of x and parts of 1/2π that are exact; `f64` does it in
//! integers.

use super::super::control::{eq, float, int, lt};
use super::super::target::Target;
use super::super::value::Val;
use super::{Format, horner, round, select};

/// What differs between the formats.
pub(super) trait Trig: Format {
    /// r = f π/2 and the low bits of q.
    fn reduce<M: Target>(x: Val<M, Self>) -> (Val<M, Self>, Val<M, Self::Bits>);
    /// (sin(r) - r) / r^3 for z = r^2, |r| <= 1.01 π/4.
    fn sin_tail<M: Target>(z: Val<M, Self>) -> Val<M, Self>;
    /// (cos(r) - 1 + r^2/2) / r^4.
    fn cos_tail<M: Target>(z: Val<M, Self>) -> Val<M, Self>;
}

/// 2^n, for constants.
const fn power(n: i64) -> f64 {
    f64::from_bits(((1023 + n) as u64) << 52)
}

/// 1 / 2π: five parts of 29 bits, so that a product with an `f32` is exact, and the rest.
const TURNS: [f64; 6] = [
    0.15915494272485375,
    3.6704158115630214e-10,
    5.690025167992954e-19,
    1.4703036846932608e-27,
    2.5867171752090537e-36,
    9.458140970740169e-46,
];

/// The fraction of `x * part`; with an exact product, exact, and 0 where the product is too large to have one.
#[inline(always)]
#[track_caller]
fn fraction<M: Target>(x: Val<M, f64>, part: f64) -> Val<M, f64> {
    let turns = x * float(part);
    turns - turns.round_ties_even()
}

impl Trig for f32 {
    #[inline(always)]
    #[track_caller]
    fn reduce<M: Target>(x: Val<M, f32>) -> (Val<M, f32>, Val<M, u32>) {
        let x = x.cast::<f64>();
        let (a, b, c) = (fraction(x, TURNS[0]), fraction(x, TURNS[1]), fraction(x, TURNS[2]));
        let (d, e) = (fraction(x, TURNS[3]), fraction(x, TURNS[4]));
        let q = round(a + b + c + d + e, 4.0);
        // The quarter turns go first: what remains may be small, and then each sum is exact.
        let f = a - q.float * float(0.25) + b + c + d + e + x * float(TURNS[5]);
        ((f * float(std::f64::consts::TAU)).cast::<f32>(), q.int.cast::<u32>())
    }

    // Error of the sine: 2^-27.8.
    #[inline(always)]
    #[track_caller]
    fn sin_tail<M: Target>(z: Val<M, f32>) -> Val<M, f32> {
        horner!(z; -0.16666653752326965, 0.008332106284797192, -0.00019507884280756116)
    }
    // Error of the cosine: 2^-32.7.
    #[inline(always)]
    #[track_caller]
    fn cos_tail<M: Target>(z: Val<M, f32>) -> Val<M, f32> {
        horner!(z; 0.04166664555668831, -0.0013887297827750444, 2.443008816044312e-05)
    }
}

/// 2/π in binary, preceded by 55 zeros, as for an exponent of the last place of x of -53.
const TWO_OVER_PI_BITS: [u64; 20] = [
    0x0000_0000_0000_0145,
    0xf306_dc9c_882a_53f8,
    0x4eaf_a3ea_69bb_81b6,
    0xc52b_3278_8720_83fc,
    0xa2c7_57bd_778a_c36e,
    0x48dc_7484_9ba5_c00c,
    0x925d_d413_a324_39fc,
    0x3bd6_3962_534e_7dd1,
    0x046b_ea5d_7689_09d3,
    0x38e0_4d68_befc_8273,
    0x23ac_7306_a673_e939,
    0x08bf_177b_f250_763f,
    0xf12f_ffbc_0b30_1fde,
    0x5e23_16b4_14da_3eda,
    0x6cfd_9e4f_9613_6e9e,
    0x8c7e_cd3c_bfd4_5aea,
    0x4f75_8fd7_cbe2_f67a,
    0x0e73_ef14_a525_d4d7,
    0xf6bf_623f_1aba_10ac,
    0x0660_8df8_f6d7_57e1,
];

/// Of `words`, those from the index 0 or, where the bit of weight `step` is set in the word index of bit `at`, from the
/// index `step`. A function for each step, since LLVM unrolls a loop whose bounds are constants.
#[inline(always)]
#[track_caller]
fn skip<M: Target, const N: usize, const REST: usize>(
    words: [Val<M, u64>; N],
    at: Val<M, u64>,
    step: usize,
) -> [Val<M, u64>; REST] {
    let stay = eq(at & int(64 * step as i128), int(0));
    let mut rest = [words[0]; REST];
    let mut i = 0;
    while i < REST {
        rest[i] = if i + step < N { select(stay, words[i], words[i + step]) } else { words[i] };
        i += 1;
    }
    rest
}

/// The 192 bits of 2/π from bit `at` (at most 1024), as six 32-bit digits, the upper first.
#[inline(always)]
#[track_caller]
fn window<M: Target>(at: Val<M, u64>) -> [Val<M, u64>; 6] {
    // Word `at / 64` and the three after it, by one binary digit of that index at a time.
    let mut words = [int::<M, u64>(0); 20];
    let mut i = 0;
    while i < 20 {
        words[i] = int(TWO_OVER_PI_BITS[i] as i128);
        i += 1;
    }
    let words: [_; 19] = skip(words, at, 16);
    let words: [_; 11] = skip(words, at, 8);
    let words: [_; 7] = skip(words, at, 4);
    let words: [_; 5] = skip(words, at, 2);
    let words: [_; 4] = skip(words, at, 1);
    // Then by bits. A shift by 64 would be one by 0.
    let shift = at & int(63);
    let back = int::<M, u64>(63) - shift;
    let mut digits = [int::<M, u64>(0); 6];
    let mut i = 0;
    while i < 3 {
        let word = (words[i] << shift) | ((words[i + 1] >> int(1)) >> back);
        digits[2 * i] = word >> int(32);
        digits[2 * i + 1] = word & int(LOW);
        i += 1;
    }
    digits
}

const LOW: i128 = 0xffff_ffff;

/// A number of 32 bits as a float.
#[inline(always)]
#[track_caller]
fn from_u32<M: Target>(v: Val<M, u64>) -> Val<M, f64> {
    const CARRIER: f64 = power(52);
    (v | int(CARRIER.to_bits() as i128)).bitcast::<f64>() - float(CARRIER)
}

/// π/2: its upper 26 bits, and the rest.
const PI_2_HI: f64 = 1.5707963109016418;
const PI_2_LO: f64 = 1.5893254773528196e-08;

impl Trig for f64 {
    #[track_caller]
    #[inline(always)]
    fn reduce<M: Target>(x: Val<M, f64>) -> (Val<M, f64>, Val<M, u64>) {
        let bits = x.abs().bitcast::<u64>();
        // |x| = mantissa * 2^e, and the first bit of 2/π that matters times 2^e is 2.
        let digits = window((bits >> int(52)) - int(1022));
        let mantissa = bits & int((1 << 52) - 1) | int(1 << 52);
        let (high, low) = (mantissa >> int(32), mantissa & int(LOW));
        // The product modulo 2^192, in digits of 32 bits from the last; the lowest two serve for their carries only.
        let mut product = [int::<M, u64>(0); 6];
        let mut carry = (low * digits[5]) >> int(32);
        let mut i = 5;
        while i > 0 {
            let sum = low * digits[i - 1] + carry;
            let other = high * digits[i] + (sum & int(LOW));
            product[i - 1] = other & int(LOW);
            carry = (sum >> int(32)) + (other >> int(32));
            i -= 1;
        }
        // Now of 128 bits: two of the integer, 126 of the fraction. It is signed, with the nearest integer.
        let upper = (product[0] << int(32)) | product[1];
        let lower = (product[2] << int(32)) | product[3];
        let q = (upper + int(1 << 61)) >> int(62);
        // 64 bits of the fraction, as signed and plus a half; `lower` has the others.
        let f = ((upper << int(2)) | (lower >> int(62))) + int(1 << 63);
        let lower = lower << int(2);
        let a = (from_u32(f >> int(32)) - float(const { power(31) })) * float(const { power(-32) });
        let b = from_u32(f & int(LOW)) * float(const { power(-64) });
        let c = from_u32(lower >> int(32)) * float(const { power(-96) });
        let d = from_u32(lower & int(LOW)) * float(const { power(-128) });
        let sum = a + b;
        let rest = (b - (sum - a)) + (c + d);
        // f π/2, with the upper part of the sum short enough for an exact product.
        let head = (sum.bitcast::<u64>() & int(-1 << 27)).bitcast::<f64>();
        let rest = (sum - head) + rest;
        let r = head.mul_add(float(PI_2_LO), rest * float(std::f64::consts::FRAC_PI_2));
        let r = head * float(PI_2_HI) + r;
        // Small numbers are their own remainders; infinities and NaN have none.
        let small = lt(x.abs(), float(std::f64::consts::FRAC_PI_4));
        let finite = lt(x.abs(), Val::infinity());
        let negative = lt(x, float(0.0));
        let r = select(finite, select(negative, -r, r), Val::nan());
        let q = select(negative, int::<M, u64>(0) - q, q);
        (select(small, x, r), select(small, int(0), q))
    }

    // Error of the sine: 2^-57.7.
    #[inline(always)]
    #[track_caller]
    fn sin_tail<M: Target>(z: Val<M, f64>) -> Val<M, f64> {
        horner!(z; -0.16666666666666627, 0.008333333333321067, -0.00019841269828686328, 2.7557313290822013e-06, -2.5050693769812075e-08, 1.58929905899266e-10)
    }
    // Error of the cosine: 2^-63.7.
    #[inline(always)]
    #[track_caller]
    fn cos_tail<M: Target>(z: Val<M, f64>) -> Val<M, f64> {
        horner!(z; 0.04166666666666658, -0.001388888888887097, 2.4801587287527984e-05, -2.755731379157956e-07, 2.0875647492975384e-09, -1.1355744205837196e-11)
    }
}

/// The sine and cosine of r, and the low bits of q.
struct Turned<M: Target, F: Format> {
    sin: Val<M, F>,
    cos: Val<M, F>,
    q: Val<M, F::Bits>,
}

#[inline(always)]
#[track_caller]
fn turned<M: Target, F: Trig>(x: Val<M, F>) -> Turned<M, F> {
    let (r, q) = F::reduce(x);
    let z = r * r;
    let sin = (r * z).mul_add(F::sin_tail(z), r);
    let cos = (z * z).mul_add(F::cos_tail(z), z.mul_add(float(-0.5), float(1.0)));
    Turned { sin, cos, q }
}

#[inline(always)]
#[track_caller]
fn even<M: Target, F: Format>(q: Val<M, F::Bits>) -> Val<M, bool> {
    eq(q & int(1), int::<M, F::Bits>(0))
}

/// `y`, negated where bit `bit` of `q` is set.
#[inline(always)]
#[track_caller]
fn flip<M: Target, F: Format>(y: Val<M, F>, q: Val<M, F::Bits>, bit: i128) -> Val<M, F> {
    let sign = (q << int(F::SIGN.ilog2() as i128 - bit)) & int(F::SIGN);
    (y.bitcast::<F::Bits>() ^ sign).bitcast::<F>()
}

#[inline(always)]
#[track_caller]
pub(super) fn sin<M: Target, F: Trig>(x: Val<M, F>) -> Val<M, F> {
    let Turned { sin, cos, q } = turned(x);
    let y = flip(select(even::<M, F>(q), sin, cos), q, 1);
    // Keeps the sign of -0.
    select(eq(x, float(0.0)), x, y)
}

#[inline(always)]
#[track_caller]
pub(super) fn cos<M: Target, F: Trig>(x: Val<M, F>) -> Val<M, F> {
    let Turned { sin, cos, q } = turned(x);
    flip(select(even::<M, F>(q), cos, sin), q + int(1), 1)
}

#[inline(always)]
#[track_caller]
pub(super) fn tan<M: Target, F: Trig>(x: Val<M, F>) -> Val<M, F> {
    let Turned { sin, cos, q } = turned(x);
    let even = even::<M, F>(q);
    let y = flip(select(even, sin, cos) / select(even, cos, sin), q, 0);
    select(eq(x, float(0.0)), x, y)
}
