//! Realization contexts: the region of [`functional`], and the devices and dtypes that new tensors have by default.

use std::cell::{Cell, RefCell};
use std::sync::{Mutex, OnceLock, PoisonError};

use max_core::driver::{Device, DeviceRef, accelerator_count};
use max_core::dtype::DType;
use max_core::engine::InferenceSession;

use super::call::Eager;
use super::realize::realize;
use crate::Result;
use crate::tensor::{Repr, Tensor};

/// Ops that depend on each other are computed when they are this many, so that a loop that reads nothing does not grow.
const LONGEST_CHAIN: u32 = 32;

thread_local! {
    static REGIONS: Cell<u32> = const { Cell::new(0) };
    static DEFAULTS: RefCell<(Option<DType>, Option<DeviceRef>)> = const { RefCell::new((None, None)) };
}

/// How many ops may wait for each other.
pub(crate) fn longest_chain() -> u32 {
    if REGIONS.get() > 0 { u32::MAX } else { LONGEST_CHAIN }
}

/// What a region returns: a tensor, or an array, a `Vec`, an `Option` or a tuple of such.
pub trait Tensors {
    /// Calls `f` with each of the tensors.
    fn for_each<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor));
}

impl Tensors for Tensor {
    fn for_each<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
        f(self);
    }
}

impl<T: Tensors> Tensors for Vec<T> {
    fn for_each<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
        self.iter().for_each(|tensors| tensors.for_each(f));
    }
}

impl<T: Tensors, const N: usize> Tensors for [T; N] {
    fn for_each<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
        self.iter().for_each(|tensors| tensors.for_each(f));
    }
}

impl<T: Tensors> Tensors for Option<T> {
    fn for_each<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
        self.iter().for_each(|tensors| tensors.for_each(f));
    }
}

impl Tensors for () {
    fn for_each<'a>(&'a self, _: &mut dyn FnMut(&'a Tensor)) {}
}

macro_rules! tensors_of_tuples {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Tensors),+> Tensors for ($($name,)+) {
            fn for_each<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
                $(self.$index.for_each(f);)+
            }
        }
    };
}
tensors_of_tuples!(A 0, B 1);
tensors_of_tuples!(A 0, B 1, C 2);
tensors_of_tuples!(A 0, B 1, C 2, D 3);

/// Runs `region`, whose ops wait, and computes the tensors that it returns, as one graph.
///
/// The graph is compiled when its structure, its attributes, its dtypes, its shapes or its devices are new; otherwise it
/// is found by a hash. Values, numbers among them, are its inputs. What is read inside is computed there. A region inside
/// of another is a part of it.
///
/// ```
/// # extern crate max_nn as max;
/// # max_kernels::link();
/// use max::{functional as F, functional::functional, tensor::Tensor};
///
/// let x = Tensor::constant([1.0f32, -2.0, 3.0])?;
/// let y = functional(|| F::relu(&x * 2.0 + 1.0))?;
/// assert!(y.is_realized());
/// assert_eq!(y.to_vec::<f32>()?, [3.0, 0.0, 7.0]);
/// # Ok::<(), max::Error>(())
/// ```
///
/// # Errors
/// Those of `region`, and of computing its tensors: then each of them gives that error again when it is read.
#[track_caller]
pub fn functional<T: Tensors>(region: impl FnOnce() -> Result<T>) -> Result<T> {
    struct Left;

    impl Drop for Left {
        fn drop(&mut self) {
            REGIONS.set(REGIONS.get() - 1);
        }
    }

    REGIONS.set(REGIONS.get() + 1);
    let left = Left;
    let tensors = region()?;
    drop(left);
    if REGIONS.get() == 0 {
        realize_all(&tensors)?;
    }
    Ok(tensors)
}

/// Computes all of these tensors as one graph.
///
/// # Errors
/// The first error; each of the tensors gives it again when it is read.
#[track_caller]
pub fn realize_all(tensors: &impl Tensors) -> Result<()> {
    let mut eager: smallvec::SmallVec<[&Eager; 4]> = smallvec::SmallVec::new();
    tensors.for_each(&mut |tensor| {
        if let Repr::Eager(tensor) = &tensor.0 {
            eager.push(tensor);
        }
    });
    realize(&eager)
}

/// Runs `body`, in which new tensors are on `device` where nothing else is said.
pub fn default_device<R>(device: DeviceRef, body: impl FnOnce() -> R) -> R {
    with_defaults(|defaults| defaults.1 = Some(device), body)
}

/// Runs `body`, in which new tensors have `dtype` where nothing else is said.
pub fn default_dtype<R>(dtype: DType, body: impl FnOnce() -> R) -> R {
    with_defaults(|defaults| defaults.0 = Some(dtype), body)
}

fn with_defaults<R>(change: impl FnOnce(&mut (Option<DType>, Option<DeviceRef>)), body: impl FnOnce() -> R) -> R {
    struct Restored((Option<DType>, Option<DeviceRef>));

    impl Drop for Restored {
        fn drop(&mut self) {
            DEFAULTS.set(self.0);
        }
    }

    let before = DEFAULTS.with_borrow(|defaults| *defaults);
    let _restored = Restored(before);
    DEFAULTS.with_borrow_mut(change);
    body()
}

/// The dtype and the device of a new tensor for which these are given: without a device it is that of [`default_device`],
/// an accelerator if there is one, else the host; without a dtype that of [`default_dtype`], `float32` on the host and
/// `bfloat16` on accelerators.
pub fn defaults(dtype: Option<DType>, device: Option<DeviceRef>) -> (DType, DeviceRef) {
    static ACCELERATORS: OnceLock<u32> = OnceLock::new();
    let (default_dtype, default_device) = DEFAULTS.with_borrow(|defaults| *defaults);
    let device = device.or(default_device).unwrap_or_else(|| match *ACCELERATORS.get_or_init(accelerator_count) {
        0 => DeviceRef::CPU,
        _ => DeviceRef::gpu(0),
    });
    let dtype = dtype.or(default_dtype).unwrap_or(if device.is_cpu() { DType::F32 } else { DType::BF16 });
    (dtype, device)
}

/// The device of that name.
#[track_caller]
pub(crate) fn device(device: DeviceRef) -> Result<Device> {
    if device.is_cpu() { Ok(Device::cpu()) } else { Ok(Device::accelerator(device.id)?) }
}

/// The session that compiles for these devices.
pub(crate) fn session(devices: &[DeviceRef]) -> Result<InferenceSession> {
    static SESSIONS: Mutex<Vec<(Vec<DeviceRef>, InferenceSession)>> = Mutex::new(Vec::new());
    let mut wanted: Vec<DeviceRef> = devices.iter().copied().filter(|device| device.is_gpu()).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, session)) = sessions.iter().find(|(known, _)| *known == wanted) {
        return Ok(session.clone());
    }
    let loaded = wanted.iter().map(|of| device(*of)).collect::<Result<Vec<Device>>>()?;
    let session = InferenceSession::with_devices(loaded);
    sessions.push((wanted, session.clone()));
    Ok(session)
}
