//! Weights in blocks of small integers, as GGUF files have them: their elements, and products with them. The layouts of blocks are
//! those of [ggml](https://github.com/ggml-org/ggml).
//!
//! Activations are quantized too, however many rows there are: to blocks of 8 bits with a scale, of 32 elements for Q4_0 and Q8_0 and of
//! 256 for the others, which ggml calls Q8_1 and Q8_K. For few rows four products of integers are one `dot4`, and scales multiply sums;
//! many rows are multiplied as the numbers that these integers stand for.

use max::kernel::prelude::*;

/// Scale and minimum of group `j` of 8, of 6 bits each, which are packed in 12 bytes: those of the first four groups in the lower bits
/// of `scales` and `minima`; those of the last in `last`, four bits each, and in the upper two bits of the others.
#[kernel]
fn six_bits(scales: u32, minima: u32, last: u32, j: u32) -> (f32, f32) {
    let first = (j & 7) < 4;
    let shift = (j & 3) * 8;
    let scale = if first { scales } else { (last & 0x0f0f_0f0f) | (scales >> 2 & 0x3030_3030) };
    let minimum = if first { minima } else { (last >> 4 & 0x0f0f_0f0f) | (minima >> 2 & 0x3030_3030) };
    ((scale >> shift & 63) as i32 as f32, (minimum >> shift & 63) as i32 as f32)
}

/// Makes a kernel that quantizes rows to 8 bits: the integers of each block, `x / scale` rounded; the block's scale, its largest
/// magnitude divided by 127; of every 32 integers the sum, times the scale; and the numbers that the integers stand for. What is not
/// finite has a scale that is not.
macro_rules! quantize {
    ($name:ident $op:literal, $size:literal, $groups:literal) => {
        #[doc = concat!("Rows in blocks of ", $size, " integers of 8 bits with a scale; the scaled sums of every 32 integers; and all as numbers.")]
        #[kernel(op = $op)]
        pub fn $name(q: Out<u8, 2>, scales: Out<f32, 2>, sums: Out<f32, 2>, rounded: Out<f32, 2>, x: In<f32, 2>) {
            let [i, part] = program_id();
            let x = x.row(i).block::<$size>(part);
            let largest = x.fold_with(0.0, |m, v| v.abs().max(m)).max();
            let scale = largest * (1.0 / 127.0);
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            q.select(i).block::<$size>(part).write(x.map(|v| ((v * inverse).round_ties_even() as i32) as u8));
            rounded.select(i).block::<$size>(part).write(x.map(|v| (v * inverse).round_ties_even() * scale));
            scales.select(i).set(part, scale);
            let sum = x.chunks::<32>().fold_with(0.0, |sum, v| sum + (v * inverse).round_ties_even()).reduce(|a, b| a + b);
            sums.select(i).block::<$groups>(part).write(sum.map(|sum| sum * scale));
        }
    };
}

quantize!(quantize_q8_32 "quantize_q8_32", 32, 1);
quantize!(quantize_q8_256 "quantize_q8_256", 256, 8);

