//! Matrix products.

use max::kernel::prelude::*;

/// Makes a function a kernel of products of floats: the sizes of the tiles of all of them stand here. `a.dim(rows)` and
/// `b.dim(columns)` are those of the result. On GPUs, a tile for one row has steps along K of as many bytes for each dtype.
macro_rules! product {
    (
        op = $op:literal, rows = $rows:literal, columns = $columns:literal, few_matrices = [$($few_matrices:tt)*], $($kernel:tt)*
    ) => {
        #[kernel(
            op = $op,
            dtypes(T = [f16, bf16, f32, f64]),
            tile(
                BM = 128, BN = 128, BK = 1024,
                // Few columns are taken over all of K, however few rows there are.
                when(a.dim($rows) <= 8, b.dim($columns) <= 256, BM = 8, BN = 64),
                when(a.dim($rows) <= 32, b.dim($columns) <= 256, BM = 32, BN = 32),
                when(a.dim($rows) <= 64, b.dim($columns) <= 128, BM = 32, BN = 64),
                // Tiles of 128 rows would be too few to be divided evenly among threads.
                when($($few_matrices)* a.dim($rows) <= 128, b.dim($columns) <= 256, BM = 32, BN = 64),
                when($($few_matrices)* a.dim($rows) <= 512, b.dim($columns) <= 64, BM = 32, BN = 64),
                when(b.dim($columns) <= 32, BM = 128, BN = 32),
                when(b.dim($columns) <= 256, BM = 128, BN = 64),
                // Of few rows B is read in place: by rows as long as prefetchers want them, unless there are few columns to divide.
                when(a.dim($rows) <= 8, b.dim($columns) <= 768, BM = 8, BN = 128),
                when(a.dim($rows) <= 8, b.dim($columns) <= 2048, BM = 8, BN = 512, BK = 32),
                when(a.dim($rows) <= 8, BM = 8, BN = 1024, BK = 32),
                when(a.dim($rows) <= 16, b.dim($columns) <= 768, BM = 16, BN = 128),
                when(a.dim($rows) <= 16, BM = 16, BN = 512, BK = 32),
                when(b.dim($columns) <= 768, BM = 64, BN = 96),
                when(a.dim($rows) <= 32, BM = 32, BN = 512, BK = 32),
                v4(BM = 128, BN = 192),
                v2(BM = 4, BN = 16),
                gpu(BM = 64, BN = 64, BK = 32),
                gpu(a.dim($rows) <= 1, T = [f16, bf16], BM = 1, BN = 32, BK = 256),
                gpu(a.dim($rows) <= 1, T = [f32], BM = 1, BN = 32, BK = 128),
                gpu(a.dim($rows) <= 1, T = [f64], BM = 1, BN = 32, BK = 64),
                gpu(a.dim($rows) <= 8, T = [f16, bf16], BM = 8, BN = 32, BK = 256),
                gpu(a.dim($rows) <= 8, T = [f32], BM = 8, BN = 32, BK = 128),
                gpu(a.dim($rows) <= 8, T = [f64], BM = 8, BN = 32, BK = 64),
                sm_90a(T = [f16, bf16], BM = 128, BN = 256, BK = 64),
                sm_90a(T = [f16, bf16], BM = 128, BN = 128, BK = 64),
                gpu(T = [f32], BM = 128, BN = 128, BK = 32),
                gpu(a.dim($rows) <= 16, T = [f16, bf16], BM = 16, BN = 64, BK = 128),
                gpu(a.dim($rows) <= 64, T = [f16, bf16], BM = 64, BN = 32, BK = 64),
            ),
            // Such as the weight `[out, in]` of a linear layer: few rows are dot products along K, which is read on.
            transposed(
                when(a.dim($rows) <= 8, b.dim($columns) <= 768, BN = 64, BK = 2048),
                when(a.dim($rows) <= 8, b.dim($columns) <= 2048, BN = 64, BK = 2048),
                when(a.dim($rows) <= 8, BN = 64, BK = 2048),
                when(a.dim($rows) <= 16, b.dim($columns) <= 768, BM = 64, BN = 96),
                when(a.dim($rows) <= 16, BM = 128, BN = 192, BK = 1024),
                when(a.dim($rows) <= 32, BM = 128, BN = 192, BK = 1024),
                gpu(a.dim($rows) <= 1, T = [f16, bf16], BN = 16, BK = 512),
                gpu(a.dim($rows) <= 1, T = [f32], BN = 16, BK = 256),
                gpu(a.dim($rows) <= 1, T = [f64], BN = 16, BK = 128),
            )
        )]
        $($kernel)*
    };
}

