//! The models of regions: found by key, made where there is none.
//!
//! A region of known ops and types has a model of its own. Once [`SHAPES_OF_A_CLASS`] regions were met that differ in sizes
//! alone, one model serves the whole class, if the ops allow that: its dims are names where sizes have varied. Then a loop whose
//! shapes grow compiles nothing.

use std::cell::RefCell;
use std::hash::BuildHasherDefault;
use std::sync::{Mutex, MutexGuard, PoisonError};

use max_core::driver::DeviceRef;
use max_core::engine::Model;
use max_core::graph::{self, Dim, Graph, Shape, TensorType, TensorValue};
use smallvec::SmallVec;

use super::attributes::{Key, KeyMap};
use super::call::driver_tensor_type;
use super::context;
use super::region::{ClassSizes, Origin, Region, class_of};
use super::stage::Values;
use crate::Result;

/// The most models that are remembered, of regions and of classes.
const REMEMBERED: usize = 1 << 12;

/// From so many shapes on, regions that differ in sizes alone share a model.
const SHAPES_OF_A_CLASS: u32 = 4;

/// A region's model.
#[derive(Clone)]
pub(super) struct Found {
    pub model: Model,
    /// Whether it serves other sizes too.
    pub is_general: bool,
}

/// What is known of regions that differ in sizes alone.
struct Class {
    /// How many were met.
    met: u32,
    /// The sizes of the first.
    sizes: ClassSizes,
    /// Which of them others did not have.
    varied: SmallVec<[bool; 16]>,
    model: ClassModel,
}

enum ClassModel {
    /// Not made yet, or of fewer sizes that vary.
    None,
    /// Of all that have the first one's sizes where these have not varied.
    General(Model),
    /// The ops need to know the sizes.
    Specific,
}

#[derive(Default)]
struct Known {
    regions: KeyMap<Found>,
    classes: KeyMap<Class>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known {
    regions: KeyMap::with_hasher(BuildHasherDefault::new()),
    classes: KeyMap::with_hasher(BuildHasherDefault::new()),
});

thread_local! {
    /// What this thread has used, so that finding it again takes no lock.
    static NEAR: RefCell<KeyMap<Found>> = RefCell::default();
}

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The region's model, made if no thread has met the region or its class before.
pub(super) fn find(region: &Region, wanted: &[u32], key: &Key) -> Result<Found> {
    if let Some(found) = NEAR.with_borrow(|near| near.get(key.words()).cloned()) {
        return Ok(found);
    }
    let of_region = known().regions.get(key.words()).cloned();
    let found = match of_region {
        Some(found) => found,
        None => {
            let found = match of_class(region, wanted) {
                Some(model) => Found { model, is_general: true },
                None => own(region, wanted)?,
            };
            let mut all = known();
            if all.regions.len() >= REMEMBERED {
                all.regions.clear();
            }
            all.regions.entry(key.words().into()).or_insert(found).clone()
        }
    };
    NEAR.with_borrow_mut(|near| {
        if near.len() >= REMEMBERED {
            near.clear();
        }
        near.insert(key.words().into(), found.clone());
    });
    Ok(found)
}

/// A model of this region alone.
pub(super) fn own(region: &Region, wanted: &[u32]) -> Result<Found> {
    let types: Vec<TensorType> = region.inputs().map(driver_tensor_type).collect();
    Ok(Found { model: compile(region, wanted, &types)?, is_general: false })
}

/// The model of all regions that differ from this one in sizes alone, if there is one, or enough of them were met.
fn of_class(region: &Region, wanted: &[u32]) -> Option<Model> {
    // Its kernel is another one for few queries, which named dims do not tell.
    if region.ops.iter().any(|call| call.op().is_some_and(|staged| staged.op == "attention")) {
        return None;
    }
    let mut key = Key::default();
    let sizes = region.write_class(wanted, &mut key);
    let varied = {
        let mut all = known();
        if all.classes.len() >= REMEMBERED {
            all.classes.clear();
        }
        let class = all.classes.entry(key.words().into()).or_insert_with(|| Class {
            met: 0,
            varied: SmallVec::from_elem(false, sizes.len()),
            sizes: sizes.clone(),
            model: ClassModel::None,
        });
        class.met += 1;
        for ((varied, size), first) in class.varied.iter_mut().zip(&sizes).zip(&class.sizes) {
            if !*varied && size != first {
                *varied = true;
                if let ClassModel::General(_) = class.model {
                    class.model = ClassModel::None;
                }
            }
        }
        match &class.model {
            ClassModel::General(model) => return Some(model.clone()),
            ClassModel::Specific => return None,
            ClassModel::None if class.met < SHAPES_OF_A_CLASS => return None,
            ClassModel::None => class.varied.clone(),
        }
    };
    let mut sizes = ClassSizes::new();
    let types: Vec<TensorType> = region
        .inputs()
        .map(|tensor| {
            let dim = |size: &usize| match class_of(*size, &mut sizes) as usize {
                class if class >= 2 && varied[class - 2] => Dim::from(format!("size_{}", class - 2).as_str()),
                _ => Dim::from(*size as i64),
            };
            TensorType::new(tensor.dtype(), tensor.shape().iter().map(dim).collect::<Shape>(), tensor.device().into())
        })
        .collect();
    let model = compile(region, wanted, &types).ok();
    if let Some(class) = known().classes.get_mut(key.words())
        && class.varied == varied
    {
        class.model = model.clone().map_or(ClassModel::Specific, ClassModel::General);
    }
    model
}

