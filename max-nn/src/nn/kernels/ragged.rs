//! Ops of ragged batches whose groups have matrices of their own: the tokens of experts, and sequences with adapters of low rank. By
//! MAX's names, as part of [`kernels`](super). Group `g` has the rows `offsets[g]..offsets[g + 1]`.

use max_core::dtype::DType;
use max_core::graph::{Dim, DimSlice, GraphError, Parameters, TensorType};

use super::{KeysOrValues, kv_cache_ragged_radd};
use crate::Result;
use crate::functional as f;
use crate::nn::kv_cache::PagedKvCacheValues;
use crate::tensor::Tensor;

/// Tokens in the order of their experts: see [`moe_create_indices`].
#[derive(Clone)]
pub struct MoeIndices {
    /// The token in each place, `int32`, `[tokens]`: those of an expert lie behind each other, in ascending order.
    pub token_expert_order: Tensor,
    /// Where the tokens of each expert begin, and where those of the last one end: `uint32`, `[experts + 1]`.
    pub expert_start_indices: Tensor,
    /// The place of each token, `int32`, `[tokens]`.
    pub restore_token_order: Tensor,
    /// The expert of each group, `int32`, `[experts]`: those with tokens in ascending order, then -1.
    pub expert_ids: Tensor,
    /// The most tokens of an expert, and how many experts have tokens: `uint32`, `[2]`.
    pub expert_usage_stats: Tensor,
}

/// Puts tokens in the order of their experts, of which `topk_ids` has one for each: integers `[tokens]` below `num_local_experts`. Where
/// a token goes through several experts, it is one token for each.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::kernels::moe_create_indices;
/// use max::tensor::Tensor;
///
/// let indices = moe_create_indices(&Tensor::constant([2i32, 0, 2, 3])?, 4)?;
/// assert_eq!(indices.token_expert_order.to_vec::<i32>()?, [1, 0, 2, 3]);
/// assert_eq!(indices.expert_start_indices.to_vec::<u32>()?, [0, 1, 3, 4, 4]);
/// assert_eq!(indices.expert_ids.to_vec::<i32>()?, [0, 2, 3, -1]);
/// assert_eq!(indices.restore_token_order.to_vec::<i32>()?, [1, 0, 2, 3]);
/// assert_eq!(indices.expert_usage_stats.to_vec::<u32>()?, [2, 3]);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// When `topk_ids` is not of integers `[tokens]`.
#[track_caller]
pub fn moe_create_indices(topk_ids: &Tensor, num_local_experts: usize) -> Result<MoeIndices> {
    const OP: &str = "moe_create_indices";
    if topk_ids.rank() != 1 || !topk_ids.dtype().is_integral() {
        return Err(GraphError::argument(OP, "topk_ids", topk_ids.ty(), "integers, [tokens]"));
    }
    let (tokens, experts, device) = (topk_ids.shape()[0].clone(), Dim::from(num_local_experts), topk_ids.device());
    let ids = f::unsqueeze(f::cast(topk_ids, DType::I32)?, 0)?;
    let ty = |dtype, size: &Dim| TensorType::new(dtype, [Dim::from(1), size.clone()], device);
    let types = [
        ty(DType::I32, &tokens),
        ty(DType::U32, &(&experts + 1)),
        ty(DType::I32, &tokens),
        ty(DType::I32, &experts),
        ty(DType::U32, &Dim::from(2)),
    ];
    let results = f::custom(OP, device, [&ids], types, ())?;
    let [order, starts, restore, ids, usage] = five(OP, results)?;
    Ok(MoeIndices {
        token_expert_order: order,
        expert_start_indices: starts,
        restore_token_order: restore,
        expert_ids: ids,
        expert_usage_stats: usage,
    })
}

