//! Weights in blocks of small integers, as GGUF files have them: their elements, and products with them. The layouts of blocks are
//! those of [ggml](https://github.com/ggml-org/ggml).
//!
//! Activations are quantized too, however many rows there are: to blocks of 8 bits with a scale, of 32 elements for Q4_0 and Q8_0 and of
//! 256 for the others, which ggml calls Q8_1 and Q8_K. Products are of integers, by `dot_scaled`; scales multiply sums. What is read as fast
//! as it is multiplied is multiplied where it lies, by `dot4`: few rows on GPUs, and bytes for one row.

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

/// Four bytes of 7 bits each, less as many others.
#[kernel]
fn less(b: i32, zero: i32) -> i32 {
    ((b | -0x7f7f_7f80) - zero) ^ -0x7f7f_7f80
}

/// Makes a kernel that quantizes rows to 8 bits: the integers of each block, `x / scale` rounded, and the block's scale, its largest
/// magnitude divided by 127. What is not finite has a scale that is not.
macro_rules! quantize {
    ($name:ident $op:literal, $size:literal) => {
        #[doc = concat!("Rows in blocks of ", $size, " integers of 8 bits with a scale.")]
        #[kernel(op = $op)]
        pub fn $name(q: Out<u8, 2>, scales: Out<f32, 2>, x: In<f32, 2>) {
            let [i, part] = program_id();
            let x = x.row(i).block::<$size>(part);
            let largest = x.fold_with(0.0, |m, v| v.abs().max(m)).max();
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            q.select(i).block::<$size>(part).write(x.map(|v| ((v * inverse).round_ties_even() as i32) as u8));
            scales.select(i).set(part, largest * (1.0 / 127.0));
        }
    };
}

quantize!(quantize_q8_32 "quantize_q8_32", 32);
quantize!(quantize_q8_256 "quantize_q8_256", 256);

/// Makes two kernels of an encoding, of the lanes of `count` blocks of a row from block `first` on: `elements` are their numbers; `words`
/// their integers, four in a word, and `scales` those of each group of so many words, maybe with what is added to each of the group.
///
/// `groups` and `scales` are how many groups of weights, and scales of activations, a tile has in a row, of 512 elements (for many rows),
/// 1024 (few), 4096 (one), 256, and a block. Fewer rows than `dot4 below` are multiplied where they lie, by `dot4`: then `factor` and
/// `offset` take a group's scale apart, and `activations` are the scales of activations for each group.
macro_rules! quantized {
    (
        $name:literal, $per_block:literal elements in $bytes:literal bytes, activations in $size:literal;
        groups many $many_g:literal few $few_g:literal one $one_g:literal v2 $v2_g:literal gpu $gpu_g:literal;
        scales many $many_s:literal few $few_s:literal one $one_s:literal v2 $v2_s:literal gpu $gpu_s:literal;
        dot4 below $one_dot4:literal rows of one; gpu rows $rows:literal;
        dequantize = $dequantize:ident $dequantize_op:literal;
        qmatmul = $qmatmul:ident $qmatmul_op:literal;
        elements |$row:ident, $first:ident, $count:ident| $elements:expr;
        words $words:expr;
        scales $factors:expr;
        dot4 words of a block $block_words:literal, of a group $group_words:literal;
        factor $factor:expr; $(offset $offset:expr;)? activations |$scales:ident| $activations:expr;
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

        #[doc = concat!("`y = w · xᵀ` with the elements of rows of ", $name, " blocks, whose packed bytes are read once for few rows of `x`: its integers are `q`, with `scales`.")]
        #[kernel(
            op = $qmatmul_op,
            tile(
                BN = 64, BM = 192, BK = 512, BG = $many_g, BS = $many_s, DOT4 = 1,
                when(q.dim(0) <= 1, BN = 32, BM = 1, BK = 4096, BG = $one_g, BS = $one_s, DOT4 = $one_dot4),
                when(q.dim(0) <= 8, BN = 16, BM = 8, BK = 1024, BG = $few_g, BS = $few_s),
                v2(BN = 8, BM = 16, BK = 256, BG = $v2_g, BS = $v2_s),
                gpu(BN = $rows, BM = 64, BK = $per_block, BG = $gpu_g, BS = $gpu_s, DOT4 = 9),
            )
        )]
        pub fn $qmatmul(y: Out<f32, 2>, w: In<u8, 2>, q: In<u8, 2>, scales: In<f32, 2>) {
            let [n, m] = program_id();
            let begin = n * BN;
            if q.dim(0) < DOT4 {
                let mut out = Tile::<f32, BN, BM>::zeros();
                let rows = q.dim(0).min(BM);
                for i in 0..BN {
                    let $row = w.row(begin + i);
                    let ($first, $count) = (0, $row.dim(0) / $bytes);
                    let words = $words;
                    let factors = $factors.map($factor).materialize();
                    // Of the left operand `dot4` takes 7 bits: a signed byte is these, less 128 if it is negative.
                    let negative = words.map(|b| (b >> 7) & 0x0101_0101);
                    for j in 0..rows {
                        let x = q.row(j).words::<$block_words>(0, [($count, $per_block)]);
                        let $scales = scales.row(j);
                        let of_x = $activations;
                        let scale = factors.zip(of_x).map(|(d, scale)| d * scale).repeat_each::<$group_words>();
                        let sum = words
                            .dot4(x)
                            .zip(negative.dot4(x))
                            .zip(scale)
                            .fold_with(0.0, |sum, ((low, negative), scale)| scale.mul_add((low - (negative << 7)) as f32, sum))
                            .sum();
                        $(
                            let of_all = $factors.map($offset).zip(of_x).map(|(d, scale)| d * scale).repeat_each::<$group_words>();
                            let all = x.map(|b| (b & 0) | 0x0101_0101).dot4(x).zip(of_all);
                            let sum = sum + all.fold_with(0.0, |sum, (all, scale)| scale.mul_add(all as f32, sum)).sum();
                        )?
                        out = out.map_indexed(|r, c, v| if r == i && c == j { sum } else { v });
                    }
                }
                y.tile::<BN, BM>(n, m).write(out);
            } else {
                let mut acc = Tile::<f32, BN, BM>::zeros();
                for k in range(0, q.dim(1), BK) {
                    let $first = k / $per_block;
                    let $count = ((q.dim(1) - k) / $per_block).min(BK / $per_block);
                    let rows = ScaledTile::<BN, BK, BG>::from_rows(|r| {
                        let $row = w.row(begin + r);
                        ($words, $factors)
                    });
                    acc = dot_scaled(rows, q.tile::<BM, BK>(m, k).t(), scales.tile::<BM, BS>(m, k / $size).t(), acc);
                }
                y.tile::<BN, BM>(n, m).write(acc);
            }
        }
    };
}

