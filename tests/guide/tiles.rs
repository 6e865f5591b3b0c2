//! The code of `docs/guide/04-tiles.md`.

use max::prelude::*;

use crate::run_as;

/// `relu(a · b + bias)`.
#[kernel(
    op = "guide_linear_relu",
    dtypes(T = [f32]),
    tile(BM = 4, BN = 64, BK = 256, v2(BN = 16), v3(BN = 32), gpu(BM = 64, BN = 64, BK = 32))
)]
fn linear_relu<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>, bias: In<T, 1>) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
    }
    let first = n * BN;
    let y = acc.map_indexed(|_, column, v| (v + (bias.at(first + column) as f32)).max(0));
    c.tile::<BM, BN>(m, n).write(y.cast());
}

/// Softmax of rows of at most 64 elements, eight rows at a time.
#[kernel(op = "guide_softmax_64", dtypes(T = [f32]), tile(R = 8, C = 64))]
fn softmax_64<T: Float>(y: Out<T, 2>, x: In<T, 2>) {
    let i = program_id(0);
    let n = x.dim(1);
    let v = x.tile::<R, C>(i, 0).load().map_indexed(|_, c, v| if c < n { v } else { T::NEG_INFINITY });
    let e = (v - v.row_max()).exp();
    y.rows::<R, C>(i).write(e / e.row_sum());
}

/// `y = w · xᵀ` with 8-bit weights and activations, each 32 of which have a scale.
#[kernel(op = "guide_scaled", tile(BM = 16, BN = 16, BK = 256, BG = 8))]
fn scaled(y: Out<f32, 2>, w: In<u8, 2>, of_w: In<f32, 2>, x: In<u8, 2>, of_x: In<f32, 2>) {
    let [n, m] = program_id();
    let mut acc = Tile::<f32, BN, BM>::zeros();
    for k in range(0, x.dim(1), BK) {
        let count = (x.dim(1) - k).min(BK);
        let rows = ScaledTile::<BN, BK, BG>::from_rows(|i| {
            let row = n * BN + i;
            let scales = of_w.row(row).segments::<1>(k / 32, [(count / 32, 1)]);
            (w.row(row).words::<8>(k, [(count / 32, 32)]), scales)
        });
        acc = dot_scaled(rows, x.tile::<BM, BK>(m, k).t(), of_x.tile::<BM, BG>(m, k / 32).t(), acc);
    }
    y.tile::<BN, BM>(n, m).write(acc);
}

/// `y = w · xᵀ` with weights of 7 bits, each 32 of which have a scale of 8 bits, and each 256 a factor.
#[kernel(op = "guide_two_level", tile(BM = 8, BN = 16, BK = 1024, BG = 32, BS = 4))]
fn two_level(y: Out<f32, 2>, w: In<u8, 2>, of_w: In<i8, 2>, of_blocks: In<f32, 2>, x: In<u8, 2>, of_x: In<f32, 2>) {
    let [n, m] = program_id();
    let mut acc = Tile::<f32, BN, BM>::zeros();
    for k in range(0, x.dim(1), BK) {
        let count = (x.dim(1) - k).min(BK);
        let rows = ScaledTile::<BN, BK, BG>::from_rows(|i| {
            let row = n * BN + i;
            let words = w.row(row).words::<8>(k, [(count / 32, 32)]).map(|word| word as u32);
            let scales = of_w.row(row).segments::<1>(k / 32, [(count / 32, 1)]);
            let factors = of_blocks.row(row).segments::<1>(k / 256, [((count + 255) / 256, 1)]);
            (words, scales.two_level(factors.repeat_each::<8>()))
        });
        acc = dot_scaled(rows, x.tile::<BM, BK>(m, k).t(), of_x.tile::<BM, BS>(m, k / 256).t(), acc);
    }
    y.tile::<BN, BM>(n, m).write(acc);
}

#[test]
fn products_with_a_bias() {
    let (m, k, n) = (13, 300, 70);
    let number = |i: usize| (i * 5 % 11) as f32 - 5.0;
    let a: Vec<f32> = (0..m * k).map(number).collect();
    let b: Vec<f32> = (0..k * n).map(number).collect();
    let bias: Vec<f32> = (0..n).map(|i| 100.0 * number(i)).collect();
    let operands = [(&a, vec![m, k]), (&b, vec![k, n]), (&bias, vec![n])];
    let operands = operands.map(|(x, shape)| Tensor::from_slice(x, shape).unwrap());
    let y = &run_as("guide_linear_relu", &operands, &[(DType::F32, &[m as i64, n as i64])], ())[0];
    for (at, y) in y.as_slice::<f32>().unwrap().iter().enumerate() {
        let (i, j) = (at / n, at % n);
        let sum: f32 = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
        assert_eq!(*y, (sum + bias[j]).max(0.0), "at {i}, {j}");
    }
}

