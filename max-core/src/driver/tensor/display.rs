//! How tensors print: `Display` the values as NumPy's `str` does, `Debug` also dtype, shape and device. Large tensors are
//! abbreviated.
//!
//! Floats have the fewest digits that tell them from their neighbours, at most eight behind the point, and are all positional
//! or all in scientific notation. Lines are at most 75 characters long.

use std::fmt;

use super::Tensor;
use crate::dispatch;
use crate::driver::DriverError;
use crate::dtype::{DType, Element};

/// Tensors with more elements are abbreviated.
const SUMMARY_THRESHOLD: usize = 1000;
/// How many elements at each end of an axis remain in an abbreviated tensor.
const EDGE: usize = 3;
/// A line ends before an element that would end behind this column.
const LINE_WIDTH: usize = 75;
/// The most digits behind the point.
const PRECISION: usize = 8;

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.require_host("print").is_err() {
            return write!(f, "<{} {:?} on {}>", self.dtype(), self.shape(), self.device());
        }
        if self.num_elements() == 0 {
            return write!(f, "<{} {:?}>", self.dtype(), self.shape());
        }
        let edge = if self.num_elements() > SUMMARY_THRESHOLD { EDGE } else { usize::MAX };
        let dtype = self.dtype();
        // All that depends on the type of elements: the rest is compiled once.
        let number = |x: &Tensor| dispatch!(dtype, T => x.item::<T>().map(|element| element.to_f64()));
        let text = |x: &Tensor| dispatch!(dtype, T => x.item::<T>().map(|element| element.to_string()));
        let texts = match dtype {
            dtype if dtype.is_float() => match &collect(self, edge, &number)?[..] {
                [single] if self.rank() == 0 => vec![scalar(*single, dtype)],
                numbers => floats(numbers, dtype),
            },
            DType::Bool => {
                let names = collect(self, edge, &number)?.into_iter().map(|x| if x != 0.0 { "True" } else { "False" });
                aligned(names.map(str::to_owned).collect(), if self.rank() == 0 { 0 } else { "False".len() })
            }
            _ => aligned(collect(self, edge, &text)?, 0),
        };
        f.write_str(&array(self.shape(), edge, 1, LINE_WIDTH, &mut texts.into_iter()))
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?} on {}", self.dtype(), self.shape(), self.device())?;
        if !self.is_contiguous() {
            write!(f, ", strides {:?}", self.strides())?;
        }
        write!(f, ")\n{self}")
    }
}

/// The positions of an axis that are shown; `None` is the gap.
fn shown(size: usize, edge: usize) -> impl Iterator<Item = Option<usize>> {
    let abbreviated = size > edge.saturating_mul(2);
    let head = if abbreviated { edge } else { size };
    let tail = if abbreviated { size - edge } else { size };
    (0..head).map(Some).chain(abbreviated.then_some(None)).chain((tail..size).map(Some))
}

/// What `element` makes of the elements that are shown, in order.
fn collect<R>(
    tensor: &Tensor,
    edge: usize,
    element: &dyn Fn(&Tensor) -> Result<R, DriverError>,
) -> Result<Vec<R>, fmt::Error> {
    let mut parts = vec![tensor.clone()];
    for &size in tensor.shape() {
        let of_part =
            |part: &Tensor| shown(size, edge).flatten().map(|index| part.select(0, index as isize)).collect::<Vec<_>>();
        parts = parts.iter().flat_map(of_part).collect::<Result<_, _>>().map_err(|_| fmt::Error)?;
    }
    parts.iter().map(element).collect::<Result<_, _>>().map_err(|_| fmt::Error)
}

/// The texts, of one width, which is at least this.
fn aligned(mut texts: Vec<String>, least: usize) -> Vec<String> {
    let width = texts.iter().map(String::len).max().unwrap_or(0).max(least);
    texts.iter_mut().for_each(|text| *text = format!("{text:>width$}"));
    texts
}

/// A finite number in decimal: the fewest digits that tell it from its neighbours of the same dtype.
struct Decimal {
    value: f64,
    sign: &'static str,
    /// Without zeros at the end.
    digits: String,
    /// The power of ten of the first digit.
    exponent: i32,
}

impl Decimal {
    /// `None` of what is not finite.
    fn of(value: f64, dtype: DType) -> Option<Decimal> {
        let reads_back = |text: &String| text.parse().is_ok_and(|near| rounded(near, dtype) == value);
        let text = match dtype.size_in_bytes() {
            8 => format!("{value:e}"),
            4 => format!("{:e}", value as f32),
            _ => (0..PRECISION).map(|digits| format!("{value:.digits$e}")).find(reads_back).unwrap_or_default(),
        };
        value.is_finite().then(|| Decimal::parse(value, &text))
    }