quantized! {
    "Q4_0", 32 elements in 18 bytes, activations in 32;
    groups many 16 few 32 one 128 v2 8 gpu 1;
    scales many 16 few 32 one 128 v2 8 gpu 1;
    dot4 below 1 rows of one; gpu rows 64;
    dequantize = dequantize_q4_0 "dequantize_q4_0";
    qmatmul = qmatmul_q4_0 "qmatmul_q4_0";
    elements |w, first, blocks| w
        .segments::<16>(first * 18 + 2, [(blocks, 18), (2, 0)])
        .zip(w.numbers::<f16>(first * 18, [(blocks, 18)]).repeat_each::<32>())
        .zip(lanes(blocks * 2).map(|half| (half % 2 * 4) as i32).repeat_each::<16>())
        .map(|((q, scale), shift)| (scale as f32) * ((((q as i32) >> shift & 15) - 8) as f32));
    words w
        .words::<4>(first * 18 + 2, [(blocks, 18), (2, 0)])
        .zip(lanes(blocks * 2).map(|half| (half % 2 * 4) as i32).repeat_each::<4>())
        .map(|(b, shift)| less((b >> shift) & 0x0f0f_0f0f, 0x0808_0808));
    scales w.numbers::<f16>(first * 18, [(blocks, 18)]).map(|d| d as f32);
    dot4 words of a block 8, of a group 8;
    factor |d| d; activations |scales| scales;
}

quantized! {
    "Q8_0", 32 elements in 34 bytes, activations in 32;
    groups many 16 few 32 one 128 v2 8 gpu 1;
    scales many 16 few 32 one 128 v2 8 gpu 1;
    dot4 below 2 rows of one; gpu rows 64;
    dequantize = dequantize_q8_0 "dequantize_q8_0";
    qmatmul = qmatmul_q8_0 "qmatmul_q8_0";
    elements |w, first, blocks| w
        .segments::<32>(first * 34 + 2, [(blocks, 34)])
        .zip(w.numbers::<f16>(first * 34, [(blocks, 34)]).repeat_each::<32>())
        .map(|(q, scale)| (scale as f32) * ((q as i8) as f32));
    words w.words::<8>(first * 34 + 2, [(blocks, 34)]);
    scales w.numbers::<f16>(first * 34, [(blocks, 34)]).map(|d| d as f32);
    dot4 words of a block 8, of a group 8;
    factor |d| d; activations |scales| scales;
}

