//! Weights of folders with GPTQ and 8-bit floats, as they lie in memory: rows of groups of 32, 64 or 128 elements, each with its
//! scale; their elements, and products with them. See [`quantized`](crate::quantized) for the blocks of GGUF files.

use max::kernel::prelude::*;

/// An 8-bit float of 4 bits of exponent and 3 of fraction, without infinities (Micikevicius et al.: FP8 formats, 2022). Its bits
/// are those of an `f32` whose exponent is too small by 120.
#[kernel]
fn e4m3(q: u8) -> f32 {
    let bits = q as u32;
    let value = ((bits & 0x7f) << 20 | (bits & 0x80) << 24).bitcast::<f32>() * 1329227995784915872903807060280344576.0;
    if bits & 0x7f == 0x7f { f32::NAN } else { value }
}

/// Makes two kernels of a format. `elements` are the lanes of `count` groups of a row from group `first` on; `products` the sum of
/// products of a row with one of `x`, where what is the same for all rows of `x` comes first. `size` are the bytes of a group, and
/// `runs` its runs of 32 elements.
macro_rules! packed {
    (
        $name:literal,
        size |$group:ident| $size:expr;
        dequantize = $dequantize:ident $dequantize_op:literal;
        qmatmul = $qmatmul:ident $qmatmul_op:literal;
        elements |$row:ident, $first:ident, $count:ident, $bytes:ident, $runs:ident| $elements:expr;
        products |$weights:ident, $blocks:ident, $x:ident| { $($shared:tt)* } $products:expr;
    ) => {
        #[doc = concat!("The elements of rows of ", $name, ".")]
        #[kernel(op = $dequantize_op)]
        pub fn $dequantize(y: Out<f32, 2>, x: In<u8, 2>, #[param] group: i64) {
            let i = program_id(0);
            let $group = group;
            let $bytes = $size;
            let $runs = group / 32;
            let $row = x.row(i);
            let $count = $row.dim(0) / $bytes;
            let $first = 0;
            y.row(i).write($elements);
        }

        #[doc = concat!("`y = w · xᵀ` with the elements of rows of ", $name, ", whose bytes are read once for few rows of `x`.")]
        #[kernel(
            op = $qmatmul_op,
            tile(
                BN = 64, BM = 192, BK = 512,
                when(x.dim(0) <= 8, BN = 16, BM = 8, BK = 256),
                v2(BN = 8, BM = 16, BK = 256),
                gpu(BN = 16, BM = 64, BK = 128),
            )
        )]
        pub fn $qmatmul(y: Out<f32, 2>, w: In<u8, 2>, x: In<f32, 2>, #[param] group: i64) {
            let [n, m] = program_id();
            let begin = n * BN;
            let $group = group;
            let $bytes = $size;
            let $runs = group / 32;
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
                let $count = BK / group;
                for k in range(0, x.dim(1), BK) {
                    let $first = k / group;
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

packed! {
    "GPTQ: groups of integers of 4 bits, with a scale of half precision and what is 0 (Frantar et al., 2022)",
    size |group| 4 + group / 2;
    dequantize = dequantize_gptq "dequantize_gptq";
    qmatmul = qmatmul_gptq "qmatmul_gptq";
    elements |w, first, count, size, runs| w
        .segments::<16>(first * size + 4, [(count, size), (runs, 16), (2, 0)])
        .zip(
            w.numbers::<f16>(first * size, [(count, size), (runs, 0)])
                .zip(w.numbers::<u8>(first * size + 2, [(count, size), (runs, 0)]))
                .repeat_each::<32>(),
        )
        .zip(lanes(count * runs * 2).map(|half| (half % 2 * 4) as i32).repeat_each::<16>())
        .map(|((q, (scale, zero)), shift)| (scale as f32) * ((((q as i32) >> shift & 15) - (zero as i32)) as f32));
    products |w, blocks, x| {
        let groups = w
            .numbers::<f16>(0, [(blocks, size), (runs, 0)])
            .zip(w.numbers::<u8>(2, [(blocks, size), (runs, 0)]))
            .map(|(scale, zero)| (scale as f32, zero as i32))
            .repeat_each::<16>();
        let bytes = w.segments::<16>(4, [(blocks, size), (runs, 16)]).zip(groups);
    } bytes
        .zip(x.segments::<16>(0, [(blocks * runs, 32)]))
        .zip(x.segments::<16>(16, [(blocks * runs, 32)]))
        .fold_with(0.0, |sum, (((q, (scale, zero)), low), high)| {
            let product = (((q & 15) as i32 - zero) as f32) * low;
            (((q >> 4) as i32 - zero) as f32).mul_add(high, product).mul_add(scale, sum)
        })
        .sum();
}

packed! {
    "8-bit floats: groups with a scale in `f32`",
    size |group| 4 + group;
    dequantize = dequantize_float8_e4m3fn "dequantize_float8_e4m3fn";
    qmatmul = qmatmul_float8_e4m3fn "qmatmul_float8_e4m3fn";
    elements |w, first, count, size, runs| w
        .segments::<32>(first * size + 4, [(count, size), (runs, 32)])
        .zip(w.numbers::<f32>(first * size, [(count, size), (runs, 0)]).repeat_each::<32>())
        .map(|(q, scale)| e4m3(q) * scale);
    products |w, blocks, x| {
        let scales = w.numbers::<f32>(0, [(blocks, size), (runs, 0)]).repeat_each::<32>();
        let bytes = w.segments::<32>(4, [(blocks, size), (runs, 32)]).zip(scales);
    } bytes.zip(x).fold_with(0.0, |sum, ((q, scale), x)| (e4m3(q) * scale).mul_add(x, sum)).sum();
}
