//! Weights in blocks of small integers, as GGUF files have them: their elements, and products with them. The layouts of blocks are
//! those of [ggml](https://github.com/ggml-org/ggml).
//!
//! Activations are quantized too, however many rows there are: to blocks of 8 bits with a scale, of 32 elements for Q4_0 and Q8_0 and of
//! 256 for the others, which ggml calls Q8_1 and Q8_K. Products are of integers, by `dot_scaled`; scales multiply sums. What is read as fast
//! as it is multiplied is multiplied where it lies, by `dot4`: few rows on GPUs, and bytes for one row.

use max::kernel::prelude::*;

/// Eight numbers of 6 bits as bytes: of the first four these are the lower bits of each byte of `bits`; the last have their lower bits in
/// `nibbles`, in the lower half of each byte, and their upper two above those of the first.
#[kernel]
fn six_bits(bits: u32, nibbles: u32) -> u64 {
    let last = (nibbles & 0x0f0f_0f0f) | (bits >> 2 & 0x3030_3030);
    ((bits & 0x3f3f_3f3f) as u64) | ((last as u64) << 32)
}

/// The bits of a magnitude: integers in the order of magnitudes, behind which come those of NaN.
#[kernel]
fn magnitude(x: f32) -> u32 {
    x.bitcast::<u32>() & 0x7fff_ffff
}

/// A number between -128 and 127, rounded to an even integer where two are as near: that is what the low bits of its sum with 1.5 · 2²³ are.
/// 0 of NaN, whose bits differ between targets.
#[kernel]
fn rounded(x: f32) -> u8 {
    if x.is_nan() { 0 } else { (x + 12582912.0).bitcast::<u32>() as u8 }
}

/// Makes a kernel that quantizes rows to 8 bits: the integers of each block, `x / scale` rounded, and the block's scale, its largest
/// magnitude divided by 127. What is not finite has a scale that is not.
macro_rules! quantize {
    ($name:ident $op:literal, $size:literal) => {
        #[doc = concat!("Rows in blocks of ", $size, " integers of 8 bits with a scale.")]
        #[kernel(op = $op)]
        pub fn $name(q: Out<u8, 2>, scales: Out<f32, 2>, x: In<f32, 2>) {
            let i = program_id(0);
            let x = x.row(i);
            let largest = x.chunks::<$size>().fold_with(0, |m, v| magnitude(v).max(m)).reduce(|a, b| a.max(b));
            let largest = largest.map(|m| m.bitcast::<f32>()).materialize();
            scales.row(i).write(largest.map(|m| m * (1.0 / 127.0)));
            let inverse = largest.map(|m| if m > 0.0 { 127.0 / m } else { 0.0 }).repeat_each::<$size>();
            q.row(i).write(x.zip(inverse).map(|(v, inverse)| rounded(v * inverse)));
        }
    };
}

quantize!(quantize_q8_32 "quantize_q8_32", 32);
quantize!(quantize_q8_256 "quantize_q8_256", 256);

