//! [`ShardingStrategy`]: how a weight is divided among devices.

use std::ops::Range;

use super::Weight;
use crate::graph::symbolic::dim::Dim;
use crate::graph::types::TensorType;

/// How a weight is divided among devices.
///
/// A linear layer's weight `[out, in]` is divided by rows for results that are gathered, and by columns for results that are
/// added up.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ShardingStrategy {
    num_devices: usize,
    kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Kind {
    Replicate,
    /// Equal parts along this axis.
    Axis(usize),
    /// Equal parts of each of these neighbouring blocks of rows.
    Stacked(Vec<i64>),
}

/// An axis, and the ranges of it that each device has.
pub(in crate::graph) type Parts = (usize, Vec<Vec<Range<i64>>>);

/// The part of a weight that a device has.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::graph) struct Shard {
    pub index: usize,
    /// The type of the whole weight, on the host.
    pub whole: TensorType,
    pub axis: usize,
    /// The part's elements of that axis; none for the whole weight.
    pub ranges: Vec<Range<i64>>,
}

impl ShardingStrategy {
    /// All of the weight on each device.
    pub fn replicate(num_devices: usize) -> ShardingStrategy {
        ShardingStrategy { num_devices, kind: Kind::Replicate }
    }

    /// Equal parts along axis 0.
    pub fn rowwise(num_devices: usize) -> ShardingStrategy {
        ShardingStrategy::axiswise(0, num_devices)
    }

    /// Equal parts along axis 1.
    pub fn columnwise(num_devices: usize) -> ShardingStrategy {
        ShardingStrategy::axiswise(1, num_devices)
    }

    /// Equal parts along an axis.
    pub fn axiswise(axis: usize, num_devices: usize) -> ShardingStrategy {
        ShardingStrategy { num_devices, kind: Kind::Axis(axis) }
    }

    /// Of a weight that has queries, keys and values one below the other: equal parts of each of them. There are `num_heads` heads
    /// of queries and `num_kv_heads` of keys and of values.
    pub fn stacked_qkv(num_devices: usize, num_heads: i64, num_kv_heads: i64, head_dim: i64) -> ShardingStrategy {
        let [q, kv] = [num_heads, num_kv_heads].map(|heads| heads.saturating_mul(head_dim));
        ShardingStrategy { num_devices, kind: Kind::Stacked(vec![q, kv, kv]) }
    }

    /// Of a weight that has the gate above the up projection, of so many rows each: equal parts of both.
    pub fn gate_up(num_devices: usize, intermediate_size: i64) -> ShardingStrategy {
        ShardingStrategy { num_devices, kind: Kind::Stacked(vec![intermediate_size; 2]) }
    }

    /// The number of devices.
    pub fn num_devices(&self) -> usize {
        self.num_devices
    }

    /// Whether each device has all of the weight.
    pub fn is_replicate(&self) -> bool {
        self.kind == Kind::Replicate
    }

    /// The axis and the ranges of each device's part; else what a weight would have to be.
    pub(in crate::graph) fn parts(&self, ty: &TensorType) -> Result<Parts, String> {
        let count = self.num_devices as i64;
        let (axis, blocks) = match &self.kind {
            Kind::Replicate => return Ok((0, vec![Vec::new(); self.num_devices])),
            Kind::Axis(axis) => (*axis, ty.shape.get(*axis).and_then(Dim::as_static).into_iter().collect()),
            Kind::Stacked(blocks) => (0, blocks.clone()),
        };
        let Some(size) = ty.shape.get(axis).and_then(Dim::as_static) else {
            return Err(format!("a weight with a static axis {axis}"));
        };
        if blocks.iter().try_fold(0_i64, |all, block| all.checked_add(*block)) != Some(size) {
            return Err(format!("a weight with blocks of {blocks:?} rows"));
        }
        if count == 0 || blocks.iter().any(|block| *block < 0 || block % count != 0) {
            return Err(format!(
                "a weight of which {blocks:?} along axis {axis} is divisible by the number of devices, {count}"
            ));
        }
        let part = |i: i64| {
            let mut start = 0;
            let ranges = blocks.iter().map(|block| {
                let (first, size) = (start + i * (block / count), block / count);
                start += block;
                first..first + size
            });
            ranges.collect()
        };
        Ok((axis, (0..count).map(part).collect()))
    }
}

impl Weight {
    /// This weight, to be divided so by [`shard`](Self::shard).
    #[must_use]
    pub fn with_sharding_strategy(self, strategy: ShardingStrategy) -> Weight {
        Weight { sharding_strategy: Some(strategy), ..self }
    }

    /// How it is divided.
    pub fn sharding_strategy(&self) -> Option<&ShardingStrategy> {
        self.sharding_strategy.as_ref()
    }

    /// Which of the parts it is, if it is one.
    pub fn shard_idx(&self) -> Option<usize> {
        self.shard.as_ref().map(|shard| shard.index)
    }
}