product! {
    op = "matmul", rows = 0, columns = 1, few_matrices = [],
    /// `c = a · b` of matrices; products of half types are added in `f32`, of others in their own dtype.
    pub fn matmul<T: Float>(c: Out<T, 2>, a: In<T, 2>, b: In<T, 2>) {
        let [m, n] = program_id();
        let mut acc = Tile::<T, BM, BN>::zeros();
        for k in range(0, a.dim(1), BK) {
            acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
        }
        c.tile::<BM, BN>(m, n).write(acc);
    }
}

product! {
    op = "batch_matmul", rows = 1, columns = 2, few_matrices = [a.dim(0) <= 4,],
    /// `c[i] = a[i] · b[i]` of equally many matrices.
    pub fn batch_matmul<T: Float>(c: Out<T, 3>, a: In<T, 3>, b: In<T, 3>) {
        let [i, m, n] = program_id();
        let a = a.select(i);
        let b = b.select(i);
        let mut acc = Tile::<T, BM, BN>::zeros();
        for k in range(0, a.dim(1), BK) {
            acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
        }
        c.select(i).tile::<BM, BN>(m, n).write(acc);
    }
}

/// `c = a · b` of matrices of 8-bit integers, signed or not. Products are added in 32 bits, which wrap around.
#[kernel(
    op = "matmul_integer",
    dtypes(T = [i8, u8], U = [i8, u8]),
    tile(
        BM = 96, BN = 256, BK = 512,
        when(b.dim(1) <= 768, BN = 64),
        v2(BM = 4, BN = 64, BK = 64),
        gpu(BM = 64, BN = 64, BK = 64),
        gpu(a.dim(0) <= 1, BM = 1, BN = 64, BK = 256),
        gpu(a.dim(0) <= 4, BM = 4, BN = 64, BK = 256),
        gpu(T = [i8, u8], BM = 128, BN = 128, BK = 64),
    )
)]
pub fn matmul_integer<T: Int, U: Int>(c: Out<i32, 2>, a: In<T, 2>, b: In<U, 2>) {
    let [m, n] = program_id();
    let mut acc = Tile::<i32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BK, BN>(k, n), acc);
    }
    c.tile::<BM, BN>(m, n).write(acc);
}

/// `c = (input · weightᵀ) * input_scale * weight_scale` of matrices of 8-bit floats, each divided by its scale when it was
/// quantized. Products are added in `f32`, and the result is rounded to `bf16`.
#[kernel(
    op = "matmul_static_scaled_float8",
    dtypes(T = [f8_e4m3fn, f8_e5m2]),
    tile(
        BM = 128, BN = 128, BK = 1024,
        when(input.dim(0) <= 8, BM = 8, BK = 256),
        gpu(BM = 64, BN = 64, BK = 64),
        sm_90a(T = [f8_e4m3fn, f8_e5m2], BM = 128, BN = 128, BK = 128),
    )
)]
pub fn matmul_static_scaled_float8<T: Scalar>(
    c: Out<bf16, 2>,
    input: In<T, 2>,
    weight: In<T, 2>,
    input_scale: In<f32, 1>,
    weight_scale: In<f32, 1>,
) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, input.dim(1), BK) {
        acc = dot(input.tile::<BM, BK>(m, k), weight.tile::<BN, BK>(n, k).t(), acc);
    }
    let scale = input_scale.at(0) * weight_scale.at(0);
    c.tile::<BM, BN>(m, n).write(acc.map(|x| x * scale).cast());
}

/// `c = (a · bᵀ) * a_scales * b_scales` of matrices of 8-bit floats, where each row of both has a scale. Products are added in `f32`.
#[kernel(
    op = "matmul_dynamic_scaled_float8",
    dtypes(T = [f8_e4m3fn, f8_e5m2]),
    tile(
        BM = 128, BN = 128, BK = 1024,
        when(a.dim(0) <= 8, BM = 8, BK = 256),
        gpu(BM = 64, BN = 64, BK = 64),
        sm_90a(T = [f8_e4m3fn, f8_e5m2], BM = 128, BN = 128, BK = 128),
    )
)]
pub fn matmul_dynamic_scaled_float8<T: Scalar>(
    c: Out<f32, 2>,
    a: In<T, 2>,
    b: In<T, 2>,
    a_scales: In<f32, 1>,
    b_scales: In<f32, 1>,
) {
    let [m, n] = program_id();
    let mut acc = Tile::<f32, BM, BN>::zeros();
    for k in range(0, a.dim(1), BK) {
        acc = dot(a.tile::<BM, BK>(m, k), b.tile::<BN, BK>(n, k).t(), acc);
    }
    let (row, column) = (m * BM, n * BN);
    c.tile::<BM, BN>(m, n).write(acc.map_indexed(|r, c, x| x * a_scales.at(row + r) * b_scales.at(column + c)));
}