/// Makes two kernels of an encoding, of the lanes of `count` blocks of a row from block `first` on: `words` are their integers, four in
/// a word, as bytes with a sign (`i32`) or without (`u32`), and `scales` those of each group of so many words, maybe with what is added
/// to each of the group. Where that is a multiple of the scale, `zero` is the integer that stands for 0.
///
/// `groups` and `scales` are how many groups of weights, and scales of activations, a tile has in a row, of 512 elements (for many rows),
/// 16384 (few, and one, whose bits are the same: rows are read in the order of memory), 256, and a block. `element` is what a byte and its scale stand for. GPUs multiply up to
/// 8 rows where they lie, by `dot4`, which takes 7 bits of words: of bytes with a sign, `negative` are those bits' eighth. For it,
/// `factor` and `offset` take a group's scale apart, and `activations` are the scales of activations for each group.
macro_rules! quantized {
    (
        $name:literal, $per_block:literal elements in $bytes:literal bytes, activations in $size:literal;
        groups many $many_g:literal few $few_g:literal v2 $v2_g:literal gpu $gpu_g:literal;
        scales many $many_s:literal few $few_s:literal v2 $v2_s:literal gpu $gpu_s:literal;
        gpu rows $rows:literal;
        dequantize = $dequantize:ident $dequantize_op:literal;
        qmatmul = $qmatmul:ident $qmatmul_op:literal;
        words |$row:ident, $first:ident, $count:ident| of $integer:ident $words:expr;
        scales $factors:expr;
        $(zero $zero:literal;)?
        element $element:expr;
        a block of $block_words:literal words, a group of $group_words:literal words or $group:literal elements;
        $(negative |$word:ident| $negative:expr;)?
        factor $factor:expr; $(offset $offset:expr;)? activations |$scales:ident| $activations:expr;
    ) => {
        #[doc = concat!("The elements of rows of ", $name, " blocks.")]
        #[kernel(op = $dequantize_op)]
        pub fn $dequantize(y: Out<f32, 2>, x: In<u8, 2>) {
            let i = program_id(0);
            let $row = x.row(i);
            let $count = $row.dim(0) / $bytes;
            let $first = 0;
            let bytes = $words.bytes().map(|byte| (byte as i8) as f32);
            y.row(i).write(bytes.zip($factors.repeat_each::<$group>()).map($element));
        }

        #[doc = concat!("`y = w · xᵀ` with the elements of rows of ", $name, " blocks, whose packed bytes are read once for few rows of `x`: its integers are `q`, with `scales`.")]
        #[kernel(
            op = $qmatmul_op,
            tile(
                BN = 64, BM = 192, BK = 512, BG = $many_g, BS = $many_s, DOT4 = 1,
                when(q.dim(0) <= 1, BN = 64, BM = 1, BK = 16384, BG = $few_g, BS = $few_s),
                when(q.dim(0) <= 8, BN = 64, BM = 8, BK = 16384, BG = $few_g, BS = $few_s),
                v2(BN = 8, BM = 16, BK = 256, BG = $v2_g, BS = $v2_s),
                gpu(BN = $rows, BM = 64, BK = $per_block, BG = $gpu_g, BS = $gpu_s, DOT4 = 9),
            )
        )]
        pub fn $qmatmul(y: Out<f32, 2>, w: In<u8, 2>, q: In<u8, 2>, scales: In<f32, 2>) {
            let [n, m] = program_id();
            let begin = n * BN;
            if DOT4 > 1 && q.dim(0) < DOT4 {
                let mut out = Tile::<f32, BN, BM>::zeros();
                let rows = q.dim(0).min(BM);
                for i in 0..BN {
                    let $row = w.row(begin + i);
                    let ($first, $count) = (0, $row.dim(0) / $bytes);
                    let words = $words;
                    let factors = $factors.map($factor).materialize();
                    for j in 0..rows {
                        let x = q.row(j).words::<$block_words>(0, [($count, $per_block)]);
                        let $scales = scales.row(j);
                        let of_x = $activations;
                        let scale = factors.zip(of_x).map(|(d, scale)| d * scale).repeat_each::<$group_words>();
                        let dots = words.dot4(x);
                        // Of the left operand `dot4` takes 7 bits: a signed byte is these, less 128 if it is negative.
                        $(
                            let negative = words.map(|$word| $negative).dot4(x);
                            let dots = dots.zip(negative).map(|(low, negative)| low - (negative << 7));
                        )?
                        let sum = dots.zip(scale).fold_with(0.0, |sum, (dot, scale)| scale.mul_add(dot as f32, sum)).sum();
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
                    let last = w.dim(0) - 1;
                    let rows = ScaledTile::<BN, BK, BG>::from_rows(|r| {
                        // Behind the last row it is that row again, whose products are not written: a row that is not there is read
                        // element by element.
                        let $row = w.row((begin + r).min(last));
                        ($words.map(|word| word as $integer), $factors$(, $zero as i32)?)
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
    groups many 16 few 512 v2 8 gpu 1;
    scales many 16 few 512 v2 8 gpu 1;
    gpu rows 64;
    dequantize = dequantize_q4_0 "dequantize_q4_0";
    qmatmul = qmatmul_q4_0 "qmatmul_q4_0";
    words |w, first, blocks| of u32 w
        .words::<4>(first * 18 + 2, [(blocks, 18), (2, 0)])
        .zip(lanes(blocks * 2).map(|half| (half % 2 * 4) as i32).repeat_each::<4>())
        .map(|(b, shift)| (b >> shift) & 0x0f0f_0f0f);
    scales w.numbers::<f16>(first * 18, [(blocks, 18)]).map(|d| d as f32);
    zero 8;
    element |(byte, scale)| scale.mul_add(byte, scale * -8.0);
    a block of 8 words, a group of 8 words or 32 elements;
    factor |d| d; offset |d| d * -8.0; activations |scales| scales;
}

quantized! {
    "Q8_0", 32 elements in 34 bytes, activations in 32;
    groups many 16 few 512 v2 8 gpu 1;
    scales many 16 few 512 v2 8 gpu 1;
    gpu rows 64;
    dequantize = dequantize_q8_0 "dequantize_q8_0";
    qmatmul = qmatmul_q8_0 "qmatmul_q8_0";
    words |w, first, blocks| of i32 w.words::<8>(first * 34 + 2, [(blocks, 34)]);
    scales w.numbers::<f16>(first * 34, [(blocks, 34)]).map(|d| d as f32);
    element |(byte, scale)| byte * scale;
    a block of 8 words, a group of 8 words or 32 elements;
    negative |b| (b >> 7) & 0x0101_0101;
    factor |d| d; activations |scales| scales;
}

/// The kernels of an encoding with scales and minima of 6 bits, for each 32 of 256 elements, behind two factors of a block.
macro_rules! quantized_with_minima {
    (
        $name:literal, $bytes:literal bytes;
        dequantize = $dequantize:ident $dequantize_op:literal;
        qmatmul = $qmatmul:ident $qmatmul_op:literal;
        words |$w:ident, $first:ident, $blocks:ident| $words:expr;
    ) => {
        quantized! {
            $name, 256 elements in $bytes bytes, activations in 256;
            groups many 16 few 512 v2 8 gpu 8;
            scales many 2 few 64 v2 1 gpu 1;
            gpu rows 16;
            dequantize = $dequantize $dequantize_op;
            qmatmul = $qmatmul $qmatmul_op;
            words |$w, $first, $blocks| of u32 $words;
            scales $w
                .numbers::<u32>($first * $bytes + 4, [($blocks, $bytes)])
                .zip($w.numbers::<u32>($first * $bytes + 12, [($blocks, $bytes)]))
                .map(|(scales, last)| six_bits(scales, last))
                .bytes()
                .zip(
                    $w.numbers::<u32>($first * $bytes + 8, [($blocks, $bytes)])
                        .zip($w.numbers::<u32>($first * $bytes + 12, [($blocks, $bytes)]))
                        .map(|(minima, last)| six_bits(minima, last >> 4))
                        .bytes(),
                )
                .two_level(
                    $w.numbers::<f16>($first * $bytes, [($blocks, $bytes)])
                        .zip($w.numbers::<f16>($first * $bytes + 2, [($blocks, $bytes)]))
                        .repeat_each::<8>(),
                );
            element |(byte, (scale, offset))| scale.mul_add(byte, offset);
            a block of 64 words, a group of 8 words or 32 elements;
            factor |(d, _minimum)| d; offset |(_d, minimum)| minimum; activations |scales| scales.repeat_each::<8>();
        }
    };
}

quantized_with_minima! {
    "Q4_K", 144 bytes;
    dequantize = dequantize_q4_k "dequantize_q4_k";
    qmatmul = qmatmul_q4_k "qmatmul_q4_k";
    words |w, first, blocks| w
        .words::<8>(first * 144 + 16, [(blocks, 144), (4, 32), (2, 0)])
        .zip(lanes(blocks * 8).map(|group| (group % 2 * 4) as i32).repeat_each::<8>())
        .map(|(b, shift)| (b >> shift) & 0x0f0f_0f0f);
}

quantized_with_minima! {
    "Q5_K", 176 bytes;
    dequantize = dequantize_q5_k "dequantize_q5_k";
    qmatmul = qmatmul_q5_k "qmatmul_q5_k";
    words |w, first, blocks| w
        .words::<8>(first * 176 + 48, [(blocks, 176), (4, 32), (2, 0)])
        .zip(w.words::<8>(first * 176 + 16, [(blocks, 176), (8, 0)]))
        .zip(lanes(blocks * 8).map(|group| ((group % 2 * 4) as i32, (group % 8) as i32)).repeat_each::<8>())
        .map(|((b, bits), (shift, bit))| ((b >> shift) & 0x0f0f_0f0f) | ((bits >> bit) & 0x0101_0101) << 4);
}

quantized! {
    "Q6_K", 256 elements in 210 bytes, activations in 256;
    groups many 32 few 1024 v2 16 gpu 16;
    scales many 2 few 64 v2 1 gpu 1;
    gpu rows 16;
    dequantize = dequantize_q6_k "dequantize_q6_k";
    qmatmul = qmatmul_q6_k "qmatmul_q6_k";
    words |w, first, blocks| of u32 w
        .words::<8>(first * 210, [(blocks, 210), (2, 64), (2, 0), (2, 32)])
        .zip(w.words::<8>(first * 210 + 128, [(blocks, 210), (2, 32), (4, 0)]))
        .zip(lanes(blocks * 8).map(|run| ((run % 4 / 2 * 4) as i32, (run % 4 * 2) as i32)).repeat_each::<8>())
        .map(|((low, high), (shift, bits))| ((low >> shift) & 0x0f0f_0f0f) | ((high >> bits) & 0x0303_0303) << 4);
    scales w
        .segments::<16>(first * 210 + 192, [(blocks, 210)])
        .map(|scale| scale as i8)
        .two_level(w.numbers::<f16>(first * 210 + 208, [(blocks, 210)]).repeat_each::<16>());
    zero 32;
    element |(byte, scale)| scale.mul_add(byte, scale * -32.0);
    a block of 64 words, a group of 4 words or 16 elements;
    factor |scale| scale; offset |scale| scale * -32.0; activations |scales| scales.repeat_each::<16>();
}
