//! Random numbers: functions of a seed, which is a value of the graph, and of an element's index.
//!
//! The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3, SC 2011),
//! with the seed as its key and the element's index, in row-major order, as its counter. So the numbers do not depend on
//! threads, devices or other ops: [`uniform`] gives the same bits everywhere, [`gaussian`] wherever math functions do.
//! Shapes of as many elements have the same numbers, and those of fewer begin with them.
//!
//! **Two ops with one seed give the same numbers.** For several draws in a graph, derive seeds, `&seed + 1` as well as any:
//! there is no relation between the numbers of two seeds. A model that is executed again draws again if its seed is an
//! input that changes; it need not be loaded again.
//!
//! ```
//! # use max_core::{driver::DeviceRef, dtype::DType, graph::{Graph, TensorType, ops}};
//! let seed = TensorType::new(DType::I64, (), DeviceRef::CPU);
//! let graph = Graph::new("noise", [seed]);
//! let seed = graph.inputs()[0].tensor()?;
//! let ty = TensorType::new(DType::F32, (2, 3), DeviceRef::CPU);
//! let noise = ops::random::gaussian(seed, &ty, 0.0, 0.1)?;
//! let other = ops::random::uniform(ops::add(seed, 1)?, &ty, -1.0..1.0)?;
//! assert_eq!(other.ty(), noise.ty());
//! # Ok::<(), max_core::graph::GraphError>(())
//! ```

use std::borrow::Borrow;
use std::ops::Range;

use crate::dtype::{DType, bf16, f16};
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::GraphErrorKind;
use crate::graph::ops::movement::views::reshape_at;
use crate::graph::parameters::Parameters;
use crate::graph::symbolic::shape::Shape;
use crate::graph::types::TensorType;
use crate::graph::value::{Operand, TensorValue};

/// Numbers from `range.start` up to `range.end`, without that, each as likely: of 24 random bits, of 53 for `f64`.
///
/// No number is `range.end`, nor that rounded to the dtype: what would be rounded to it is the number before.
///
/// # Errors
/// When the dtype of `ty` is no float; when the seed is no `int64` scalar on the device of `ty`; when `range` or its width is not
/// finite in the dtype, or none of the dtype's numbers lies in it; when a dim of `ty` has a symbol that nothing in the graph gives a size.
#[track_caller]
pub fn uniform(seed: impl Into<Operand>, ty: impl Borrow<TensorType>, range: Range<f64>) -> Result<TensorValue> {
    let draw = Draw::new(Site::new("random.uniform"), seed, ty)?;
    let Range { start, end } = range;
    let dtype = draw.ty.dtype;
    // The first number of the dtype that is not below the range, and the last one below its end.
    let (low, high) = (rounded(dtype, start), rounded(dtype, end));
    let low = if low < start { -below(dtype, -low) } else { low };
    let last = below(dtype, high);
    let width = computed(dtype, high - low);
    if !(low.is_finite() && high.is_finite() && width.is_finite() && low <= last) {
        let expected = format!("finite, of a finite width, and hold a number of {dtype}");
        return draw.site.argument(&[&draw.seed], "range", format!("{start:?}..{end:?}"), expected);
    }
    draw.with("random_uniform", [("low", low), ("width", width), ("last", last)].into())
}

/// [`uniform`], of the shape, the dtype and the device of `like`.
///
/// # Errors
/// As [`uniform`].
#[track_caller]
pub fn uniform_like(seed: impl Into<Operand>, like: &TensorValue, range: Range<f64>) -> Result<TensorValue> {
    uniform(seed, like.ty(), range)
}

