//! Convolutions.

use max::kernel::ParamArg;

use crate::case::{Case, Problem, elements};
use crate::number::{Num, Values, Want};
use crate::random::Rng;

/// By the definition: each output element is the sum over taps and channels of what the tap meets, if that is inside.
fn conv(p: &Problem) -> Vec<Vec<Want>> {
    let sizes = |operand: usize| p.dims(operand).to_vec();
    let (y, x, w) = (sizes(0), sizes(1), sizes(2));
    let (image, filter) = (p.floats(1), p.floats(2));
    let int = |name: &str| p.number(name) as i64;
    let [groups, depth, depth_out, height_out] = ["groups", "depth", "depth_out", "height_out"].map(int);
    let (stride, dilation) = ([int("stride_depth"), int("stride_height"), x[2]], ["depth", "height", "width"]);
    let dilation = dilation.map(|axis| int(&format!("dilation_{axis}")));
    let before = [int("padding_depth"), int("padding_height"), int("lead") * x[2] - int("offset")];
    let batch = x[0] / (depth * groups);
    let taps = w[0] / groups;
    // An element of the image by its own coordinates; columns stand by their phase.
    let pixel = |n: i64, z: i64, row: i64, column: i64, channel: i64| {
        let inside = (0..depth).contains(&z) && (0..x[1]).contains(&row) && (0..x[2] * x[3]).contains(&column);
        let at = (((n * depth + z) * x[1] + row) * x[2] + column % x[2]) * x[3] + column / x[2];
        if inside && n * depth + z < x[0] { image[(at * x[4] + channel) as usize] } else { 0.0 }
    };
    let mut all = Vec::new();
    for i in 0..y[0] {
        let (n, z, row) = (i / height_out / depth_out, i / height_out % depth_out, i % height_out);
        let group = if batch == 0 { 0 } else { n / batch };
        for column in 0..y[1] {
            for feature in 0..y[2] {
                let (mut value, mut magnitude, mut terms) = (0.0, 0.0, 0.0);
                for tap in 0..taps * w[1] * w[2] {
                    let at = [tap / w[2] / w[1], tap / w[2] % w[1], tap % w[2]];
                    let place = |axis: usize, out: i64| out * stride[axis] + at[axis] * dilation[axis] - before[axis];
                    let (z, row, column) = (place(0, z), place(1, row), place(2, column));
                    if group * taps + at[0] >= w[0] {
                        continue;
                    }
                    for channel in 0..x[4] {
                        let of = ((group * taps + at[0]) * w[1] + at[1]) * w[2] + at[2];
                        let weight = filter[((of * w[3] + channel) * w[4] + feature) as usize];
                        let product = pixel(n, z, row, column, channel) * weight;
                        value += product;
                        magnitude += product.abs();
                        terms += 1.0;
                    }
                }
                all.push(Want { value: Num::Float(value), scale: magnitude * (2.0 + terms / 16.0) });
            }
        }
    }
    vec![all]
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::program(
            "conv",
            |s| {
                let (phases, rows, taps) = (s[4] % 3 + 1, s[0] % 5, s[4] % 2 + 1);
                let (image, filter) = (vec![4, rows, phases, s[1], s[2]], vec![2, taps, 3, s[2], s[3]]);
                vec![vec![s[0] % 9, s[1], s[3]], image, filter]
            },
            conv,
        )
        .reduces()
        .ulps(1.0)
        .work(|shapes| elements(&shapes[0]) * elements(&shapes[2]) / shapes[2][4].max(1) + elements(&shapes[1]))
        .values(&[Values::Within(-2.0, 2.0)])
        .params(|rng: &mut Rng| {
            let mut one =
                |name, least: usize, most: usize| (name, ParamArg::Int((least + rng.below(most - least + 1)) as i64));
            vec![
                one("groups", 1, 2),
                one("depth", 1, 2),
                one("depth_out", 1, 2),
                one("height_out", 1, 3),
                one("stride_depth", 1, 2),
                one("stride_height", 1, 2),
                one("dilation_depth", 1, 2),
                one("dilation_height", 1, 2),
                one("dilation_width", 1, 3),
                one("padding_depth", 0, 1),
                one("padding_height", 0, 1),
                one("lead", 0, 2),
                one("offset", 0, 3),
            ]
        }),
    ]
}