/// Makes two kernels of an encoding. `elements` are the lanes of some blocks of a row from block `first` on; `products` the sum of
/// products of a row with one of quantized activations, where what is the same for all of these comes first.
///
/// The activations are there twice: `q` are their integers of 8 bits, with `scales`, and `x` the numbers that these stand for; `sums` are
/// those of 32 elements, for weights that are integers less a constant. Which of the two a program reads depends on the number of rows:
/// the results differ by the rounding of `f32` alone.
macro_rules! quantized {
    (
        $name:literal, $per_block:literal elements in $bytes:literal bytes, gpu rows $rows:literal;
        dequantize = $dequantize:ident $dequantize_op:literal;
        qmatmul = $qmatmul:ident $qmatmul_op:literal;
        elements |$row:ident, $first:ident, $count:ident| $elements:expr;
        products |$weights:ident, $blocks:ident| { $($shared:tt)* } |$q:ident, $scales:ident $(, $sums:ident)?| $products:expr;
    ) => {
        #[doc = concat!("The elements of rows of ", $name, " blocks.")]
        #[kernel(op = $dequantize_op)]
        pub fn $dequantize(y: Out<f32, 2>, x: In<u8, 2>) {
            let i = program_id(0);
            let $row = x.row(i);
            let $count = $row.dim(0) / $bytes;
            let $first = 0;
            y.row(i).write($elements);
        }

        #[doc = concat!("`y = w · xᵀ` with the elements of rows of ", $name, " blocks, whose packed bytes are read once for few rows of `x`: these are read as integers, `q` with `scales`.")]
        #[kernel(
            op = $qmatmul_op,
            tile(
                BN = 64, BM = 192, BK = 512,
                when(x.dim(0) <= 1, BN = 16, BM = 1, BK = 256),
                when(x.dim(0) <= 8, BN = 16, BM = 8, BK = 256),
                v2(BN = 8, BM = 16, BK = 256),
                gpu(BN = $rows, BM = 64, BK = $per_block),
            )
        )]
        pub fn $qmatmul(
            y: Out<f32, 2>,
            w: In<u8, 2>,
            x: In<f32, 2>,
            $q: In<u8, 2>,
            $scales: In<f32, 2>,
            $($sums: In<f32, 2>,)?
        ) {
            let [n, m] = program_id();
            let begin = n * BN;
            // Where the tile has room for more, it is chosen for more.
            if BM <= 8 || (BM <= 64 && x.dim(0) <= 8) {
                let mut out = Tile::<f32, BN, BM>::zeros();
                let rows = (x.dim(0) - m * BM).min(BM);
                for i in 0..BN {
                    let $weights = w.row(begin + i);
                    let $blocks = $weights.dim(0) / $bytes;
                    $($shared)*
                    for j in 0..rows {
                        let $q = $q.row(m * BM + j);
                        let $scales = $scales.row(m * BM + j);
                        $(let $sums = $sums.row(m * BM + j);)?
                        let sum = $products;
                        out = out.map_indexed(|r, c, v| if r == i && c == j { sum } else { v });
                    }
                }
                y.tile::<BN, BM>(n, m).write(out);
            } else {
                let mut acc = Tile::<f32, BN, BM>::zeros();
                let $count = BK / $per_block;
                for k in range(0, x.dim(1), BK) {
                    let $first = k / $per_block;
                    let rows = Tile::<f32, BN, BK>::from_rows(|r| {
                        let $row = w.row(begin + r);
                        $elements
                    });
                    acc = dot(rows, x.tile::<BM, BK>(m, k).t(), acc);
                }
                y.tile::<BN, BM>(n, m).write(acc);
            }
        }
    };
}

quantized! {
    "Q4_0", 32 elements in 18 bytes, gpu rows 64;
    dequantize = dequantize_q4_0 "dequantize_q4_0";
    qmatmul = qmatmul_q4_0 "qmatmul_q4_0";
    elements |w, first, blocks| w
        .segments::<16>(first * 18 + 2, [(blocks, 18), (2, 0)])
        .zip(w.numbers::<f16>(first * 18, [(blocks, 18)]).repeat_each::<32>())
        .zip(lanes(blocks * 2).map(|half| (half % 2 * 4) as i32).repeat_each::<16>())
        .map(|((q, scale), shift)| (scale as f32) * ((((q as i32) >> shift & 15) - 8) as f32));
    products |w, blocks| {
        let factors = w.numbers::<f16>(0, [(blocks, 18)]).map(|d| d as f32).materialize();
        let shifts = lanes(blocks * 2).map(|half| (half % 2 * 4) as i32).repeat_each::<4>();
        let words = w.words::<4>(2, [(blocks, 18), (2, 0)]).zip(shifts).map(|(b, shift)| (b >> shift) & 0x0f0f_0f0f);
    } |q, scales, sums| {
        let scale = factors.zip(scales).map(|(d, scale)| d * scale).repeat_each::<8>();
        let products = words.dot4(q.words::<8>(0, [(blocks, 32)])).zip(scale);
        let products = products.fold_with(0.0, |sum, (dot, scale)| scale.mul_add(dot as f32, sum)).sum();
        // The weights are the integers less 8.
        products - 8.0 * factors.zip(sums).fold_with(0.0, |sum, (d, x)| d.mul_add(x, sum)).sum()
    };
}

quantized! {
    "Q8_0", 32 elements in 34 bytes, gpu rows 64;
    dequantize = dequantize_q8_0 "dequantize_q8_0";
    qmatmul = qmatmul_q8_0 "qmatmul_q8_0";
    elements |w, first, blocks| w
        .segments::<32>(first * 34 + 2, [(blocks, 34)])
        .zip(w.numbers::<f16>(first * 34, [(blocks, 34)]).repeat_each::<32>())
        .map(|(q, scale)| (scale as f32) * ((q as i8) as f32));
    products |w, blocks| {
        let factors = w.numbers::<f16>(0, [(blocks, 34)]).map(|d| d as f32).materialize();
        let words = w.words::<8>(2, [(blocks, 34)]);
        // A signed byte is its low 7 bits, less 128 if it is negative.
        let negative = words.map(|b| (b >> 7) & 0x0101_0101);
    } |q, scales| {
        let x = q.words::<8>(0, [(blocks, 32)]);
        let scale = factors.zip(scales).map(|(d, scale)| d * scale).repeat_each::<8>();
        words
            .dot4(x)
            .zip(negative.dot4(x))
            .zip(scale)
            .fold_with(0.0, |sum, ((low, negative), scale)| scale.mul_add((low - (negative << 7)) as f32, sum))
            .sum()
    };
}

