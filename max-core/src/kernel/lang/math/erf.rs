//! `erf`.
//!
//! Below 1 in magnitude, x times a polynomial in x^2; above, 1 - 2^p(|x|), where p approximates log2(erfc), which is
//! smooth and, as erfc is small there, needs few correct digits.

use super::super::control::{float, lt};
use super::super::target::Target;
use super::super::value::Val;
use super::{Format, copysign, horner, limit, power_of_2, round, select};

/// What differs between the formats.
pub(super) trait Erf: Format {
    /// From here, erf rounds to 1.
    const ONE: f64;

    /// erf(x) / x - 1 for z = x^2 <= 1.
    fn near<M: Target>(z: Val<M, Self>) -> Val<M, Self>;
    /// log2(erfc(a)) for a from 1 to ONE.
    fn far<M: Target>(a: Val<M, Self>) -> Val<M, Self>;
    /// (2^r - 1) / r for |r| <= 1/2, to the precision that the far part needs.
    fn tail_2<M: Target>(r: Val<M, Self>) -> Val<M, Self>;
}

impl Erf for f32 {
    const ONE: f64 = 4.0;

    // Error of erf: 2^-29.2.
    #[inline(always)]
    #[track_caller]
    fn near<M: Target>(z: Val<M, f32>) -> Val<M, f32> {
        horner!(z; 0.12837916612625122, -0.3761262595653534, 0.11283578723669052, -0.02685343287885189,
            0.005187594331800938, -0.000800443347543478, 7.838238525437191e-05)
    }
    // Error of erf: 2^-29.8.
    #[inline(always)]
    #[track_caller]
    fn far<M: Target>(a: Val<M, f32>) -> Val<M, f32> {
        horner!(a; -0.0004927185364067554, -1.6260459423065186, -0.9206485152244568, -0.1487514227628708,
            0.03150554001331329, -0.0042525287717580795, 0.00026888263528235257)
    }
    // Error of 2^r: 2^-22.7.
    #[inline(always)]
    #[track_caller]
    fn tail_2<M: Target>(r: Val<M, f32>) -> Val<M, f32> {
        horner!(r; 0.6931472420692444, 0.2402222454547882, 0.05550263077020645, 0.009671368636190891,
            0.001342102768830955)
    }
}

impl Erf for f64 {
    const ONE: f64 = 6.0;

    // Error of erf: 2^-56.0.
    #[inline(always)]
    #[track_caller]
    fn near<M: Target>(z: Val<M, f64>) -> Val<M, f64> {
        horner!(z; 0.12837916709551256, -0.37612638903183343, 0.11283791670936949, -0.02686617064195855,
            0.005223977596726496, -0.000854832548423763, 0.00012055280461368805, -1.4924464664434791e-05,
            1.6444134190314912e-06, -1.618382841330265e-07, 1.3615821324728398e-08, -7.605834193283208e-10)
    }
    // Error of erf: 2^-54.8.
    #[inline(always)]
    #[track_caller]
    fn far<M: Target>(a: Val<M, f64>) -> Val<M, f64> {
        horner!(a; -1.5343310413608213e-06, -1.627891946400958, -0.9185171542036284, -0.14807483988619388,
            0.0272170165619463, 0.0008426023705939061, -0.003027874133858097, 0.0013271903747038099,
            -0.0003327555833127728, 4.039561956764506e-05, 5.207778087135945e-06, -3.855746162995608e-06,
            9.920970043352524e-07, -1.5611205183931173e-07, 1.5728428093987386e-08, -9.402624579378253e-10,
            2.5538818226447978e-11)
    }
    #[inline(always)]
    #[track_caller]
    fn tail_2<M: Target>(r: Val<M, f64>) -> Val<M, f64> {
        super::exp::Exp::tail_2(r)
    }
}

#[inline(always)]
#[track_caller]
pub(super) fn erf<M: Target, F: Erf>(x: Val<M, F>) -> Val<M, F> {
    let one = float::<M, F>(1.0);
    let a = x.abs();
    let near = x.mul_add(F::near(x * x), x);
    let log = F::far(limit(a, 1.0, F::ONE));
    let n = round(log, 1.0);
    let r = log - n.float;
    let erfc = r.mul_add(F::tail_2(r), one) * power_of_2(n.int);
    select(lt(a, one), near, copysign(one - erfc, x))
}
