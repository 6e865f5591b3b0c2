//! Zeros, infinities, NaN and integers as bases and exponents: `powf` follows C.

use super::accuracy::{SPECIAL, error, error_f32};
use crate::kernel::lang::{Cpu, Portable, Val};

const MORE: [f64; 16] = [
    2.0,
    -2.0,
    3.0,
    -3.0,
    0.25,
    -0.5,
    2.5,
    -7.0,
    16_777_217.0,
    -9_007_199_254_740_991.0,
    1e19,
    1e300,
    -1e300,
    1e-300,
    -1e-40,
    0.999_999,
];

#[test]
fn special_bases_and_exponents_are_as_in_c() {
    let values = || SPECIAL.into_iter().chain(MORE);
    for (x, y) in values().flat_map(|x| values().map(move |y| (x, y))) {
        let got = Val::<Cpu<Portable>, f64>(x).powf(Val(y)).0;
        assert!(error(got, x.powf(y), 52, 1023) <= 2.0, "{x:e}^{y:e} is {got:e}, not {:e}", x.powf(y));

        let (x, y) = (x as f32, y as f32);
        let got = Val::<Cpu<Portable>, f32>(x).powf(Val(y)).0;
        let want = (x as f64).powf(y as f64);
        // What rounds to zero has a zero's sign.
        let want = if want.abs() < 1e-46 { 0f64.copysign(want) } else { want };
        assert!(error_f32(got, want) <= 1.0, "{x:e}^{y:e} is {got:e}, not {want:e}");
    }
}
