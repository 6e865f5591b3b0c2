//! Weights in blocks of small integers, as GGUF files have them: their elements, and products with them. The layouts of blocks are
//! those of [ggml](https://github.com/ggml-org/ggml).

use max::kernel::prelude::*;

/// Scale and minimum of group `j` of 8, of 6 bits each, which are packed in 12 bytes: those of the first four groups in the lower bits
/// of `scales` and `minima`; those of the last in `last`, four bits each, and in the upper two bits of the others.
#[kernel]
fn six_bits(scales: u32, minima: u32, last: u32, j: i64) -> (f32, f32) {
    let first = j < 4;
    let shift = (j % 4 * 8) as u32;
    let scale = if first { scales } else { (last & 0x0f0f_0f0f) | (scales >> 2 & 0x3030_3030) };
    let minimum = if first { minima } else { (last >> 4 & 0x0f0f_0f0f) | (minima >> 2 & 0x3030_3030) };
    ((scale >> shift & 63) as i32 as f32, (minimum >> shift & 63) as i32 as f32)
}

/// Makes two kernels of an encoding. `elements` are the lanes of some blocks of a row from block `first` on; `products` the sum of
/// products of a row with one of `x`, where what is the same for all rows of `x` comes first.
macro_rules! quantized {
    (
        $name:literal, $per_block:literal elements in $bytes:literal bytes, gpu rows $rows:literal;
        dequantize = $dequantize:ident $dequantize_op:literal;
        qmatmul = $qmatmul:ident $qmatmul_op:literal;
        elements |$row:ident, $first:ident, $count:ident| $elements:expr;
        products |$weights:ident, $blocks:ident, $x:ident| { $($shared:tt)* } $products:expr;
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

        #[doc = concat!("`y = w · xᵀ` with the elements of rows of ", $name, " blocks, whose packed bytes are read once for few rows of `x`.")]
        #[kernel(
            op = $qmatmul_op,
            tile(
                BN = 64, BM = 192, BK = 512,
                when(x.dim(0) <= 8, BN = 16, BM = 8, BK = 256),
                v2(BN = 8, BM = 16, BK = 256),
                gpu(BN = $rows, BM = 64, BK = $per_block),
            )
        )]
        pub fn $qmatmul(y: Out<f32, 2>, w: In<u8, 2>, x: In<f32, 2>) {
            let [n, m] = program_id();
            let begin = n * BN;
            if x.dim(0) <= 8 {
                let mut out = Tile::<f32, BN, BM>::zeros();
                for i in 0..BN {
                    let $weights = w.row(begin + i);
                    let $blocks = $weights.dim(0) / $bytes;
                    $($shared)*
                    for j in 0..x.dim(0) {
                        let $x = x.row(j);
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
    products |w, blocks, x| {
        let bytes = w.segments::<16>(2, [(blocks, 18)]).zip(w.numbers::<f16>(0, [(blocks, 18)]).repeat_each::<16>());
    } bytes
        .zip(x.segments::<16>(0, [(blocks, 32)]))
        .zip(x.segments::<16>(16, [(blocks, 32)]))
        .fold_with(0.0, |sum, (((q, scale), low), high)| {
            let product = (((q & 15) as i32 - 8) as f32) * low;
            (((q >> 4) as i32 - 8) as f32).mul_add(high, product).mul_add(scale as f32, sum)
        })
        .sum();
}

quantized! {
    "Q8_0", 32 elements in 34 bytes, gpu rows 64;
    dequantize = dequantize_q8_0 "dequantize_q8_0";
    qmatmul = qmatmul_q8_0 "qmatmul_q8_0";
    elements |w, first, blocks| w
        .segments::<32>(first * 34 + 2, [(blocks, 34)])
        .zip(w.numbers::<f16>(first * 34, [(blocks, 34)]).repeat_each::<32>())
        .map(|(q, scale)| (scale as f32) * ((q as i8) as f32));
    products |w, blocks, x| {
        let bytes = w.segments::<32>(2, [(blocks, 34)]).zip(w.numbers::<f16>(0, [(blocks, 34)]).repeat_each::<32>());
    } bytes
        .zip(x)
        .fold_with(0.0, |sum, ((q, scale), x)| ((scale as f32) * ((q as i8) as f32)).mul_add(x, sum))
        .sum();
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
                    let (scale, minimum) = six_bits(a, b, c, j % 8);
                    ((d as f32) * scale, (least as f32) * minimum, (j % 2 * 4) as i32)
                })
                .repeat_each::<32>(),
        )
        .map(|(q, (scale, minimum, shift))| scale * (((q as i32) >> shift & 15) as f32) - minimum);
    products |w, blocks, x| {
        let groups = w
            .numbers::<f16>(0, [(blocks, 144), (4, 0)])
            .zip(w.numbers::<f16>(2, [(blocks, 144), (4, 0)]))
            .zip(w.numbers::<u32>(4, [(blocks, 144), (4, 0)]))
            .zip(w.numbers::<u32>(8, [(blocks, 144), (4, 0)]))
            .zip(w.numbers::<u32>(12, [(blocks, 144), (4, 0)]))
            .enumerate()
            .map(|(((((d, least), a), b), c), p)| {
                let (scale, minimum) = six_bits(a, b, c, p % 4 * 2);
                let (next_scale, next_minimum) = six_bits(a, b, c, p % 4 * 2 + 1);
                let (d, least) = (d as f32, -(least as f32));
                (d * scale, least * minimum, d * next_scale, least * next_minimum)
            })
            .repeat_each::<32>();
        let bytes = w.segments::<32>(16, [(blocks, 144), (4, 32)]).zip(groups);
    } bytes
        .zip(x.segments::<32>(0, [(blocks * 4, 64)]))
        .zip(x.segments::<32>(32, [(blocks * 4, 64)]))
        .fold_with(0.0, |sum, (((q, (scale, minimum, next_scale, next_minimum)), low), high)| {
            let first = scale.mul_add((q & 15) as i32 as f32, minimum);
            let second = next_scale.mul_add((q >> 4) as i32 as f32, next_minimum);
            second.mul_add(high, first.mul_add(low, sum))
        })
        .sum();
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
                    let (scale, minimum) = six_bits(a, b, c, j % 8);
                    ((d as f32) * scale, (least as f32) * minimum, (j % 2 * 4) as i32, (j % 8) as i32)
                })
                .repeat_each::<32>(),
        )
        .map(|((q, bits), (scale, minimum, shift, bit))| {
            let q = ((q as i32) >> shift & 15) | ((bits as i32) >> bit & 1) << 4;
            scale * (q as f32) - minimum
        });
    products |w, blocks, x| {
        let groups = w
            .numbers::<f16>(0, [(blocks, 176), (4, 0)])
            .zip(w.numbers::<f16>(2, [(blocks, 176), (4, 0)]))
            .zip(w.numbers::<u32>(4, [(blocks, 176), (4, 0)]))
            .zip(w.numbers::<u32>(8, [(blocks, 176), (4, 0)]))
            .zip(w.numbers::<u32>(12, [(blocks, 176), (4, 0)]))
            .enumerate()
            .map(|(((((d, least), a), b), c), p)| {
                let (scale, minimum) = six_bits(a, b, c, p % 4 * 2);
                let (next_scale, next_minimum) = six_bits(a, b, c, p % 4 * 2 + 1);
                let (d, least) = (d as f32, -(least as f32));
                (d * scale, least * minimum, d * next_scale, least * next_minimum, (p % 4 * 2) as i32)
            })
            .repeat_each::<32>();
        let bits = w.segments::<32>(16, [(blocks, 176), (4, 0)]);
        let bytes = w.segments::<32>(48, [(blocks, 176), (4, 32)]).zip(bits).zip(groups);
    } bytes
        .zip(x.segments::<32>(0, [(blocks * 4, 64)]))
        .zip(x.segments::<32>(32, [(blocks * 4, 64)]))
        .fold_with(0.0, |sum, ((((q, bits), (scale, minimum, next_scale, next_minimum, bit)), low), high)| {
            let bits = (bits as i32) >> bit;
            let first = scale.mul_add(((q & 15) as i32 | (bits & 1) << 4) as f32, minimum);
            let second = next_scale.mul_add(((q >> 4) as i32 | (bits & 2) << 3) as f32, next_minimum);
            second.mul_add(high, first.mul_add(low, sum))
        })
        .sum();
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
    products |w, blocks, x| {
        let groups = w
            .numbers::<f16>(208, [(blocks, 210), (4, 0)])
            .zip(w.numbers::<i8>(192, [(blocks, 210), (2, 8), (2, 1)]))
            .zip(w.numbers::<i8>(194, [(blocks, 210), (2, 8), (2, 1)]))
            .zip(w.numbers::<i8>(196, [(blocks, 210), (2, 8), (2, 1)]))
            .zip(w.numbers::<i8>(198, [(blocks, 210), (2, 8), (2, 1)]))
            .map(|((((d, a), b), c), e)| {
                let d = d as f32;
                (d * (a as f32), d * (b as f32), d * (c as f32), d * (e as f32))
            })
            .repeat_each::<16>();
        let low = w.segments::<32>(0, [(blocks, 210), (2, 64)]).zip(w.segments::<32>(32, [(blocks, 210), (2, 64)]));
        let bytes = low.zip(w.segments::<32>(128, [(blocks, 210), (2, 32)])).zip(groups);
    } bytes
        .zip(x.segments::<32>(0, [(blocks * 2, 128)]))
        .zip(x.segments::<32>(32, [(blocks * 2, 128)]))
        .zip(x.segments::<32>(64, [(blocks * 2, 128)]))
        .zip(x.segments::<32>(96, [(blocks * 2, 128)]))
        .fold_with(0.0, |sum, ((((((((p, q), high), (a, b, c, d)), x)), y), z), t)| {
            let first = (((p & 15) as i32 | ((high & 3) << 4) as i32) - 32) as f32;
            let second = (((q & 15) as i32 | ((high & 12) << 2) as i32) - 32) as f32;
            let third = (((p >> 4) as i32 | (high & 48) as i32) - 32) as f32;
            let fourth = (((q >> 4) as i32 | ((high >> 6) << 4) as i32) - 32) as f32;
            let sum = (b * second).mul_add(y, (a * first).mul_add(x, sum));
            (d * fourth).mul_add(t, (c * third).mul_add(z, sum))
        })
        .sum();
}
