//! 8-bit floats with scales, by MAX's names, as part of [`kernels`](super).

use max_core::dtype::DType;
use max_core::graph::{GraphError, TensorType};

use crate::Result;
use crate::functional as f;
use crate::tensor::Tensor;

/// Whether a device of this process wants `float8_e4m3fnuz` in the place of `float8_e4m3fn`: some of AMD's do, which have no backend.
pub fn needs_fp8_fnuz_conversion() -> bool {
    false
}

/// A weight of `float8_e4m3fn` as `float8_e4m3fnuz` and its scale: each element has half the value, rounded nowhere, and the scale is
/// doubled.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::dtype::DType;
/// use max::nn::kernels::normalize_e4m3fn_to_e4m3fnuz;
/// use max::tensor::Tensor;
///
/// let weight = Tensor::constant([448.0f32, -0.0625])?.cast(DType::F8E4M3FN)?;
/// let (weight, scale) = normalize_e4m3fn_to_e4m3fnuz(&weight, &Tensor::constant([0.5f32])?)?;
/// assert_eq!(weight.cast(DType::F32)?.to_vec::<f32>()?, [224.0, -0.03125]);
/// assert_eq!(scale.to_vec::<f32>()?, [1.0]);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// When `weight` is of another dtype.
#[track_caller]
pub fn normalize_e4m3fn_to_e4m3fnuz(weight: &Tensor, weight_scale: &Tensor) -> Result<(Tensor, Tensor)> {
    if weight.dtype() != DType::F8E4M3FN {
        let op = "normalize_e4m3fn_to_e4m3fnuz";
        return Err(GraphError::argument(op, "weight", weight.ty(), "float8_e4m3fn"));
    }
    let half = f::mul(f::cast(weight, DType::F32)?, 0.5)?;
    Ok((f::cast(half, DType::F8E4M3FNUZ)?, f::mul(weight_scale, 2.0)?))
}

/// [`normalize_e4m3fn_to_e4m3fnuz`] where [it is needed](needs_fp8_fnuz_conversion); else both as they are.
///
/// # Errors
/// As [`normalize_e4m3fn_to_e4m3fnuz`].
#[track_caller]
pub fn convert_weights_to_fp8_fnuz_if_needed(weight: &Tensor, weight_scale: &Tensor) -> Result<(Tensor, Tensor)> {
    if needs_fp8_fnuz_conversion() && weight.dtype() == DType::F8E4M3FN {
        return normalize_e4m3fn_to_e4m3fnuz(weight, weight_scale);
    }
    Ok((weight.clone(), weight_scale.clone()))
}

/// `input · weightᵀ · input_scale · weight_scale` of 8-bit floats of one dtype, `[m, k]` and `[n, k]`, each with one scale: `bfloat16`,
/// `[m, n]`. Products are added in `float32`.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::dtype::DType;
/// use max::nn::kernels::matmul_static_scaled_float8;
/// use max::tensor::Tensor;
///
/// let x = Tensor::constant([[1.0f32, 2.0]])?.cast(DType::F8E4M3FN)?;
/// let weight = Tensor::constant([[3.0f32, 4.0], [0.5, 0.0]])?.cast(DType::F8E4M3FN)?;
/// let (of_x, of_weight) = (Tensor::constant([2.0f32])?, Tensor::constant([0.5f32])?);
/// let y = matmul_static_scaled_float8(&x, &weight, &of_x, &of_weight)?;
/// assert_eq!(y.cast(DType::F32)?.to_vec::<f32>()?, [11.0, 0.5]);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// When the types do not fit.
#[track_caller]
pub fn matmul_static_scaled_float8(
    input: &Tensor,
    weight: &Tensor,
    input_scale: &Tensor,
    weight_scale: &Tensor,
) -> Result<Tensor> {
    const OP: &str = "matmul_static_scaled_float8";
    let (x_shape, w_shape) = (input.shape(), weight.shape());
    let ([m, k], [n, depth]) = (x_shape.dims(), w_shape.dims()) else {
        return Err(GraphError::argument(OP, "weight", weight.ty(), format!("a matrix, beside {}", input.ty())));
    };
    if k != depth || input.dtype() != weight.dtype() {
        let expected = format!("of the dtype and the last dim of {}", input.ty());
        return Err(GraphError::argument(OP, "weight", weight.ty(), expected));
    }
    let scale = |scale: &Tensor| f::cast(f::reshape(scale, [1])?, DType::F32);
    let (of_input, of_weight) = (scale(input_scale)?, scale(weight_scale)?);
    let ty = TensorType::new(DType::BF16, [m.clone(), n.clone()], input.device());
    let results = f::custom(OP, ty.device, [input, weight, &of_input, &of_weight], &ty, ())?;
    results.into_iter().next().ok_or_else(|| GraphError::argument(OP, "results", 0, "one"))
}
