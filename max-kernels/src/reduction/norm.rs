//! Normalization of rows.

use max::kernel::prelude::*;

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` of each row (Ba, Kiros and Hinton, 2016).
#[kernel(op = "layer_norm")]
pub fn layer_norm<T: Float>(y: Out<T, 2>, x: In<T, 2>, gamma: In<T, 1>, beta: In<T, 1>, #[param] epsilon: f64) {
    let row = program_id(0);
    let x = x.row(row);
    let mean = x.mean();
    let variance = x.map(|v| (v - mean) * (v - mean)).mean();
    let scale = (variance + T::from_f64(epsilon)).rsqrt();
    y.row(row).write(x.zip(gamma).zip(beta).map(|((v, g), b)| (v - mean) * scale * g + b));
}

/// `x / sqrt(mean(x²) + epsilon) * weight` of each row (Zhang and Sennrich, 2019).
#[kernel(op = "rms_norm")]
pub fn rms_norm<T: Float>(y: Out<T, 2>, x: In<T, 2>, weight: In<T, 1>, #[param] epsilon: f64) {
    let row = program_id(0);
    let x = x.row(row);
    let mean = x.map(|v| v * v).mean();
    let scale = (mean + T::from_f64(epsilon)).rsqrt();
    y.row(row).write(x.zip(weight).map(|(v, w)| v * scale * w));
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` of each group of channels (Wu and He, 2018). A row holds the
/// channels of one group, one after the other, and `groups` rows the channels that `gamma` and `beta` are of.
#[kernel(op = "group_norm")]
pub fn group_norm<T: Float>(
    y: Out<T, 2>,
    x: In<T, 2>,
    gamma: In<T, 1>,
    beta: In<T, 1>,
    #[param] groups: i64,
    #[param] epsilon: f64,
) {
    let row = program_id(0);
    let x = x.row(row);
    let channels = gamma.dim(0) / groups;
    let first = row % groups * channels;
    let each = x.len() / channels;
    let gamma = gamma.slice(first, channels).repeat(each);
    let beta = beta.slice(first, channels).repeat(each);
    let mean = x.mean();
    let variance = x.map(|v| (v - mean) * (v - mean)).mean();
    let scale = (variance + T::from_f64(epsilon)).rsqrt();
    y.row(row).write(x.zip(gamma).zip(beta).map(|((v, g), b)| (v - mean) * scale * g + b));
}