/// The rows of each group times the transpose of its matrix, `[rows, n]` of the dtype of `hidden_states`, `[rows, k]`: the feed-forward
/// layers of experts. `weight` is `[experts, n, k]`, and group `g`, which begins at `expert_start_indices[g]`, `uint32`
/// `[groups + 1]`, has the matrix `expert_ids[g]`, `int32` `[groups]`. Rows of a group without a matrix are 0.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::kernels::grouped_matmul_ragged;
/// use max::tensor::Tensor;
///
/// let x = Tensor::constant([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]])?;
/// let weight = Tensor::constant([[[1.0f32, 0.0]], [[0.0, 10.0]]])?;
/// let (starts, ids) = (Tensor::constant([0u32, 1, 3])?, Tensor::constant([1i32, 0])?);
/// assert_eq!(grouped_matmul_ragged(&x, &weight, &starts, &ids)?.to_vec::<f32>()?, [20.0, 3.0, 5.0]);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// When the types do not fit.
#[track_caller]
pub fn grouped_matmul_ragged(
    hidden_states: &Tensor,
    weight: &Tensor,
    expert_start_indices: &Tensor,
    expert_ids: &Tensor,
) -> Result<Tensor> {
    grouped("grouped_matmul_ragged", hidden_states, weight, expert_start_indices, expert_ids)
}

#[track_caller]
fn grouped(op: &'static str, x: &Tensor, weight: &Tensor, offsets: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (x_shape, w_shape) = (x.shape(), weight.shape());
    let ([rows, k], [_, n, depth]) = (x_shape.dims(), w_shape.dims()) else {
        let expected = format!("[matrices, n, k] beside rows, [rows, k]; these are {}", x.ty());
        return Err(GraphError::argument(op, "weight", weight.ty(), expected));
    };
    if k != depth || x.dtype() != weight.dtype() {
        let expected = format!("of the dtype and the last dim of {}", x.ty());
        return Err(GraphError::argument(op, "weight", weight.ty(), expected));
    }
    for (name, value, dtype) in [("offsets", offsets, DType::U32), ("ids", ids, DType::I32)] {
        if value.rank() != 1 || value.dtype() != dtype {
            return Err(GraphError::argument(op, name, value.ty(), format!("{dtype} of one axis")));
        }
    }
    let ty = TensorType::new(x.dtype(), [rows.clone(), n.clone()], x.device());
    let results = f::custom("grouped_matmul_ragged", ty.device, [x, weight, offsets, ids], &ty, ())?;
    results.into_iter().next().ok_or_else(|| GraphError::argument(op, "results", 0, "one"))
}

/// Rows of sequences times the transpose of their adapters' matrix, either of the two (Chen et al.: Punica, 2023): `input` is `[rows, in]`,
/// `lora` `[adapters, out, in]`, and sequence `s`, which begins at `input_row_offsets[s]`, `uint32` `[sequences + 1]`, has the adapter
/// `lora_ids[s]`, `int32` `[sequences]`; with -1 its rows are 0. Adapters of a lower rank than others have rows of 0. A `bias` is
/// `[adapters, out]`.
///
/// # Errors
/// When the types do not fit.
#[track_caller]
pub fn sgmv_kernel(
    input: &Tensor,
    lora: &Tensor,
    lora_ids: &Tensor,
    input_row_offsets: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    const OP: &str = "sgmv_kernel";
    let y = grouped(OP, input, lora, input_row_offsets, lora_ids)?;
    let Some(bias) = bias else { return Ok(y) };
    // A bias is a matrix of one column, for rows of 1.
    let ones = f::broadcast_to(Tensor::ones([1, 1])?.cast(y.dtype())?, [y.shape()[0].clone(), Dim::from(1)])?;
    f::add(y, grouped(OP, &ones, &f::unsqueeze(bias, -1)?, input_row_offsets, lora_ids)?)
}