    /// Of a text in scientific notation.
    fn parse(value: f64, text: &str) -> Decimal {
        let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
        let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
        let digits = digits.trim_end_matches('0');
        Decimal {
            value,
            sign: if value.is_sign_negative() { "-" } else { "" },
            digits: if digits.is_empty() { "0" } else { digits }.to_owned(),
            exponent: exponent.parse().unwrap_or_default(),
        }
    }

    /// What is before and behind the point, at most so many digits.
    fn positional(&self, most: usize) -> (String, String) {
        let Decimal { sign, digits, exponent, value } = self;
        if digits.len() as i64 - 1 - i64::from(*exponent) > most as i64 {
            let text = format!("{value:.most$}");
            let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
            return (whole.to_owned(), fraction.trim_end_matches('0').to_owned());
        }
        match usize::try_from(*exponent) {
            Err(_) => {
                let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
                (format!("{sign}0"), zeros + digits)
            }
            Ok(last) if last >= digits.len() => (format!("{sign}{digits:0<0$}", last + 1), String::new()),
            Ok(last) => (format!("{sign}{}", &digits[..=last]), digits[last + 1..].to_owned()),
        }
    }

    /// As scientific notation writes it: with one digit before the point, and at most so many behind it.
    fn rounded(self, most: usize) -> Decimal {
        if self.digits.len() - 1 > most { Decimal::parse(self.value, &format!("{:.most$e}", self.value)) } else { self }
    }

    fn exponent_digits(&self) -> usize {
        self.exponent.unsigned_abs().to_string().len().max(2)
    }

    /// The exponent with its sign, and at least so many digits.
    fn exponent(&self, digits: usize) -> String {
        format!("e{}{:0>digits$}", if self.exponent < 0 { '-' } else { '+' }, self.exponent.unsigned_abs())
    }
}

/// The number of the dtype that is nearest.
fn rounded(x: f64, dtype: DType) -> f64 {
    dispatch!(dtype, T => T::from_f64(x).to_f64())
}

fn not_finite(value: f64) -> &'static str {
    match value {
        value if value.is_nan() => "nan",
        value if value < 0.0 => "-inf",
        _ => "inf",
    }
}

/// From what number on scientific notation is used: of small dtypes, where digits before the point would be made up.
fn positional_limit(dtype: DType, of_f64: f64) -> f64 {
    match dtype.size_in_bytes() {
        8 => of_f64,
        4 => 1e6,
        _ => 1e3,
    }
}

/// The text of a float that stands alone.
fn scalar(element: f64, dtype: DType) -> String {
    let Some(decimal) = Decimal::of(element, dtype) else { return not_finite(element).to_owned() };
    if decimal.value == 0.0 || (1e-4..positional_limit(dtype, 1e16)).contains(&decimal.value.abs()) {
        let (whole, fraction) = decimal.positional(usize::MAX >> 1);
        return format!("{whole}.{}", if fraction.is_empty() { "0" } else { &fraction });
    }
    let (first, rest) = decimal.digits.split_at(1);
    let point = if rest.is_empty() { "" } else { "." };
    format!("{}{first}{point}{rest}{}", decimal.sign, decimal.exponent(2))
}

/// The texts of floats that stand in one tensor, of one width.
fn floats(elements: &[f64], dtype: DType) -> Vec<String> {
    let decimals: Vec<Option<Decimal>> = elements.iter().map(|element| Decimal::of(*element, dtype)).collect();
    let sizes = decimals.iter().flatten().map(|decimal| decimal.value.abs()).filter(|size| *size != 0.0);
    let (least, most) = sizes.fold((f64::INFINITY, 0.0f64), |(least, most), size| (least.min(size), most.max(size)));
    // Compared as numbers of the dtype.
    let is_wide =
        most >= positional_limit(dtype, 1e8) || least < rounded(1e-4, dtype) || rounded(most / least, dtype) > 1000.0;
    let texts: Vec<Option<String>> = if most > 0.0 && is_wide {
        let rounded = |decimal: Option<Decimal>| decimal.map(|decimal| decimal.rounded(PRECISION));
        let decimals: Vec<Option<Decimal>> = decimals.into_iter().map(rounded).collect();
        let fraction = decimals.iter().flatten().map(|decimal| decimal.digits.len() - 1).max().unwrap_or(0);
        let exponent = decimals.iter().flatten().map(Decimal::exponent_digits).max().unwrap_or(0);
        let text = |decimal: &Decimal| {
            let (first, rest) = decimal.digits.split_at(1);
            format!("{}{first}.{rest:0<fraction$}{}", decimal.sign, decimal.exponent(exponent))
        };
        decimals.iter().map(|decimal| decimal.as_ref().map(text)).collect()
    } else {
        let positional = |decimal: &Option<Decimal>| decimal.as_ref().map(|decimal| decimal.positional(PRECISION));
        let parts: Vec<Option<(String, String)>> = decimals.iter().map(positional).collect();
        let fraction = parts.iter().flatten().map(|(_, fraction)| fraction.len()).max().unwrap_or(0);
        let text = |(whole, rest): &(String, String)| format!("{whole}.{rest:<fraction$}");
        parts.iter().map(|parts| parts.as_ref().map(text)).collect()
    };
    let texts = texts.into_iter().zip(elements);
    aligned(texts.map(|(text, x)| text.unwrap_or_else(|| not_finite(*x).to_owned())).collect(), 0)
}

