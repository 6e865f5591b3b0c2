//! Blocks put together to an image.

use max::kernel::prelude::*;

/// The sum, at each pixel of an image `[height, width]`, of the elements of all blocks that lie on it. `x` is
/// `[images, taps, blocks]`: block `b` begins at row `b / across * stride_height - padding_height`, column
/// `b % across * stride_width - padding_width`, and its taps are `taps_width` in a row, `dilation` pixels apart.
#[kernel(op = "fold")]
#[allow(clippy::too_many_arguments, reason = "two axes have a stride, a dilation and a padding each")]
pub fn fold<T: Float>(
    y: Out<T, 3>,
    x: In<T, 3>,
    #[param] taps_width: i64,
    #[param] across: i64,
    #[param] stride_height: i64,
    #[param] stride_width: i64,
    #[param] dilation_height: i64,
    #[param] dilation_width: i64,
    #[param] padding_height: i64,
    #[param] padding_width: i64,
) {
    let [image, row] = program_id();
    let x = x.select(image);
    let taps = x.dim(0);
    let down = x.dim(1) / across;
    y.select(image).row(row).write(lanes(y.dim(2)).map(|column| {
        let mut sum = T::ZERO;
        for tap in 0..taps {
            let top = row + padding_height - tap / taps_width * dilation_height;
            let side = column + padding_width - tap % taps_width * dilation_width;
            let (i, j) = (top / stride_height, side / stride_width);
            let meets =
                top >= 0 && side >= 0 && top % stride_height == 0 && side % stride_width == 0 && i < down && j < across;
            sum += if meets { x.at(tap, i * across + j) } else { T::ZERO };
        }
        sum
    }));
}
