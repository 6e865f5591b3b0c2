//! The parts of a weight, by its [`ShardingStrategy`](crate::graph::weights::ShardingStrategy).

use std::ops::Range;

use crate::driver::DeviceRef;
use crate::graph::builder::site::Site;
use crate::graph::error::GraphError;
use crate::graph::symbolic::dim::Dim;
use crate::graph::types::TensorType;
use crate::graph::weights::{Shard, Weight};

impl Weight {
    /// The parts of this weight, one on each device. A graph that declares them has the whole weight by its name; each part is
    /// cut out and brought to its device when the graph is loaded.
    ///
    /// ```
    /// # use max_core::{driver::DeviceRef, dtype::DType, graph::{Weight, weights::ShardingStrategy}};
    /// let weight = Weight::new("up.weight", DType::F32, [64, 16], DeviceRef::CPU);
    /// let weight = weight.with_sharding_strategy(ShardingStrategy::rowwise(2));
    /// let shards = weight.shard((0..2).map(DeviceRef::gpu))?;
    /// assert_eq!((shards[1].ty.shape.to_string().as_str(), shards[1].shard_idx()), ("[32, 16]", Some(1)));
    /// # Ok::<(), max_core::graph::GraphError>(())
    /// ```
    ///
    /// # Errors
    /// Without a strategy, of a part, and for another number of devices than the strategy's; when a dim is not static, or not
    /// divided by their number; when blocks are not those of the weight.
    #[track_caller]
    pub fn shard(&self, devices: impl IntoIterator<Item = DeviceRef>) -> Result<Vec<Weight>, GraphError> {
        let devices: Vec<DeviceRef> = devices.into_iter().collect();
        let site = Site::new("shard");
        let fail = |expected: String| site.argument(&[], "weight", self, expected);
        if self.shard.is_some() {
            return fail("a whole weight, and no part of one".into());
        }
        let Some(strategy) = self.sharding_strategy() else {
            return fail("a weight with a strategy; give it one by `with_sharding_strategy`".into());
        };
        if devices.len() != strategy.num_devices() {
            let expected = format!("{} of them, as the strategy says", strategy.num_devices());
            return site.argument(&[], "devices", devices.len(), expected);
        }
        let (axis, parts) = match strategy.parts(&self.ty) {
            Ok(parts) => parts,
            Err(expected) => return fail(expected),
        };
        let whole = TensorType { device: DeviceRef::CPU, ..self.ty.clone() };
        let shard = |(index, (device, ranges)): (usize, (DeviceRef, Vec<Range<i64>>))| {
            let mut ty = TensorType { device, ..self.ty.clone() };
            if !ranges.is_empty() {
                ty.shape[axis] = Dim::Static(ranges.iter().map(|range| range.end - range.start).sum());
            }
            let shard = Shard { index, whole: whole.clone(), axis, ranges };
            let mut part = Weight::of(self.name.clone(), ty);
            part.shard = Some(shard);
            part
        };
        Ok(devices.into_iter().zip(parts).enumerate().map(shard).collect())
    }
}