/// An array in brackets, behind an indent that is not written before its first line.
fn array(
    shape: &[usize],
    edge: usize,
    indent: usize,
    width: usize,
    texts: &mut impl Iterator<Item = String>,
) -> String {
    let Some((&size, inner)) = shape.split_first() else { return texts.next().unwrap_or_default() };
    let (mut text, mut line) = (String::from("["), indent);
    for (place, index) in shown(size, edge).enumerate() {
        if place > 0 && !inner.is_empty() {
            // A blank line more for each axis that lies between.
            text += &"\n".repeat(inner.len());
            text += &" ".repeat(indent);
        }
        let word = match index {
            Some(_) => array(inner, edge, indent + 1, width - 1, texts),
            None => "...".to_owned(),
        };
        if inner.is_empty() {
            let space = usize::from(place > 0);
            if place > 0 && line + space + word.len() > width.saturating_sub(1) {
                text.push('\n');
                text += &" ".repeat(indent);
                line = indent;
            } else {
                text += &" ".repeat(space);
                line += space;
            }
            line += word.len();
        }
        text += &word;
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Device;
    use crate::dtype::{F8E4M3FNUZ, bf16};

    #[test]
    fn values_print_as_numpy_prints_them() {
        let mut cases = 0;
        // Each line: dtype, shape, `arange` or elements, and what `str` of NumPy 2.4.6 gives.
        for line in include_str!("numpy.txt").lines() {
            let [dtype, shape, elements, want] = line.split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let shape: Vec<usize> = shape.split_whitespace().map(|size| size.parse().unwrap()).collect();
            let elements: Vec<f64> = match elements {
                "arange" => (0..shape.iter().product()).map(|i: usize| i as f64).collect(),
                list => list.split_whitespace().map(|element| element.parse().unwrap()).collect(),
            };
            let got = dispatch!(dtype.parse::<DType>().unwrap(), T => {
                let elements: Vec<_> = elements.iter().map(|x| T::from_f64(*x)).collect();
                Tensor::from_slice(&elements, &shape).unwrap().to_string()
            });
            assert_eq!(got, want.replace("\\n", "\n"), "{line}");
            cases += 1;
        }
        assert!(cases > 60, "{cases}");
    }

    #[test]
    fn other_dtypes_print_alike() {
        let cube = Tensor::arange(0, 8, 1).unwrap().reshape([2, 2, 2]).unwrap();
        assert_eq!(cube.to_string(), "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]");
        let halves = [0.1f32, 3.0, -1.5].map(bf16::from_f32);
        assert_eq!(Tensor::from_slice(&halves, [3]).unwrap().to_string(), "[ 0.1  3.  -1.5]");
        assert_eq!(Tensor::scalar(bf16::from_f32(0.5)).unwrap().to_string(), "0.5");
        assert_eq!(Tensor::scalar(F8E4M3FNUZ::NAN).unwrap().to_string(), "nan");
        assert_eq!(Tensor::zeros(DType::I8, [0], &Device::cpu()).unwrap().to_string(), "<int8 [0]>");
        assert_eq!(Tensor::zeros(DType::I8, [2, 0], &Device::cpu()).unwrap().to_string(), "<int8 [2, 0]>");
    }

    #[test]
    fn large_tensors_are_abbreviated() {
        let x = Tensor::arange(0i64, 10_000, 1).unwrap();
        assert_eq!(x.to_string(), "[   0    1    2 ... 9997 9998 9999]");
        let broadcast = Tensor::scalar(1u8).unwrap().broadcast_to([1 << 20, 1 << 20]).unwrap();
        assert_eq!(broadcast.to_string().lines().count(), 7);
    }

    #[test]
    fn debug_has_the_layout() {
        let x = Tensor::arange(0u8, 4, 1).unwrap().reshape([2, 2]).unwrap().transpose(0, 1).unwrap();
        assert_eq!(format!("{x:?}"), "Tensor(uint8 [2, 2] on cpu:0, strides [1, 2])\n[[0 2]\n [1 3]]");
    }
}