#[test]
fn rows_in_a_tile() {
    let x: Vec<f32> = (0..30).map(|i| (i as f32).sin()).collect();
    let x = Tensor::from_slice(&x, [3, 10]).unwrap();
    let y = &run_as("guide_softmax_64", std::slice::from_ref(&x), &[(DType::F32, &[3, 10])], ())[0];
    for (x, y) in x.as_slice::<f32>().unwrap().chunks(10).zip(y.as_slice::<f32>().unwrap().chunks(10)) {
        let sum: f32 = x.iter().map(|v| v.exp()).sum();
        assert!(x.iter().zip(y).all(|(x, y)| (y - x.exp() / sum).abs() < 1e-6), "{y:?}");
    }
}

#[test]
fn scaled_integers() {
    let (n, m, k) = (21, 18, 320);
    let byte = |i: usize, f: usize| (i * f + i / 9) as u8;
    let w: Vec<u8> = (0..n * k).map(|i| byte(i, 37)).collect();
    let x: Vec<u8> = (0..m * k).map(|i| byte(i, 91)).collect();
    let of_w: Vec<f32> = (0..n * k / 32).map(|i| (i % 7) as f32 / 8.0).collect();
    let of_x: Vec<f32> = (0..m * k / 32).map(|i| (i % 5) as f32 / 4.0 - 0.5).collect();
    let operands = [
        Tensor::from_slice(&w, [n, k]).unwrap(),
        Tensor::from_slice(&of_w, [n, k / 32]).unwrap(),
        Tensor::from_slice(&x, [m, k]).unwrap(),
        Tensor::from_slice(&of_x, [m, k / 32]).unwrap(),
    ];
    let y = &run_as("guide_scaled", &operands, &[(DType::F32, &[n as i64, m as i64])], ())[0];
    for (at, y) in y.as_slice::<f32>().unwrap().iter().enumerate() {
        let (i, j) = (at / m, at % m);
        let left = |l: usize| f32::from(w[i * k + l] as i8) * of_w[(i * k + l) / 32];
        let right = |l: usize| f32::from(x[j * k + l] as i8) * of_x[(j * k + l) / 32];
        let sum: f32 = (0..k).map(|l| left(l) * right(l)).sum();
        let scale: f32 = (0..k).map(|l| (left(l) * right(l)).abs()).sum();
        assert!((y - sum).abs() <= scale * 1e-5, "{y}, not {sum}, at {i}, {j}");
    }
}

#[test]
fn products_with_scales_of_two_levels() {
    // Rows of a block, of some, of more than a tile has, and with groups behind the last whole block.
    for (m, n, k) in [(1, 19, 256_usize), (1, 5, 1184), (3, 19, 1184), (8, 17, 2304), (9, 3, 32), (2, 4, 1024)] {
        let blocks = k.div_ceil(256);
        let bytes = |count: usize, step: usize| (0..count).map(|i| (i * step % 251) as u8).collect::<Vec<_>>();
        // So small that all sums are exact, whatever their order.
        let w: Vec<u8> = bytes(n * k, 37).into_iter().map(|byte| byte % 128).collect();
        let of_w: Vec<i8> = bytes(n * k / 32, 53).into_iter().map(|byte| (byte % 17) as i8 - 8).collect();
        let x: Vec<u8> = bytes(m * k, 91).into_iter().map(|byte| (byte % 7).wrapping_sub(3)).collect();
        let of_blocks: Vec<f32> = (0..n * blocks).map(|i| (1 + i % 2) as f32).collect();
        let of_x: Vec<f32> = (0..m * blocks).map(|i| 0.5_f32.powi((i / blocks % 3) as i32)).collect();
        let operands = [
            Tensor::from_slice(&w, [n, k]).unwrap(),
            Tensor::from_slice(&of_w, [n, k / 32]).unwrap(),
            Tensor::from_slice(&of_blocks, [n, blocks]).unwrap(),
            Tensor::from_slice(&x, [m, k]).unwrap(),
            Tensor::from_slice(&of_x, [m, blocks]).unwrap(),
        ];
        let y = &run_as("guide_two_level", &operands, &[(DType::F32, &[n as i64, m as i64])], ())[0];
        for (at, y) in y.as_slice::<f32>().unwrap().iter().enumerate() {
            let (i, j) = (at / m, at % m);
            let left = |l: usize| {
                let scale = f64::from(of_w[(i * k + l) / 32]) * f64::from(of_blocks[i * blocks + l / 256]);
                f64::from(w[i * k + l]) * scale
            };
            let term = |l: usize| left(l) * f64::from(x[j * k + l] as i8) * f64::from(of_x[j * blocks + l / 256]);
            assert_eq!(f64::from(*y), (0..k).map(term).sum::<f64>(), "at {i}, {j} of {m}, {n}, {k}");
        }
    }
}
