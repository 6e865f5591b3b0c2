//! What a kernel prints.

use std::panic::Location;

use super::target::Target;
use super::tensors::ProgramId;
use super::tile::Tile;
use super::value::Val;
use super::value::scalar::Any;

/// A number that is printed: part of what [`print`](super::builtins::print) takes.
#[diagnostic::on_unimplemented(
    message = "a kernel cannot print `{Self}` beside other values",
    note = "a tuple that is printed is made of numbers; a tile is printed alone, the elements of a row by `x.for_each(|v| print(\"x\", v))`"
)]
pub trait Printed<M: Target>: Copy {
    /// The number.
    #[doc(hidden)]
    fn shown(self) -> M::Shown;
}

impl<M: Target, T: Any> Printed<M> for Val<M, T> {
    #[inline(always)]
    fn shown(self) -> M::Shown {
        M::show::<T>(self.0)
    }
}

impl<M: Target> Printed<M> for ProgramId<M> {
    #[inline(always)]
    fn shown(self) -> M::Shown {
        self.0.shown()
    }
}

/// What [`print`](super::builtins::print) takes: a number, a tuple of numbers, or a tile.
#[diagnostic::on_unimplemented(
    message = "a kernel cannot print `{Self}`",
    note = "it prints numbers, tuples of numbers, and tiles; the elements of a row by `x.for_each(|v| print(\"x\", v))`"
)]
pub trait Print<M: Target>: Copy {
    /// Prints it behind the label.
    #[doc(hidden)]
    fn print(self, m: M, label: &'static str, place: &'static Location<'static>);
}

impl<M: Target, T: Any> Print<M> for Val<M, T> {
    #[inline(always)]
    fn print(self, m: M, label: &'static str, place: &'static Location<'static>) {
        m.print(label, vec![self.shown()], place);
    }
}

impl<M: Target> Print<M> for ProgramId<M> {
    #[inline(always)]
    fn print(self, m: M, label: &'static str, place: &'static Location<'static>) {
        m.print(label, vec![self.shown()], place);
    }
}

/// A line for each element: row, column, value.
impl<M: Target, T: Any, const R: usize, const C: usize> Print<M> for Tile<M, T, R, C> {
    #[inline(always)]
    #[track_caller]
    fn print(self, m: M, label: &'static str, place: &'static Location<'static>) {
        M::tile_map::<T, T, R, C>(
            self.0,
            #[inline(always)]
            |i, j, v| {
                (i, j, v).print(m, label, place);
                v
            },
        );
    }
}

macro_rules! tuples {
    ($($($p:ident $i:tt),*;)*) => { $(
        impl<M: Target, $($p: Printed<M>),*> Print<M> for ($($p,)*) {
            #[inline(always)]
            fn print(self, m: M, label: &'static str, place: &'static Location<'static>) {
                m.print(label, vec![$(self.$i.shown()),*], place);
            }
        }
    )* };
}
tuples! {
    ;
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
}

/// A number as C's `%.*g` writes it, which is what prints on a GPU.
pub(crate) fn general(x: f64, digits: usize) -> String {
    if !x.is_finite() {
        return if x.is_nan() { "nan".to_owned() } else { format!("{x}") };
    }
    let scientific = format!("{:.*e}", digits - 1, x);
    let (number, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..digits as i32).contains(&exponent) {
        return trimmed(&format!("{:.*}", (digits as i32 - 1 - exponent) as usize, x));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(number), exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn numbers_are_written_as_in_c() {
        let seven = |x| general(x, 7);
        assert_eq!([0.0, -0.0, 1.0, 0.1_f32.into(), 1234567.0].map(seven), ["0", "-0", "1", "0.1", "1234567"]);
        assert_eq!([12345678.0, 1e-4, 1.5e-5, -2.5e300].map(seven), ["1.234568e+07", "0.0001", "1.5e-05", "-2.5e+300"]);
        assert_eq!([f64::NAN, -f64::NAN, f64::INFINITY, -f64::INFINITY].map(seven), ["nan", "nan", "inf", "-inf"]);
        assert_eq!((general(0.1, 15), general(9999999.9, 7)), ("0.1".to_owned(), "1e+07".to_owned()));
    }
}
