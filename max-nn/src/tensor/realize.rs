//! Realization: what a tensor is computed of becomes one graph, which is compiled once and found again by its structure.
//!
//! A region is all that the wanted tensors need and that has no value yet. Its key lists the ops in order, and for each
//! where its operands come from; types are part of an op's identity. Tensors with values, and numbers, are inputs of the
//! region's model: other values run the same model. What somebody else holds a handle of becomes a result as well, so that
//! nothing is computed twice.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use max_core::driver::{self, DeviceRef};
use max_core::engine::Model;
use max_core::graph::{self, Graph, GraphError, TensorType, TensorValue};
use smallvec::{SmallVec, smallvec};

use super::attributes::{Key, KeyMap};
use super::call::{Argument, Arguments, Call, Eager, State};
use super::context;
use super::stage::Values;
use crate::Result;

/// The most models that are remembered.
const REMEMBERED: usize = 1 << 12;

static MODELS: Mutex<KeyMap<Model>> = Mutex::new(KeyMap::with_hasher(BuildHasherDefault::new()));

thread_local! {
    /// What this thread has used, so that finding it again takes no lock.
    static NEAR: RefCell<KeyMap<Model>> = RefCell::default();
    /// The memory of the last key.
    static KEY: Cell<Key> = Cell::default();
}

/// Where an operand of a region's op comes from.
#[derive(Clone, Copy)]
enum Origin {
    Source(u32),
    /// A result of an op of the region.
    Op(u32, u32),
}

/// What has to be computed, operands before those that use them.
#[derive(Default)]
struct Region {
    ops: SmallVec<[Arc<Call>; 4]>,
    operands: SmallVec<[SmallVec<[Origin; 3]>; 4]>,
    /// How often ops of the region use each other.
    uses: SmallVec<[u32; 4]>,
    sources: SmallVec<[driver::Tensor; 4]>,
    /// The tensor that each source is the value of; none for numbers.
    source_of: SmallVec<[Option<(*const Call, u32)>; 4]>,
    /// The ops by address, once they are many.
    positions: HashMap<*const Call, u32>,
}

/// An op whose operands are being looked at.
struct Visit {
    call: Arc<Call>,
    arguments: Arguments,
    operands: SmallVec<[Origin; 3]>,
}

/// With more ops than this, they are looked up in a map.
const FEW: usize = 16;

/// Computes the tensors and all that they need.
///
/// # Errors
/// The first error of what they need, which all of them keep.
pub(crate) fn realize(targets: &[&Eager]) -> Result<()> {
    if let [target] = targets
        && realize_view(target)
    {
        return Ok(());
    }
    let mut region = Region::default();
    let result = targets.iter().try_for_each(|target| region.add(target)).and_then(|()| region.run(targets));
    if let Err(error) = &result {
        targets.iter().for_each(|target| target.call.finish(Err(error.clone())));
    }
    result
}

/// A view of a tensor that has memory needs no graph. Whether it was one.
fn realize_view(target: &Eager) -> bool {
    let Some(staged) = target.call.op().filter(|staged| staged.is_view()) else { return false };
    let operand = match &*target.call.state() {
        State::Staged(arguments) => match arguments.first() {
            Some(Argument::Tensor(operand)) => operand.clone(),
            Some(Argument::Scalar(_)) | None => return false,
        },
        State::Realized(_) | State::Failed(_) => return false,
    };
    // As deep as chains of staged ops are, which regions alone make long; those are computed.
    if operand.call.depth > 64 {
        return false;
    }
    let value = match operand.value() {
        None if realize_view(&operand) => operand.value(),
        value => value,
    };
    match value {
        Some(Ok(value)) => match staged.view(&value) {
            Some(view) => {
                target.call.finish(Ok(smallvec![view]));
                true
            }
            None => false,
        },
        Some(Err(_)) | None => false,
    }
}

impl Region {
    fn position(&self, call: &Arc<Call>) -> Option<u32> {
        if self.ops.len() <= FEW {
            self.ops.iter().position(|known| Arc::ptr_eq(known, call)).map(|position| position as u32)
        } else {
            self.positions.get(&Arc::as_ptr(call)).copied()
        }
    }

    fn source(&mut self, of: Option<(*const Call, u32)>, value: driver::Tensor) -> Origin {
        let known = of.and_then(|_| self.source_of.iter().position(|known| *known == of));
        Origin::Source(known.unwrap_or_else(|| {
            self.sources.push(value);
            self.source_of.push(of);
            self.sources.len() - 1
        }) as u32)
    }

    /// Adds what a tensor needs, without recursion: a region may be deep.
    fn add(&mut self, target: &Eager) -> Result<()> {
        let begin = |call: &Arc<Call>| match &*call.state() {
            State::Staged(arguments) => {
                Some(Visit { call: call.clone(), arguments: arguments.clone(), operands: SmallVec::new() })
            }
            State::Realized(_) | State::Failed(_) => None,
        };
        if self.position(&target.call).is_some() {
            return Ok(());
        }
        if let Some(Err(error)) = target.value() {
            return Err(error);
        }
        let mut visits: SmallVec<[Visit; 4]> = begin(&target.call).into_iter().collect();
        while let Some(visit) = visits.last_mut() {
            let Some(argument) = visit.arguments.get(visit.operands.len()) else {
                if let Some(Visit { call, operands, .. }) = visits.pop() {
                    self.push(call, operands);
                }
                continue;
            };
            let from = match argument {
                Argument::Scalar(value) => self.source(None, (**value).clone()),
                Argument::Tensor(tensor) => match self.position(&tensor.call) {
                    Some(position) => Origin::Op(position, tensor.output),
                    None => match tensor.value() {
                        Some(Err(error)) => return Err(error),
                        Some(Ok(value)) => self.source(Some((Arc::as_ptr(&tensor.call), tensor.output)), value),
                        None => {
                            // Computed meanwhile, if there is nothing to begin: it is looked at again.
                            let next = begin(&tensor.call);
                            visits.extend(next);
                            continue;
                        }
                    },
                },
            };
            visit.operands.push(from);
        }
        Ok(())
    }

