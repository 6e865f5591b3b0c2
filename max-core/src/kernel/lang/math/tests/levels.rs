//! Running one math function on a slice, at each level of the CPU and in reference form.

use crate::kernel::lang::{Cpu, Portable, Reference, Target, Val, float};
#[cfg(target_arch = "x86_64")]
use crate::kernel::lang::{V2, V3, V4};

/// A level's name and the function compiled for it.
pub type Compiled<T> = (&'static str, fn(&[T], &mut [T]));

/// A function of one number.
pub struct Function {
    pub name: &'static str,
    /// At each level that this machine has.
    pub f32: fn() -> Vec<Compiled<f32>>,
    pub f64: fn() -> Vec<Compiled<f64>>,
    /// One element in reference form.
    pub reference_f32: fn(f32) -> f32,
    pub reference_f64: fn(f64) -> f64,
}

/// Calls `f` for each element; inlined into an entry that has the level's features.
#[inline(always)]
fn each<T: Copy>(x: &[T], y: &mut [T], f: impl Fn(T) -> T) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = f(*x);
    }
}

/// The number that a reference value prints as.
fn number<T: std::str::FromStr>(v: impl std::fmt::Debug) -> T {
    let text = format!("{v:?}");
    let digits = text.split('_').next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("{text} is not a number"))
}

macro_rules! entries {
    ($t:ident, |$x:ident| $y:expr) => {{
        let portable: Compiled<$t> = ("portable", |x, y| {
            each(
                x,
                y,
                #[inline(always)]
                |x| {
                    let $x = Val::<Cpu<Portable>, $t>(x);
                    $y.0
                },
            )
        });
        #[cfg(not(target_arch = "x86_64"))]
        return vec![portable];
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "sse4.2,popcnt,ssse3")]
            fn v2(x: &[$t], y: &mut [$t]) {
                each(
                    x,
                    y,
                    #[inline(always)]
                    |x| {
                        let $x = Val::<Cpu<V2>, $t>(x);
                        $y.0
                    },
                );
            }
            #[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt")]
            fn v3(x: &[$t], y: &mut [$t]) {
                each(
                    x,
                    y,
                    #[inline(always)]
                    |x| {
                        let $x = Val::<Cpu<V3>, $t>(x);
                        $y.0
                    },
                );
            }
            #[target_feature(
                enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt"
            )]
            fn v4(x: &[$t], y: &mut [$t]) {
                each(
                    x,
                    y,
                    #[inline(always)]
                    |x| {
                        let $x = Val::<Cpu<V4>, $t>(x);
                        $y.0
                    },
                );
            }
            let mut all = vec![portable];
            if is_x86_feature_detected!("sse4.2") {
                // SAFETY: checked just now.
                all.push(("v2", |x, y| unsafe { v2(x, y) }));
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: checked just now; what has these has the rest of the level.
                all.push(("v3", |x, y| unsafe { v3(x, y) }));
            }
            if is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512vl") {
                // SAFETY: checked just now; what has these has the rest of the level.
                all.push(("v4", |x, y| unsafe { v4(x, y) }));
            }
            all
        }
    }};
}

macro_rules! functions {
    ($($name:ident = |$x:ident| $y:expr;)*) => { $(
        pub const fn $name() -> Function {
            fn f32() -> Vec<Compiled<f32>> { entries!(f32, |$x| $y) }
            fn f64() -> Vec<Compiled<f64>> { entries!(f64, |$x| $y) }
            Function {
                name: stringify!($name),
                f32,
                f64,
                reference_f32: |x| {
                    let $x = Val::<Reference, f32>(Reference::float::<f32>(x as f64));
                    number($y)
                },
                reference_f64: |x| {
                    let $x = Val::<Reference, f64>(Reference::float::<f64>(x));
                    number($y)
                },
            }
        }
    )* };
}
functions! {
    exp = |x| x.exp();
    exp2 = |x| x.exp2();
    exp_m1 = |x| x.exp_m1();
    log = |x| x.log();
    log2 = |x| x.log2();
    log10 = |x| x.log10();
    log1p = |x| x.log1p();
    sin = |x| x.sin();
    cos = |x| x.cos();
    tan = |x| x.tan();
    asin = |x| x.asin();
    acos = |x| x.acos();
    atan = |x| x.atan();
    sinh = |x| x.sinh();
    cosh = |x| x.cosh();
    tanh = |x| x.tanh();
    atanh = |x| x.atanh();
    sigmoid = |x| x.sigmoid();
    erf = |x| x.erf();
    rsqrt = |x| x.rsqrt();
    recip = |x| x.recip();
    power_3 = |x| x.powf(float(3.0));
    power_minus_1_25 = |x| x.powf(float(-1.25));
    power_0_078125 = |x| x.powf(float(0.078125));
    powers_of_0_3125 = |x| float(0.3125).powf(x);
    powers_of_1_0009765625 = |x| float(1.0009765625).powf(x);
    powers_of_minus_7 = |x| float(-7.0).powf(x);
}