/// A model of the region, whose sources have these types.
fn compile(region: &Region, wanted: &[u32], types: &[TensorType]) -> Result<Model> {
    let mut devices: SmallVec<[DeviceRef; 2]> = types.iter().map(|ty| ty.device).collect();
    let graph = Graph::new("eager", types);
    let mut results: Vec<Values> = Vec::with_capacity(region.ops.len());
    for (call, origins) in region.calls() {
        let Some(staged) = call.op() else { continue };
        devices.extend(staged.results.iter().map(|ty| ty.device));
        let operands: SmallVec<[graph::Operand; 4]> = origins
            .iter()
            .map(|origin| match origin {
                Origin::Source(source) => (&graph.inputs()[*source as usize]).into(),
                Origin::Op(position, output) => (&results[*position as usize][*output as usize]).into(),
            })
            .collect();
        results.push(graph::at(call.location, || staged.add(&operands))?);
    }
    let outputs: Vec<&TensorValue> = wanted.iter().flat_map(|position| &results[*position as usize]).collect();
    graph.output(&outputs[..])?;
    context::session(&devices)?.load(&graph).map_err(|error| region.failed(error))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::{ClassModel, KNOWN, SHAPES_OF_A_CLASS, known};
    use crate::functional as f;
    use crate::tensor::Tensor;
    use crate::tensor::lazy::stage;

    /// How many classes have a model of all sizes, and how many cannot.
    fn classes() -> (usize, usize) {
        let all = known();
        let count = |is: fn(&ClassModel) -> bool| all.classes.values().filter(|class| is(&class.model)).count();
        (count(|model| matches!(model, ClassModel::General(_))), count(|model| matches!(model, ClassModel::Specific)))
    }

    #[test]
    fn growing_shapes_compile_no_more() -> crate::Result<()> {
        max_kernels::link();
        let turn = |size: usize, same: bool| -> crate::Result<()> {
            let (x, y) = (Tensor::ones([size, 3])?, Tensor::full([if same { size } else { size + 1 }, 3], 2.0)?);
            let z = f::sum(f::concat([&x, &y], 0)? * 3.0, 0)?;
            let expected = 3.0 * (size as f32 + 2.0 * y.shape()[0].as_static().unwrap_or_default() as f32);
            assert_eq!(z.to_vec::<f32>()?, [expected; 3]);
            Ok(())
        };
        for same in [true, false] {
            let before = classes().0;
            // Sizes of 0 and 1 are classes of their own.
            (0..SHAPES_OF_A_CLASS as usize + 1).try_for_each(|size| turn(size, same))?;
            assert_eq!(classes().0, before);
            (0..50).try_for_each(|size| turn(size + 7, same))?;
            assert_eq!(classes().0, before + 1);
        }
        let before = classes();
        for size in 2..20usize {
            // The shape that is asked for is another one in each turn, and so is the op.
            let x = f::reshape(Tensor::ones([size, 2])? * 2.0, [2, size as i64])? + 1.0;
            assert_eq!(x.to_vec::<f32>()?, vec![3.0; 2 * size]);
        }
        assert_eq!(classes().0, before.0);
        Ok(())
    }

    /// What was found before is found again while another thread has the locks.
    #[test]
    fn what_is_known_takes_no_lock() -> crate::Result<()> {
        max_kernels::link();
        let (x, y) = (Tensor::ones([5])?, Tensor::ones([5])?);
        let turn = || f::relu(&x * &y + 0.5)?.to_vec::<f32>();
        turn()?;
        let (held, is_held) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        let holder = std::thread::spawn(move || {
            let _models = KNOWN.lock();
            let _ops = stage::KNOWN.lock();
            held.send(()).and(is_done.recv_timeout(Duration::from_secs(60)).map_err(|_| mpsc::SendError(()))).is_ok()
        });
        assert!(is_held.recv().is_ok());
        for _ in 0..1000 {
            assert_eq!(turn()?, [1.5; 5]);
        }
        assert!(done.send(()).is_ok() && holder.join().is_ok_and(|was_done| was_done));
        Ok(())
    }
}
