//! [`Region`]: what has to be computed, in order, and the bytes by which its model is found again.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use max_core::driver;
use max_core::graph::GraphError;
use smallvec::SmallVec;

use super::attributes::{Key, KeyHasher};
use super::call::{Argument, Call, Eager};
use crate::Result;

/// Where an operand of a region's op comes from.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    Source(u32),
    /// A result of an op of the region.
    Op(u32, u32),
}

/// What has to be computed, operands before those that use them.
#[derive(Default)]
pub(super) struct Region {
    pub ops: SmallVec<[Arc<Call>; 4]>,
    /// The operands of all ops, one after the other.
    origins: SmallVec<[Origin; 8]>,
    /// Where the operands of each op end.
    ends: SmallVec<[u32; 4]>,
    /// How often ops of the region use each other.
    uses: SmallVec<[u32; 4]>,
    /// Tensors with values, and numbers: the inputs of the region's model.
    pub sources: SmallVec<[Argument; 4]>,
    /// Ops and sources by address, once they are many.
    places: HashMap<(usize, u32), u32, BuildHasherDefault<KeyHasher>>,
}

/// An op whose operands are being looked at.
struct Visit {
    call: Arc<Call>,
    origins: SmallVec<[Origin; 3]>,
}

impl Visit {
    fn of(call: &Arc<Call>) -> Visit {
        Visit { call: call.clone(), origins: SmallVec::new() }
    }
}

/// With more ops and sources than this, they are looked up in a map. What was added last is looked at first.
const FEW: usize = 64;

/// What an op has in the map in place of the number of a result.
const WHOLE: u32 = u32::MAX;

impl Region {
    /// Makes it empty, and keeps its memory.
    pub fn clear(&mut self) {
        let Region { ops, origins, ends, uses, sources, places } = self;
        ops.clear();
        origins.clear();
        ends.clear();
        uses.clear();
        sources.clear();
        places.clear();
    }

    /// How many operands its ops have.
    #[inline]
    pub fn num_operands(&self) -> usize {
        self.origins.len()
    }