quantized! {
    "Q4_K", 256 elements in 144 bytes, gpu rows 16;
    dequantize = dequantize_q4_k "dequantize_q4_k";
    qmatmul = qmatmul_q4_k "qmatmul_q4_k";
    elements |w, first, blocks| w
        .segments::<32>(first * 144 + 16, [(blocks, 144), (4, 32), (2, 0)])
        .zip(
            w.numbers::<f16>(first * 144, [(blocks, 144), (8, 0)])
                .zip(w.numbers::<f16>(first * 144 + 2, [(blocks, 144), (8, 0)]))
                .zip(w.numbers::<u32>(first * 144 + 4, [(blocks, 144), (8, 0)]))
                .zip(w.numbers::<u32>(first * 144 + 8, [(blocks, 144), (8, 0)]))
                .zip(w.numbers::<u32>(first * 144 + 12, [(blocks, 144), (8, 0)]))
                .enumerate()
                .map(|(((((d, least), a), b), c), j)| {
                    let (scale, minimum) = six_bits(a, b, c, j as u32);
                    ((d as f32) * scale, (least as f32) * minimum, (j % 2 * 4) as i32)
                })
                .repeat_each::<32>(),
        )
        .map(|(q, (scale, minimum, shift))| scale * (((q as i32) >> shift & 15) as f32) - minimum);
    products |w, blocks| {
        let heads = w
            .numbers::<u32>(4, [(blocks, 144)])
            .zip(w.numbers::<u32>(8, [(blocks, 144)]))
            .zip(w.numbers::<u32>(12, [(blocks, 144)]));
        let factors = heads
            .zip(w.numbers::<f16>(0, [(blocks, 144)]))
            .repeat_each::<8>()
            .enumerate()
            .map(|((((a, b), c), d), j)| {
                let (scale, _minimum) = six_bits(a, b, c, j as u32);
                (d as f32) * scale
            })
            .materialize();
        let minima = heads
            .zip(w.numbers::<f16>(2, [(blocks, 144)]))
            .repeat_each::<8>()
            .enumerate()
            .map(|((((a, b), c), least), j)| {
                let (_scale, minimum) = six_bits(a, b, c, j as u32);
                (least as f32) * minimum
            })
            .materialize();
        let shifts = lanes(blocks * 8).map(|group| (group % 2 * 4) as i32).repeat_each::<8>();
        let words = w
            .words::<8>(16, [(blocks, 144), (4, 32), (2, 0)])
            .zip(shifts)
            .map(|(b, shift)| (b >> shift) & 0x0f0f_0f0f);
    } |q, scales, sums| {
        let scale = factors.zip(scales.repeat_each::<8>()).map(|(d, scale)| d * scale).repeat_each::<8>();
        let products = words.dot4(q.words::<64>(0, [(blocks, 256)])).zip(scale);
        let products = products.fold_with(0.0, |sum, (dot, scale)| scale.mul_add(dot as f32, sum)).sum();
        products - minima.zip(sums).fold_with(0.0, |sum, (minimum, x)| minimum.mul_add(x, sum)).sum()
    };
}

