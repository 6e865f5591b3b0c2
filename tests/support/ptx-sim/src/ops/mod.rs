//! The meaning of each arithmetic instruction: functions on the bits of
//! registers, chosen once when an instruction is decoded.
//!
//! A register holds its value in the low bits of a `u64`, zero above its
//! width. A function reads only the bits of its type and returns a value that
//! is zero above its result's width. It is written for one lane, and must not
//! panic whatever the bits are: of a warp, the lanes that take no part are
//! computed too, and dropped.

use crate::types::Mods;
use crate::warp::Row;

pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod integer;
pub(crate) mod softfloat;

/// Functions of so many operands: of one lane, or, by a single call that the
/// function is inlined into, of all lanes of a warp.
macro_rules! functions {
    ($($Name:ident($F:ident: $($x:ident $word:ident),+);)*) => {$(
        pub(crate) trait $Name: Fn(&Mods, $($word),+) -> u64 + Sync {
            fn row(&self, m: &Mods, result: &mut Row, $($x: &Row),+);
        }

        impl<F: Fn(&Mods, $($word),+) -> u64 + Sync> $Name for F {
            fn row(&self, m: &Mods, result: &mut Row, $($x: &Row),+) {
                // Mostly there are no modifiers. Where the compiler knows so, it leaves out what they do, and a loop remains
                // that it makes of vector instructions.
                if *m == Mods::PLAIN {
                    for (lane, value) in result.iter_mut().enumerate() {
                        *value = self(&Mods::PLAIN, $($x[lane]),+);
                    }
                } else {
                    for (lane, value) in result.iter_mut().enumerate() {
                        *value = self(m, $($x[lane]),+);
                    }
                }
            }
        }

        impl std::fmt::Debug for dyn $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($Name))
            }
        }

        pub(crate) type $F = &'static dyn $Name;
    )*};
}

functions! {
    Unary(F1: a u64);
    Binary(F2: a u64, b u64);
    Ternary(F3: a u64, b u64, c u64);
    Quaternary(F4: a u64, b u64, c u64, d u64);
}
