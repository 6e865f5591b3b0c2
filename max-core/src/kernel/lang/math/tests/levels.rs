//! Running one math function on a slice, at each level of the CPU and in reference form.

use crate::kernel::lang::{Cpu, Portable, Reference, Target, Val};
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
    ($t:ident, $method:ident) => {{
        let portable: Compiled<$t> = ("portable", |x, y| {
            each(
                x,
                y,
                #[inline(always)]
                |x| Val::<Cpu<Portable>, $t>(x).$method().0,
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
                    |x| Val::<Cpu<V2>, $t>(x).$method().0,
                );
            }
            #[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt")]
            fn v3(x: &[$t], y: &mut [$t]) {
                each(
                    x,
                    y,
                    #[inline(always)]
                    |x| Val::<Cpu<V3>, $t>(x).$method().0,
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
                    |x| Val::<Cpu<V4>, $t>(x).$method().0,
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
    ($($method:ident),* $(,)?) => { $(
        pub const fn $method() -> Function {
            fn f32() -> Vec<Compiled<f32>> { entries!(f32, $method) }
            fn f64() -> Vec<Compiled<f64>> { entries!(f64, $method) }
            Function {
                name: stringify!($method),
                f32,
                f64,
                reference_f32: |x| number(Val::<Reference, f32>(Reference::float::<f32>(x as f64)).$method()),
                reference_f64: |x| number(Val::<Reference, f64>(Reference::float::<f64>(x)).$method()),
            }
        }
    )* };
}
functions!(exp, exp2, exp_m1, log, log2, log10, log1p, tanh, sigmoid, erf, rsqrt);