/// Normally distributed numbers of a mean and a standard deviation, by the transform of Box and Muller (A note on the generation of
/// random normal deviates, 1958). None is further from the mean than 6.7 deviations, of `f64` 8.6.
///
/// # Errors
/// When the dtype of `ty` is no float; when the seed is no `int64` scalar on the device of `ty`; when `mean` or `std` is not finite in the
/// dtype, or `std` is not positive; when a dim of `ty` has a symbol that nothing in the graph gives a size.
#[track_caller]
pub fn gaussian(seed: impl Into<Operand>, ty: impl Borrow<TensorType>, mean: f64, std: f64) -> Result<TensorValue> {
    let draw = Draw::new(Site::new("random.gaussian"), seed, ty)?;
    let dtype = draw.ty.dtype;
    if !rounded(dtype, mean).is_finite() {
        return draw.site.argument(&[&draw.seed], "mean", mean, format!("finite in {dtype}"));
    }
    let deviation = computed(dtype, std);
    if !(deviation > 0.0 && deviation.is_finite()) {
        return draw.site.argument(&[&draw.seed], "std", std, format!("positive and finite in {dtype}"));
    }
    draw.with("random_gaussian", [("mean", mean), ("std", std)].into())
}

/// [`gaussian`], of the shape, the dtype and the device of `like`.
///
/// # Errors
/// As [`gaussian`].
#[track_caller]
pub fn gaussian_like(seed: impl Into<Operand>, like: &TensorValue, mean: f64, std: f64) -> Result<TensorValue> {
    gaussian(seed, like.ty(), mean, std)
}

pub use {gaussian as normal, gaussian_like as normal_like};

/// An op that draws: its seed, and the type of its result.
struct Draw {
    site: Site,
    seed: TensorValue,
    ty: TensorType,
}

impl Draw {
    fn new(site: Site, seed: impl Into<Operand>, ty: impl Borrow<TensorType>) -> Result<Draw> {
        let seed = site.tensor("the seed", seed)?;
        let ty = ty.borrow().clone();
        if !ty.dtype.is_float() || ty.dtype.is_float8() {
            let allowed = "float16, bfloat16, float32 and float64";
            let kind = GraphErrorKind::UnsupportedDType { what: "the result", dtype: ty.dtype, allowed };
            return site.fail(&[&seed], kind);
        }
        if seed.dtype() != DType::I64 || seed.rank() != 0 {
            let expected = TensorType::new(DType::I64, (), seed.device()).into();
            let actual = seed.ty.clone().into();
            let kind = GraphErrorKind::TypeMismatch {
                what: "the seed",
                actual: Box::new(actual),
                expected: Box::new(expected),
            };
            return site.fail(&[&seed], kind);
        }
        if seed.device() != ty.device {
            let kind = GraphErrorKind::OpDevice { what: "the seed", actual: seed.device(), device: ty.device };
            return site.fail(&[&seed], kind);
        }
        site.known_symbols(&seed.graph, &ty.shape).or_else(|kind| site.fail(&[&seed], kind))?;
        let ty = site.checked(&[&seed], ty)?;
        Ok(Draw { site, seed, ty })
    }

    /// The numbers, from a kernel that makes a vector.
    fn with(self, kernel: &'static str, parameters: Parameters) -> Result<TensorValue> {
        let Draw { site, seed, ty } = self;
        let seed = reshape_at(&site, &seed, Shape::from([1]))?;
        let flat = ty.with_shape(Shape::from([ty.shape.num_elements()]));
        let numbers = site.kernel(kernel, &[&seed], flat, parameters)?;
        reshape_at(&site, &numbers, ty.shape)
    }
}

/// The nearest number of a float dtype.
fn rounded(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::BF16 => bf16::from_f64(value).to_f64(),
        _ => computed(dtype, value),
    }
}

/// The nearest number of what a float dtype computes in.
fn computed(dtype: DType, value: f64) -> f64 {
    if dtype == DType::F64 { value } else { f64::from(value as f32) }
}

/// The next smaller number of a float dtype, from one of its numbers.
fn below(dtype: DType, value: f64) -> f64 {
    // Of a half type: bits are a sign and a magnitude.
    let lower = |bits: u16| match bits {
        0 | 0x8000 => 0x8001,
        0x8001.. => bits + 1,
        _ => bits - 1,
    };
    match dtype {
        DType::F16 => f16::from_bits(lower(f16::from_f64(value).to_bits())).to_f64(),
        DType::BF16 => bf16::from_bits(lower(bf16::from_f64(value).to_bits())).to_f64(),
        DType::F32 => f64::from((value as f32).next_down()),
        _ => value.next_down(),
    }
}
