//! Convolutions.

use max::kernel::prelude::*;

/// A convolution of volumes, as matrix products of the rows of an image with the taps of a filter: an output row is the
/// sum, over all taps, of the input row that the tap meets, shifted, times the tap's matrix of channels. Nothing is
/// unfolded in memory, and what lies outside the image reads as 0.
///
/// `x` is `[groups · batch · depth, height, phase, width / stride, channels]`, where the columns of an input row stand by
/// their phase: column `c` at `[c % stride, c / stride]`, so that the columns which one tap meets are neighbours. `w` is
/// `[groups · taps in depth, taps in height, taps in width, channels, features]`, and `y`
/// `[groups · batch · depth_out · height_out, width_out, features]`. Strides, dilations and paddings are those of depth
/// and height, and along the width `dilation` and how many columns, divided by the stride, stand before the first one:
/// `lead`, rounded up, which is `offset` columns too many.
#[kernel(
    op = "conv",
    dtypes(T = [f16, bf16, f32]),
    tile(BM = 64, BN = 64, BK = 256, when(w.dim(4) <= 16, BM = 128, BN = 16), v2(BM = 4, BN = 16, BK = 64), gpu(BM = 64, BN = 64, BK = 32))
)]
#[allow(clippy::too_many_arguments, reason = "three axes have a stride, a dilation and a padding each")]
pub fn conv<T: Float>(
    y: Out<T, 3>,
    x: In<T, 5>,
    w: In<T, 5>,
    #[param] groups: i64,
    #[param] depth: i64,
    #[param] depth_out: i64,
    #[param] height_out: i64,
    #[param] stride_depth: i64,
    #[param] stride_height: i64,
    #[param] dilation_depth: i64,
    #[param] dilation_height: i64,
    #[param] dilation_width: i64,
    #[param] padding_depth: i64,
    #[param] padding_height: i64,
    #[param] lead: i64,
    #[param] offset: i64,
) {
    // Neighbouring programs read the same taps.
    let [n, i, m] = program_id();
    let row = i % height_out;
    let plane = i / height_out;
    let image = plane / depth_out;
    let group = image / (x.dim(0) / depth / groups);
    let taps = w.dim(0) / groups;
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for q in range(0, taps, 1) {
        let z = plane % depth_out * stride_depth + q * dilation_depth - padding_depth;
        let volume = x.select(if z >= 0 && z < depth { image * depth + z } else { -1 });
        let filter = w.select(group * taps + q);
        for r in range(0, w.dim(1), 1) {
            let line = volume.select(row * stride_height + r * dilation_height - padding_height);
            let tap_row = filter.select(r);
            for s in range(0, w.dim(2), 1) {
                let from = s * dilation_width + offset;
                let columns = line.select(from % x.dim(2));
                let first = m * BM + from / x.dim(2) - lead;
                let tap = tap_row.select(s);
                for k in range(0, x.dim(4), BK) {
                    acc = dot(columns.tile::<BM, BK>(first, k), tap.tile::<BK, BN>(k, n), acc);
                }
            }
        }
    }
    y.select(i).tile::<BM, BN>(m, n).write(acc.cast());
}