quantized! {
    "Q4_K", 256 elements in 144 bytes, activations in 256;
    groups many 16 few 32 one 128 v2 8 gpu 8;
    scales many 2 few 4 one 16 v2 1 gpu 1;
    dot4 below 1 rows of one; gpu rows 16;
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
    words w
        .words::<8>(first * 144 + 16, [(blocks, 144), (4, 32), (2, 0)])
        .zip(lanes(blocks * 8).map(|group| (group % 2 * 4) as i32).repeat_each::<8>())
        .map(|(b, shift)| (b >> shift) & 0x0f0f_0f0f);
    scales w
        .numbers::<u32>(first * 144 + 4, [(blocks, 144)])
        .zip(w.numbers::<u32>(first * 144 + 8, [(blocks, 144)]))
        .zip(w.numbers::<u32>(first * 144 + 12, [(blocks, 144)]))
        .zip(w.numbers::<f16>(first * 144, [(blocks, 144)]))
        .zip(w.numbers::<f16>(first * 144 + 2, [(blocks, 144)]))
        .repeat_each::<8>()
        .enumerate()
        .map(|(((((a, b), c), d), least), j)| {
            let (scale, minimum) = six_bits(a, b, c, j as u32);
            ((d as f32) * scale, -((least as f32) * minimum))
        });
    dot4 words of a block 64, of a group 8;
    factor |(d, _minimum)| d; offset |(_d, minimum)| minimum; activations |scales| scales.repeat_each::<8>();
}

quantized! {
    "Q5_K", 256 elements in 176 bytes, activations in 256;
    groups many 16 few 32 one 128 v2 8 gpu 8;
    scales many 2 few 4 one 16 v2 1 gpu 1;
    dot4 below 1 rows of one; gpu rows 16;
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
    words w
        .words::<8>(first * 176 + 48, [(blocks, 176), (4, 32), (2, 0)])
        .zip(w.words::<8>(first * 176 + 16, [(blocks, 176), (8, 0)]))
        .zip(lanes(blocks * 8).map(|group| ((group % 2 * 4) as i32, (group % 8) as i32)).repeat_each::<8>())
        .map(|((b, bits), (shift, bit))| ((b >> shift) & 0x0f0f_0f0f) | ((bits >> bit) & 0x0101_0101) << 4);
    scales w
        .numbers::<u32>(first * 176 + 4, [(blocks, 176)])
        .zip(w.numbers::<u32>(first * 176 + 8, [(blocks, 176)]))
        .zip(w.numbers::<u32>(first * 176 + 12, [(blocks, 176)]))
        .zip(w.numbers::<f16>(first * 176, [(blocks, 176)]))
        .zip(w.numbers::<f16>(first * 176 + 2, [(blocks, 176)]))
        .repeat_each::<8>()
        .enumerate()
        .map(|(((((a, b), c), d), least), j)| {
            let (scale, minimum) = six_bits(a, b, c, j as u32);
            ((d as f32) * scale, -((least as f32) * minimum))
        });
    dot4 words of a block 64, of a group 8;
    factor |(d, _minimum)| d; offset |(_d, minimum)| minimum; activations |scales| scales.repeat_each::<8>();
}

quantized! {
    "Q6_K", 256 elements in 210 bytes, activations in 256;
    groups many 32 few 64 one 256 v2 16 gpu 16;
    scales many 2 few 4 one 16 v2 1 gpu 1;
    dot4 below 1 rows of one; gpu rows 16;
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
    words w
        .words::<8>(first * 210, [(blocks, 210), (2, 64), (2, 0), (2, 32)])
        .zip(w.words::<8>(first * 210 + 128, [(blocks, 210), (2, 32), (4, 0)]))
        .zip(lanes(blocks * 8).map(|run| ((run % 4 / 2 * 4) as i32, (run % 4 * 2) as i32)).repeat_each::<8>())
        .map(|((low, high), (shift, bits))| {
            less(((low >> shift) & 0x0f0f_0f0f) | ((high >> bits) & 0x0303_0303) << 4, 0x2020_2020)
        });
    scales w
        .segments::<16>(first * 210 + 192, [(blocks, 210)])
        .zip(w.numbers::<f16>(first * 210 + 208, [(blocks, 210)]).repeat_each::<16>())
        .map(|(scale, d)| (d as f32) * ((scale as i8) as f32));
    dot4 words of a block 64, of a group 4;
    factor |d| d; activations |scales| scales.repeat_each::<16>();
}
