//! What built-in ops tell the engine of the kernels that they run, which no signature says: which operand holds indices, and how
//! often a product multiplies and adds.

/// Indices among the operands of a kernel, in the order of its signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Indices {
    /// The operand that holds them, of `int32` or `int64`.
    pub operand: usize,
    /// The operand, and the axis of it, that they are of: `-n` to `n - 1` are inside.
    pub of: (usize, usize),
}

/// The indices among the operands of a kernel, if it has any that a program gave.
pub(crate) fn indices(kernel: &str) -> Option<Indices> {
    match kernel {
        "gather" => Some(Indices { operand: 2, of: (1, 1) }),
        "scatter" | "scatter_reduce" => Some(Indices { operand: 3, of: (1, 1) }),
        _ => None,
    }
}

/// How often a kernel multiplies and adds, by the dims of its operands, in the order of its signature, and its parameters.
pub(crate) type Operations = fn(dims: &[&[i64]], params: &[u64]) -> Option<u64>;

/// That of a kernel that multiplies matrices.
pub(crate) fn operations(kernel: &str) -> Option<Operations> {
    match kernel {
        "matmul" | "batch_matmul" | "matmul_transposed" | "batch_matmul_transposed" | "matmul_integer" => Some(of_rows),
        "matmul_static_scaled_float8" | "matmul_dynamic_scaled_float8" => Some(of_rows),
        "qmatmul_q4_0" | "qmatmul_q8_0" | "qmatmul_q4_k" | "qmatmul_q5_k" | "qmatmul_q6_k" => Some(|dims, _| {
            let [result, _, x, ..] = dims else { return None };
            product(result)?.checked_mul(2)?.checked_mul(at(x, 1)?)
        }),
        // Scores, and as many products with the values.
        "attention" => Some(|dims, _| {
            let [_, queries, keys, ..] = dims else { return None };
            product(queries)?.checked_mul(4)?.checked_mul(at(keys, 1)?)
        }),
        // `[groups · taps, taps, taps, channels, features]`, of which a result meets one group.
        "conv" => Some(|dims, params| {
            let ([result, _, filter], groups) = (dims, params.first()?) else { return None };
            let taps = product(filter.get(..4)?)?.checked_div(*groups)?;
            product(result)?.checked_mul(2)?.checked_mul(taps)
        }),
        _ => None,
    }
}

/// Each number of the result is a sum over a row of the left operand.
fn of_rows(dims: &[&[i64]], _: &[u64]) -> Option<u64> {
    let [result, left, ..] = dims else { return None };
    product(result)?.checked_mul(2)?.checked_mul(at(left, left.len().checked_sub(1)?)?)
}

fn product(dims: &[i64]) -> Option<u64> {
    dims.iter().try_fold(1_u64, |all, dim| all.checked_mul(u64::try_from(*dim).ok()?))
}

fn at(dims: &[i64], axis: usize) -> Option<u64> {
    u64::try_from(*dims.get(axis)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_multiply_and_add() {
        let of = |kernel: &str, dims: &[&[i64]], params: &[u64]| operations(kernel).and_then(|of| of(dims, params));
        assert_eq!(of("matmul", &[&[2, 5], &[2, 3], &[3, 5]], &[]), Some(2 * 2 * 3 * 5));
        assert_eq!(of("batch_matmul_transposed", &[&[7, 2, 5], &[7, 2, 3], &[7, 5, 3]], &[]), Some(2 * 7 * 2 * 3 * 5));
        assert_eq!(
            of("attention", &[&[4, 2, 8], &[4, 2, 8], &[1, 6, 8], &[1, 6, 8]], &[]),
            Some(2 * 2 * 4 * 2 * 6 * 8)
        );
        // 3 by 3 taps of 4 channels in each of two groups.
        assert_eq!(of("conv", &[&[2, 5, 6], &[2, 5, 1, 5, 4], &[2, 3, 3, 4, 6]], &[2]), Some(2 * 60 * 9 * 4));
        assert_eq!(of("conv", &[&[2, 5, 6], &[2, 5, 1, 5, 4], &[2, 3, 3, 4, 6]], &[0]), None);
        assert_eq!(of("matmul", &[&[i64::MAX, 5], &[i64::MAX, 3], &[3, 5]], &[]), None);
        assert_eq!(of("softmax", &[&[2, 5], &[2, 5]], &[]), None);
    }
}