/// What adapters of low rank add to the rows of sequences, `(x Aᵀ) Bᵀ`: `lora_a` is `[adapters, rank, in]` and `lora_b`
/// `[adapters, out, rank]`, each scaled already; the rest is as in [`sgmv_kernel`].
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::kernels::sgmv_lora_kernel;
/// use max::tensor::Tensor;
///
/// let x = Tensor::constant([[1.0f32, 2.0], [3.0, 4.0]])?;
/// let (a, b) = (Tensor::constant([[[1.0f32, 1.0]]])?, Tensor::constant([[[2.0f32], [3.0]]])?);
/// // The first sequence has no adapter.
/// let (ids, offsets) = (Tensor::constant([-1i32, 0])?, Tensor::constant([0u32, 1, 2])?);
/// assert_eq!(sgmv_lora_kernel(&x, &a, &b, &ids, &offsets, None)?.to_vec::<f32>()?, [0.0, 0.0, 14.0, 21.0]);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// When the types do not fit.
#[track_caller]
pub fn sgmv_lora_kernel(
    input: &Tensor,
    lora_a: &Tensor,
    lora_b: &Tensor,
    lora_ids: &Tensor,
    grouped_row_offsets: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let inner = sgmv_kernel(input, lora_a, lora_ids, grouped_row_offsets, None)?;
    sgmv_kernel(&inner, lora_b, lora_ids, grouped_row_offsets, bias)
}

/// What adapters add to queries, `[rows, q_dim]`; what they add to keys and values is added to those of the new tokens in a layer of
/// the cache. `lora_a` is `[adapters, 3 · rank, in]`: the matrices of queries, keys and values. `lora_b` is
/// `[adapters, q_dim + 2 · kv_dim, rank]`. Sequences are those of the cache.
///
/// # Errors
/// When the types do not fit, or there is no such layer.
#[track_caller]
pub fn sgmv_qkv_lora_kernel(
    kv_collection: &PagedKvCacheValues,
    layer: usize,
    input: &Tensor,
    lora_a: &Tensor,
    lora_b: &Tensor,
    lora_ids: &Tensor,
) -> Result<Tensor> {
    const OP: &str = "sgmv_qkv_lora_kernel";
    let [keys, _] = kv_collection.layer(layer)?;
    let (a_shape, b_shape) = (lora_a.shape(), lora_b.shape());
    let ([_, ranks, _], [_, all, rank], [_, heads, _, size]) =
        (a_shape.dims(), b_shape.dims(), keys.ty().shape().dims())
    else {
        let expected = "[adapters, 3 · rank, in] beside `lora_b`, [adapters, q_dim + 2 · kv_dim, rank]";
        return Err(GraphError::argument(OP, "lora_a", lora_a.ty(), expected));
    };
    let (kv_dim, sizes) = (heads * size, [ranks, all, rank].map(Dim::as_static));
    let (Some(kv), [Some(ranks), Some(all), Some(rank)]) = (kv_dim.as_static(), sizes) else {
        return Err(GraphError::argument(OP, "lora_b", lora_b.ty(), "of static size"));
    };
    if ranks != 3 * rank || all < 2 * kv {
        let expected = format!("[adapters, q_dim + {}, rank] beside {}", 2 * kv, lora_a.ty());
        return Err(GraphError::argument(OP, "lora_b", lora_b.ty(), expected));
    }
    let offsets = Tensor::from(&kv_collection.input_row_offsets);
    let inner = sgmv_kernel(input, lora_a, lora_ids, &offsets, None)?;
    let q = all - 2 * kv;
    let added = |part: i64, rows: std::ops::Range<i64>| {
        let inner = f::slice_tensor(&inner, [DimSlice::from(0i64..), DimSlice::range(part * rank, (part + 1) * rank)])?;
        let b = f::slice_tensor(lora_b, [DimSlice::from(0i64..), DimSlice::range(rows.start, rows.end)])?;
        sgmv_kernel(&inner, &b, lora_ids, &offsets, None)
    };
    for (part, which) in [(1, KeysOrValues::Keys), (2, KeysOrValues::Values)] {
        let x = added(part, q + (part - 1) * kv..q + part * kv)?;
        let by_head = f::reshape(&x, [x.shape()[0].clone(), heads.clone(), size.clone()])?;
        kv_cache_ragged_radd(kv_collection, layer, which, &by_head, 0)?;
    }
    added(0, 0..q)
}