quantized! {
    "Q5_K", 256 elements in 176 bytes, gpu rows 16;
    dequantize = dequantize_q5_k "dequantize_q5_k";
    qmatmul = qmatmul_q5_k "qmatmul_q5_k";
    elements |w, first, blocks| w
        .segments::<32>(first * 176 + 48, [(blocks, 176), (4, 32), (2, 0)])
        .zip(w.segments::<32>(first * 176 + 16, [(blocks, 176), (8, 0)]))
        .zip(
            w.numbers::<f16>(first * 176, [(blocks, 176), (8, 0)])
                .zip(w.numbers::<f16>(first * 176 + 2, [(blocks, 176), (8, 0)]))
                .zip(w.numbers::<u32>(first * 176 + 4, [(blocks, 176), (8, 0)]))
                .zip(w.numbers::<u32>(first * 176 + 8, [(blocks, 176), (8, 0)]))
                .zip(w.numbers::<u32>(first * 176 + 12, [(blocks, 176), (8, 0)]))
                .enumerate()
                .map(|(((((d, least), a), b), c), j)| {
                    let (scale, minimum) = six_bits(a, b, c, j as u32);
                    ((d as f32) * scale, (least as f32) * minimum, (j % 2 * 4) as i32, (j % 8) as i32)
                })
                .repeat_each::<32>(),
        )
        .map(|((q, bits), (scale, minimum, shift, bit))| {
            let q = ((q as i32) >> shift & 15) | ((bits as i32) >> bit & 1) << 4;
            scale * (q as f32) - minimum
        });
    products |w, blocks| {
        let heads = w
            .numbers::<u32>(4, [(blocks, 176)])
            .zip(w.numbers::<u32>(8, [(blocks, 176)]))
            .zip(w.numbers::<u32>(12, [(blocks, 176)]));
        let factors = heads
            .zip(w.numbers::<f16>(0, [(blocks, 176)]))
            .repeat_each::<8>()
            .enumerate()
            .map(|((((a, b), c), d), j)| {
                let (scale, _minimum) = six_bits(a, b, c, j as u32);
                (d as f32) * scale
            })
            .materialize();
        let minima = heads
            .zip(w.numbers::<f16>(2, [(blocks, 176)]))
            .repeat_each::<8>()
            .enumerate()
            .map(|((((a, b), c), least), j)| {
                let (_scale, minimum) = six_bits(a, b, c, j as u32);
                (least as f32) * minimum
            })
            .materialize();
        let shifts = lanes(blocks * 8).map(|group| ((group % 2 * 4) as i32, (group % 8) as i32)).repeat_each::<8>();
        let words = w
            .words::<8>(48, [(blocks, 176), (4, 32), (2, 0)])
            .zip(w.words::<8>(16, [(blocks, 176), (8, 0)]))
            .zip(shifts)
            .map(|((b, bits), (shift, bit))| ((b >> shift) & 0x0f0f_0f0f) | ((bits >> bit) & 0x0101_0101) << 4);
    } |q, scales, sums| {
        let scale = factors.zip(scales.repeat_each::<8>()).map(|(d, scale)| d * scale).repeat_each::<8>();
        let products = words.dot4(q.words::<64>(0, [(blocks, 256)])).zip(scale);
        let products = products.fold_with(0.0, |sum, (dot, scale)| scale.mul_add(dot as f32, sum)).sum();
        products - minima.zip(sums).fold_with(0.0, |sum, (minimum, x)| minimum.mul_add(x, sum)).sum()
    };
}

quantized! {
    "Q6_K", 256 elements in 210 bytes, gpu rows 16;
    dequantize = dequantize_q6_k "dequantize_q6_k";
    qmatmul = qmatmul_q6_k "qmatmul_q6_k";
    elements |w, first, blocks| w
        .segments::<32>(first * 210, [(blocks, 210), (2, 64), (2, 0), (2, 32)])
        .zip(w.segments::<32>(first * 210 + 128, [(blocks, 210), (2, 32), (4, 0)]))
        .zip(lanes(blocks * 8).map(|run| ((run % 4 / 2 * 4) as i32, (run % 4 * 2) as i32)).repeat_each::<32>())
        .zip(
            w.numbers::<f16>(first * 210 + 208, [(blocks, 210), (16, 0)])
                .zip(w.numbers::<i8>(first * 210 + 192, [(blocks, 210), (16, 1)]))
                .map(|(d, scale)| (d as f32) * (scale as f32))
                .repeat_each::<16>(),
        )
        .map(|(((low, high), (shift, next_shift)), scale)| {
            let q = ((low as i32) >> shift & 15) | ((high as i32) >> next_shift & 3) << 4;
            scale * ((q - 32) as f32)
        });
    products |w, blocks| {
        let factors = w
            .segments::<16>(192, [(blocks, 210)])
            .zip(w.numbers::<f16>(208, [(blocks, 210)]).repeat_each::<16>())
            .map(|(scale, d)| (d as f32) * ((scale as i8) as f32))
            .materialize();
        let shifts = lanes(blocks * 8).map(|run| ((run % 4 / 2 * 4) as i32, (run % 4 * 2) as i32)).repeat_each::<8>();
        let words = w
            .words::<8>(0, [(blocks, 210), (2, 64), (2, 0), (2, 32)])
            .zip(w.words::<8>(128, [(blocks, 210), (2, 32), (4, 0)]))
            .zip(shifts)
            .map(|((low, high), (shift, bits))| ((low >> shift) & 0x0f0f_0f0f) | ((high >> bits) & 0x0303_0303) << 4);
    } |q, scales| {
        let x = q.words::<64>(0, [(blocks, 256)]);
        // The integers are less 32.
        let less = x.map(|b| (b & 0) | 0x2020_2020).dot4(x);
        let scale = factors.zip(scales.repeat_each::<16>()).map(|(d, scale)| d * scale).repeat_each::<4>();
        words
            .dot4(x)
            .zip(less)
            .zip(scale)
            .fold_with(0.0, |sum, ((dot, less), scale)| scale.mul_add((dot - less) as f32, sum))
            .sum()
    };
}
