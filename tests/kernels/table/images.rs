//! Kernels of images: other sizes, and images put together from blocks.

use max::dtype::DType;
use max::kernel::ParamArg;

use crate::case::{Case, Problem};
use crate::number::{Num, Values, Want};

/// Images `[height, width]` of any size from others; a height or width of 0 gives zeros.
fn images(s: &[i64]) -> Vec<Vec<i64>> {
    vec![vec![s[3] % 3, s[0], s[1]], vec![s[3] % 3, s[2], s[4]]]
}

/// The pixels that a pixel of the result is made of, along one axis, with their weights.
type Taps = fn(i: usize, from: usize, to: usize) -> Vec<(usize, f64)>;

/// Where the middle of pixel `i` lies: the pixel at or before it, and how far it is past that.
fn place(i: usize, from: usize, to: usize) -> (i64, f64) {
    let numerator = (2 * i as i64 + 1) * from as i64 - to as i64;
    let whole = numerator.div_euclid(2 * to as i64);
    (whole, (numerator - whole * 2 * to as i64) as f64 / (2 * to) as f64)
}

fn clamped(taps: impl IntoIterator<Item = (i64, f64)>, from: usize) -> Vec<(usize, f64)> {
    taps.into_iter().map(|(at, weight)| (at.clamp(0, from as i64 - 1) as usize, weight)).collect()
}

fn nearest(i: usize, from: usize, to: usize) -> Vec<(usize, f64)> {
    let (at, past) = place(i, from, to);
    clamped([(if past > 0.5 { at + 1 } else { at }, 1.0)], from)
}

fn linear(i: usize, from: usize, to: usize) -> Vec<(usize, f64)> {
    let (at, past) = place(i, from, to);
    clamped([(at, 1.0 - past), (at + 1, past)], from)
}

fn cubic(i: usize, from: usize, to: usize) -> Vec<(usize, f64)> {
    let (at, past) = place(i, from, to);
    let a = -0.75;
    let weight = |d: f64| match d.abs() {
        d if d <= 1.0 => (a + 2.0) * d.powi(3) - (a + 3.0) * d * d + 1.0,
        d => a * d.powi(3) - 5.0 * a * d * d + 8.0 * a * d - 4.0 * a,
    };
    clamped((-1..=2).map(|k| (at + k, weight(past - k as f64))), from)
}

fn resized(p: &Problem, taps: Taps) -> Vec<Vec<Want>> {
    let [count, to @ ..] = p.dims(0) else { panic!("images have rank 3") };
    let [to, from] = [to, &p.dims(1)[1..]].map(|d| [d[0] as usize, d[1] as usize]);
    let exact = p.operands[1].dtype != DType::F16 && !p.operands[1].dtype.is_float();
    let mut all = Vec::new();
    for at in 0..*count as usize * to[0] * to[1] {
        let (image, i, j) = (at / to[1] / to[0], at / to[1] % to[0], at % to[1]);
        if from.contains(&0) {
            all.push(Want::exact(if exact { Num::Int(0) } else { Num::Float(0.0) }));
            continue;
        }
        let pixel = |r: usize, c: usize| p.values[1][(image * from[0] + r) * from[1] + c];
        let (rows, columns) = (taps(i, from[0], to[0]), taps(j, from[1], to[1]));
        if let ([(r, _)], [(c, _)]) = (&rows[..], &columns[..]) {
            all.push(Want::exact(pixel(*r, *c)));
            continue;
        }
        let terms = || rows.iter().flat_map(|(r, v)| columns.iter().map(move |(c, w)| pixel(*r, *c).float() * v * w));
        let around = || rows.iter().flat_map(|(r, _)| columns.iter().map(move |(c, _)| pixel(*r, *c).float().abs()));
        // `Iterator::sum` starts at -0.
        let value = Num::Float(terms().fold(0.0, |a, v| a + v));
        all.push(Want { value, scale: around().fold(0.0, f64::max) * 64.0 });
    }
    vec![all]
}

fn fold(p: &Problem) -> Vec<Vec<Want>> {
    let [count, height, width] = p.dims(0) else { panic!("images have rank 3") };
    let [taps, blocks] = [p.dims(1)[1], p.dims(1)[2]];
    let number = |name: &str| p.number(name) as i64;
    let across = number("across");
    let mut sums = vec![(0.0, 0.0); (count * height * width) as usize];
    for at in 0..count * taps * (blocks / across * across) {
        let used = blocks / across * across;
        let (image, tap, block) = (at / used / taps, at / used % taps, at % used);
        let row = block / across * number("stride_height") - number("padding_height")
            + tap / number("taps_width") * number("dilation_height");
        let column = block % across * number("stride_width") - number("padding_width")
            + tap % number("taps_width") * number("dilation_width");
        if (0..*height).contains(&row) && (0..*width).contains(&column) {
            let value = p.values[1][((image * taps + tap) * blocks + block) as usize].float();
            let sum = &mut sums[((image * height + row) * width + column) as usize];
            *sum = (sum.0 + value, sum.1 + value.abs() * taps as f64);
        }
    }
    vec![sums.into_iter().map(|(value, scale)| Want { value: Num::Float(value), scale }).collect()]
}

pub fn cases() -> Vec<Case> {
    let near = [Values::Within(-2.0, 2.0)];
    vec![
        Case::program("resize_nearest", images, |p| resized(p, nearest)).values(&[Values::Any]),
        Case::program("resize_linear", images, |p| resized(p, linear)).reduces().ulps(1.0).values(&near),
        Case::program("resize_cubic", images, |p| resized(p, cubic)).reduces().ulps(1.0).values(&near),
        Case::program("fold", |s| vec![vec![s[3] % 3, s[0], s[1]], vec![s[3] % 3, s[2] % 9, s[4]]], fold)
            .reduces()
            .ulps(1.0)
            .values(&near)
            .work(|shapes| crate::case::elements(&shapes[0]) * shapes[1][1].max(1))
            .params(|rng| {
                let mut any = |name, numbers: &[i64]| (name, ParamArg::Int(rng.one_of(numbers)));
                vec![
                    any("taps_width", &[1, 2, 3]),
                    any("across", &[1, 3, 8]),
                    any("stride_height", &[1, 2]),
                    any("stride_width", &[1, 2, 3]),
                    any("dilation_height", &[1, 2]),
                    any("dilation_width", &[1, 3]),
                    any("padding_height", &[0, 1]),
                    any("padding_width", &[0, 2]),
                ]
            }),
    ]
}