/// The rows of two ragged batches of equally many groups, of each group those of `a` and then those of `b`, and where groups begin: `a` is
/// `[rows, ..]`, `b` `[other rows, ..]`, and both offsets are `uint32`, `[groups + 1]`.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::nn::kernels::merge_ragged_tensors;
/// use max::tensor::Tensor;
///
/// let (a, b) = (Tensor::constant([1i32, 2, 3, 4, 5, 6])?, Tensor::constant([7i32, 8, 9, 10])?);
/// let (of_a, of_b) = (Tensor::constant([0u32, 2, 6])?, Tensor::constant([0u32, 3, 4])?);
/// let (merged, offsets) = merge_ragged_tensors(&a, &of_a, &b, &of_b)?;
/// assert_eq!(merged.to_vec::<i32>()?, [1, 2, 7, 8, 9, 3, 4, 5, 6, 10]);
/// assert_eq!(offsets.to_vec::<u32>()?, [0, 5, 10]);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// When the types do not fit.
#[track_caller]
pub fn merge_ragged_tensors(
    a: &Tensor,
    a_row_offsets: &Tensor,
    b: &Tensor,
    b_row_offsets: &Tensor,
) -> Result<(Tensor, Tensor)> {
    const OP: &str = "merge_ragged_tensors";
    let (a_shape, b_shape) = (a.shape(), b.shape());
    let ([a_rows, a_rest @ ..], [b_rows, b_rest @ ..]) = (a_shape.dims(), b_shape.dims()) else {
        return Err(GraphError::argument(OP, "a", a.ty(), "of one axis or more, and so `b`"));
    };
    if a_rest != b_rest || a.dtype() != b.dtype() {
        return Err(GraphError::argument(OP, "b", b.ty(), format!("rows of the dtype and shape of {}", a.ty())));
    }
    for (name, offsets) in [("a_row_offsets", a_row_offsets), ("b_row_offsets", b_row_offsets)] {
        if offsets.rank() != 1 || offsets.dtype() != DType::U32 || offsets.shape() != a_row_offsets.shape() {
            let expected = "uint32, [groups + 1], as many as of the other batch";
            return Err(GraphError::argument(OP, name, offsets.ty(), expected));
        }
    }
    let elements = a_rest.iter().fold(Dim::from(1), |product, dim| product * dim);
    let flat = |x: &Tensor, rows: &Dim| f::reshape(x, [rows.clone(), elements.clone()]);
    let (flat_a, flat_b) = (flat(a, a_rows)?, flat(b, b_rows)?);
    let ty = TensorType::new(a.dtype(), [a_rows + b_rows, elements], a.device());
    let operands = [&flat_a, &flat_b, a_row_offsets, b_row_offsets];
    let results = f::custom(OP, ty.device, operands, &ty, Parameters::new())?;
    let Some(merged) = results.into_iter().next() else {
        return Err(GraphError::argument(OP, "results", 0, "one"));
    };
    let mut dims = vec![a_rows + b_rows];
    dims.extend(a_rest.iter().cloned());
    Ok((f::reshape(merged, dims)?, f::add(a_row_offsets, b_row_offsets)?))
}

/// The five results of a kernel, without their first axis.
#[track_caller]
fn five(op: &'static str, results: Vec<Tensor>) -> Result<[Tensor; 5]> {
    let flat = results.iter().map(|result| f::squeeze(result, 0)).collect::<Result<Vec<_>>>()?;
    flat.try_into().map_err(|flat: Vec<Tensor>| GraphError::argument(op, "results", flat.len(), "five"))
}
