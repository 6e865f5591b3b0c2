//! Images in other sizes. The middle of a pixel of the result lies where it lies in the image, both scaled to the same
//! size; past the border the image continues with its last pixels.

use max::kernel::prelude::*;

/// Twice `to` times the place, in pixels of an axis of `from`, of the middle of pixel `i` of an axis of `to`.
#[kernel]
pub fn place(i: i64, from: i64, to: i64) -> i64 {
    (2 * i + 1) * from - to
}

/// The pixel at or before that place.
#[kernel]
pub fn pixel(place: i64, to: i64) -> i64 {
    // A division rounds toward 0.
    (place + 2 * to) / (2 * to) - 1
}

/// How far the place is past it, from 0 to 1.
#[kernel]
pub fn past(place: i64, to: i64) -> f32 {
    (place - pixel(place, to) * 2 * to) as f32 / (2 * to) as f32
}

/// The nearest pixel; of two, the first.
#[kernel]
pub fn nearest(i: i64, from: i64, to: i64) -> i64 {
    let at = place(i, from, to) - to;
    if at > 0 { ((at + 2 * to - 1) / (2 * to)).min(from - 1) } else { 0 }
}

/// The weight of a pixel at distance `d`, from 0 to 2: the cubic convolution kernel (Keys, 1981) with a slope of -3/4.
#[kernel]
pub fn cubic(d: f32) -> f32 {
    if d <= 1.0 { (1.25 * d - 2.25) * d * d + 1.0 } else { ((-0.75 * d + 3.75) * d - 6.0) * d + 3.0 }
}

/// The pixel at `i`, or the last one before.
#[kernel]
pub fn pixel_of<T: Float>(row: In<T, 1>, i: i64) -> f32 {
    row.at(i.max(0).min(row.len() - 1)) as f32
}

/// Between two pixels, `d` past pixel `i`.
#[kernel]
pub fn linear_of<T: Float>(row: In<T, 1>, i: i64, d: f32) -> f32 {
    let a = pixel_of(row, i);
    (pixel_of(row, i + 1) - a) * d + a
}

/// Between four pixels, `d` past pixel `i`.
#[kernel]
pub fn cubic_of<T: Float>(row: In<T, 1>, i: i64, d: f32) -> f32 {
    pixel_of(row, i - 1) * cubic(d + 1.0)
        + pixel_of(row, i) * cubic(d)
        + pixel_of(row, i + 1) * cubic(1.0 - d)
        + pixel_of(row, i + 2) * cubic(2.0 - d)
}

/// Row `i` of an image, or the last one before.
#[kernel]
pub fn line<T: Any>(x: In<T, 2>, i: i64) -> i64 {
    i.max(0).min(x.dim(0) - 1)
}

/// Each image `[height, width]` in another size: the nearest pixels.
#[kernel(op = "resize_nearest")]
pub fn resize_nearest<T: Any>(y: Out<T, 3>, x: In<T, 3>) {
    let [image, row] = program_id();
    let (height, width) = (y.dim(1), y.dim(2));
    let x = x.select(image);
    let line = x.row(nearest(row as i64, x.dim(0), height));
    let from = line.len();
    y.select(image).row(row).write(lanes(width).map(|j| line.at(nearest(j, from, width))));
}

/// Each image `[height, width]` in another size: between the two nearest rows, and in each between two pixels.
#[kernel(op = "resize_linear", dtypes(T = [f16, bf16, f32]))]
pub fn resize_linear<T: Float>(y: Out<T, 3>, x: In<T, 3>) {
    let [image, row] = program_id();
    let (height, width) = (y.dim(1), y.dim(2));
    let x = x.select(image);
    let from = x.dim(1);
    let at = place(row as i64, x.dim(0), height);
    let i = pixel(at, height);
    let d = past(at, height);
    let a = x.row(line(x, i));
    let b = x.row(line(x, i + 1));
    y.select(image).row(row).write(lanes(width).map(|j| {
        let at = place(j, from, width);
        let (k, e) = (pixel(at, width), past(at, width));
        let above = linear_of(a, k, e);
        ((linear_of(b, k, e) - above) * d + above) as T
    }));
}

/// Each image `[height, width]` in another size: by cubic convolution of four rows, and in each of four pixels.
#[kernel(op = "resize_cubic", dtypes(T = [f16, bf16, f32]))]
pub fn resize_cubic<T: Float>(y: Out<T, 3>, x: In<T, 3>) {
    let [image, row] = program_id();
    let (height, width) = (y.dim(1), y.dim(2));
    let x = x.select(image);
    let from = x.dim(1);
    let at = place(row as i64, x.dim(0), height);
    let i = pixel(at, height);
    let d = past(at, height);
    let (w0, w1, w2, w3) = (cubic(d + 1.0), cubic(d), cubic(1.0 - d), cubic(2.0 - d));
    let r0 = x.row(line(x, i - 1));
    let r1 = x.row(line(x, i));
    let r2 = x.row(line(x, i + 1));
    let r3 = x.row(line(x, i + 2));
    y.select(image).row(row).write(lanes(width).map(|j| {
        let at = place(j, from, width);
        let (k, e) = (pixel(at, width), past(at, width));
        let v = cubic_of(r0, k, e) * w0 + cubic_of(r1, k, e) * w1 + cubic_of(r2, k, e) * w2 + cubic_of(r3, k, e) * w3;
        v as T
    }));
}