    /// The ops with their operands.
    #[inline]
    pub fn calls(&self) -> impl Iterator<Item = (&Arc<Call>, &[Origin])> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends).map(|(start, end)| start as usize..*end as usize);
        self.ops.iter().zip(ranges.map(|range| &self.origins[range]))
    }

    /// The values of the sources.
    #[inline]
    pub fn inputs(&self) -> impl Iterator<Item = &driver::Tensor> {
        self.sources.iter().filter_map(|source| source.value()?.ok())
    }

    #[inline]
    fn is_small(&self) -> bool {
        self.places.is_empty()
    }

    /// Notes where an op or a source is, once there are many.
    fn note(&mut self, call: &Arc<Call>, output: u32, place: usize) {
        let key = |call: &Arc<Call>, output: u32| (Arc::as_ptr(call) as usize, output);
        if self.is_small() {
            if self.ops.len() + self.sources.len() <= FEW {
                return;
            }
            let ops = self.ops.iter().enumerate().map(|(i, call)| (key(call, WHOLE), i as u32));
            let sources = self.sources.iter().enumerate().filter_map(|(i, source)| match source {
                Argument::Tensor(tensor) => Some((key(&tensor.call, tensor.output), i as u32)),
                Argument::Scalar(_) => None,
            });
            self.places = ops.chain(sources).collect();
        }
        self.places.insert(key(call, output), place as u32);
    }

    #[inline]
    fn position(&self, call: &Arc<Call>) -> Option<u32> {
        if self.is_small() {
            self.ops.iter().rposition(|known| Arc::ptr_eq(known, call)).map(|position| position as u32)
        } else {
            self.places.get(&(Arc::as_ptr(call) as usize, WHOLE)).copied()
        }
    }

    #[inline]
    fn source(&mut self, argument: &Argument) -> Origin {
        let known = match argument {
            Argument::Tensor(_) if self.is_small() => {
                self.sources.iter().rposition(|known| known.is(argument)).map(|place| place as u32)
            }
            Argument::Tensor(tensor) => self.places.get(&(Arc::as_ptr(&tensor.call) as usize, tensor.output)).copied(),
            Argument::Scalar(_) => None,
        };
        Origin::Source(known.unwrap_or_else(|| {
            let place = self.sources.len();
            self.sources.push(argument.clone());
            if let Argument::Tensor(tensor) = argument {
                self.note(&tensor.call, tensor.output, place);
            }
            place as u32
        }))
    }

    /// Adds what a tensor needs, without recursion: a region may be deep.
    pub fn add(&mut self, target: &Eager) -> Result<()> {
        if self.position(&target.call).is_some() {
            return Ok(());
        }
        if let Some(Err(error)) = target.value() {
            return Err(error.clone());
        }
        let mut visits: SmallVec<[Visit; 4]> = SmallVec::new();
        visits.push(Visit::of(&target.call));
        while let Some(Visit { call, origins }) = visits.last_mut() {
            let arguments = call.lock();
            let is_staged = call.outcome().is_none();
            let mut next = None;
            while is_staged && let Some(argument) = arguments.get(origins.len()) {
                let of_region = match argument {
                    Argument::Tensor(tensor) => self.position(&tensor.call).map(|at| Origin::Op(at, tensor.output)),
                    Argument::Scalar(_) => None,
                };
                origins.push(match (of_region, argument) {
                    (Some(origin), _) => origin,
                    (None, Argument::Scalar(_)) => self.source(argument),
                    (None, Argument::Tensor(tensor)) => match tensor.value() {
                        Some(Ok(_)) => self.source(argument),
                        Some(Err(error)) => return Err(error.clone()),
                        None => {
                            next = Some(Visit::of(&tensor.call));
                            break;
                        }
                    },
                });
            }
            drop(arguments);
            match next {
                Some(next) => visits.push(next),
                // What was computed meanwhile is looked at again, as a source.
                None => {
                    if let Some(Visit { call, origins }) = visits.pop()
                        && is_staged
                    {
                        self.push(call, &origins);
                    }
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, call: Arc<Call>, origins: &[Origin]) {
        for origin in origins {
            if let Origin::Op(position, _) = origin {
                self.uses[*position as usize] += 1;
            }
        }
        origins.iter().for_each(|origin| self.origins.push(*origin));
        self.ends.push(self.origins.len() as u32);
        self.uses.push(0);
        let place = self.ops.len();
        self.note(&call, WHOLE, place);
        self.ops.push(call);
    }

    /// The ops whose results are wanted: the targets, and what others hold as well. Those get views again for nothing.
    pub fn wanted(&self, targets: &[&Eager]) -> SmallVec<[u32; 8]> {
        let mut wanted = SmallVec::new();
        for (position, call) in self.ops.iter().enumerate() {
            let is_target = targets.iter().any(|target| Arc::ptr_eq(&target.call, call));
            // One handle is the region's.
            let is_held = || Arc::strong_count(call) > 1 + self.uses[position] as usize;
            if is_target || is_held() && call.op().is_some_and(|staged| !staged.is_view()) {
                wanted.push(position as u32);
            }
        }
        wanted
    }

    /// Writes what tells the region from others: its ops, where their operands come from, and what is wanted.
    pub fn write(&self, wanted: &[u32], key: &mut Key) {
        self.write_ops(wanted, key, |staged| staged.id);
    }

    /// Writes what tells the region from those that differ in sizes alone. Sizes of 0 and 1 stand for themselves; of others it
    /// is told which are equal. The different ones are returned, in the order in which they occur.
    pub fn write_class(&self, wanted: &[u32], key: &mut Key) -> ClassSizes {
        self.write_ops(wanted, key, |staged| staged.kind);
        let mut sizes = ClassSizes::new();
        for input in self.inputs() {
            key.word(input.rank() as u64);
            for size in input.shape() {
                key.word(u64::from(class_of(*size, &mut sizes)));
            }
        }
        sizes
    }

    fn write_ops(&self, wanted: &[u32], key: &mut Key, id: impl Fn(&super::stage::Staged) -> u64) {
        for (call, origins) in self.calls() {
            key.word(call.op().map_or(u64::MAX, |staged| id(staged)));
            for origin in origins {
                key.word(match origin {
                    Origin::Source(source) => u64::from(*source) << 1,
                    Origin::Op(position, output) => u64::from(*output) << 32 | u64::from(*position) << 1 | 1,
                });
            }
        }
        key.word(u64::MAX);
        wanted.iter().for_each(|position| key.word(u64::from(*position)));
    }

    /// The error of a region, as that of its last op.
    pub fn failed(&self, error: max_core::engine::EngineError) -> GraphError {
        match self.ops.last() {
            Some(call) => call.failed(error),
            None => GraphError::value("tensor", Arc::new(error)),
        }
    }
}

/// Sizes of 2 and more that are not equal.
pub(super) type ClassSizes = SmallVec<[usize; 16]>;

/// 0 and 1 of themselves, 2 and more of the sizes that are known, to which a new one is added.
pub(super) fn class_of(size: usize, sizes: &mut ClassSizes) -> u32 {
    if size < 2 {
        return size as u32;
    }
    let place = sizes.iter().position(|known| *known == size).unwrap_or_else(|| {
        sizes.push(size);
        sizes.len() - 1
    });
    place as u32 + 2
}