    fn push(&mut self, call: Arc<Call>, operands: SmallVec<[Origin; 3]>) {
        for from in &operands {
            if let Origin::Op(position, _) = from {
                self.uses[*position as usize] += 1;
            }
        }
        if self.ops.len() >= FEW {
            if self.ops.len() == FEW {
                self.positions = self.ops.iter().enumerate().map(|(i, op)| (Arc::as_ptr(op), i as u32)).collect();
            }
            self.positions.insert(Arc::as_ptr(&call), self.ops.len() as u32);
        }
        self.ops.push(call);
        self.operands.push(operands);
        self.uses.push(0);
    }

    /// The ops whose results are wanted: the targets, and what others hold as well. Those get views again for nothing.
    fn wanted(&self, targets: &[&Eager]) -> SmallVec<[u32; 8]> {
        let is_wanted = |position: usize, call: &Arc<Call>| {
            let is_target = targets.iter().any(|target| Arc::ptr_eq(&target.call, call));
            // One handle is the region's.
            let held = Arc::strong_count(call) > 1 + self.uses[position] as usize;
            is_target || held && call.op().is_some_and(|staged| !staged.is_view())
        };
        self.ops.iter().enumerate().filter(|(i, call)| is_wanted(*i, call)).map(|(i, _)| i as u32).collect()
    }

    fn run(&mut self, targets: &[&Eager]) -> Result<()> {
        if self.ops.is_empty() {
            return Ok(());
        }
        let wanted = self.wanted(targets);
        let mut key = KEY.take();
        key.clear();
        for (call, operands) in self.ops.iter().zip(&self.operands) {
            key.word(call.op().map_or(u64::MAX, |staged| staged.id));
            for from in operands {
                match from {
                    Origin::Source(source) => key.half_word(*source << 1),
                    Origin::Op(position, output) => {
                        key.half_word(*position << 1 | 1);
                        key.half_word(*output);
                    }
                }
            }
        }
        key.word(u64::MAX);
        wanted.iter().for_each(|position| key.half_word(*position));
        let model = match NEAR.with_borrow(|near| near.get(key.bytes()).cloned()) {
            Some(model) => model,
            None => self.find(key.bytes(), &wanted)?,
        };
        KEY.set(key);
        let inputs: SmallVec<[&driver::Tensor; 8]> = self.sources.iter().collect();
        let location = self.ops.last().map_or(Location::caller(), |call| call.location);
        let outputs = model.execute(&inputs[..]).map_err(|error| self.failed(location, error))?;
        let mut outputs = outputs.into_iter();
        for position in wanted {
            let call = &self.ops[position as usize];
            let count = call.op().map_or(1, |staged| staged.results.len());
            call.finish(Ok(outputs.by_ref().take(count).collect()));
        }
        Ok(())
    }

    fn failed(&self, location: &'static Location<'static>, error: max_core::engine::EngineError) -> GraphError {
        let op = self.ops.last().and_then(|call| call.op()).map_or("tensor", |staged| staged.op);
        graph::at(location, || GraphError::value(op, Arc::new(error)))
    }

    /// The region's model, made if no thread has met the region before.
    fn find(&self, key: &[u8], wanted: &[u32]) -> Result<Model> {
        let lock = || MODELS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(key).cloned();
        let model = match known {
            Some(model) => model,
            None => {
                let model = self.compile(wanted)?;
                let mut all = lock();
                if all.len() >= REMEMBERED {
                    all.clear();
                }
                all.entry(key.into()).or_insert(model).clone()
            }
        };
        NEAR.with_borrow_mut(|near| {
            if near.len() >= REMEMBERED {
                near.clear();
            }
            near.insert(key.into(), model.clone());
        });
        Ok(model)
    }

    fn compile(&self, wanted: &[u32]) -> Result<Model> {
        let of_source =
            |tensor: &driver::Tensor| TensorType::new(tensor.dtype(), tensor.shape(), tensor.device().into());
        let types: Vec<TensorType> = self.sources.iter().map(of_source).collect();
        let mut devices: SmallVec<[DeviceRef; 2]> = types.iter().map(|ty| ty.device).collect();
        let graph = Graph::new("eager", &types);
        let mut results: Vec<Values> = Vec::with_capacity(self.ops.len());
        for (call, operands) in self.ops.iter().zip(&self.operands) {
            let Some(staged) = call.op() else { continue };
            devices.extend(staged.results.iter().map(|ty| ty.device));
            let operands: SmallVec<[graph::Operand; 4]> = operands
                .iter()
                .map(|from| match from {
                    Origin::Source(source) => (&graph.inputs()[*source as usize]).into(),
                    Origin::Op(position, output) => (&results[*position as usize][*output as usize]).into(),
                })
                .collect();
            results.push(graph::at(call.location, || staged.add(&operands))?);
        }
        let outputs: Vec<&TensorValue> = wanted.iter().flat_map(|position| &results[*position as usize]).collect();
        graph.output(&outputs[..])?;
        let location = self.ops.last().map_or(Location::caller(), |call| call.location);
        context::session(&devices)?.load(&graph).map_err(|error| self.failed(location, error))
    }
}
