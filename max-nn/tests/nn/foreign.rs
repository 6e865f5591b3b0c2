//! Tensors of other frameworks, hostile ones among them.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use max::dlpack::{DLDataType, DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor, from_dlpack, to_dlpack};
use max::tensor::Tensor;

struct Foreign {
    managed: DLManagedTensorVersioned,
    data: Vec<f32>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    deleted: &'static AtomicU32,
}

unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: made by `foreign`, and freed once.
    let foreign = unsafe { Box::from_raw((*managed).manager_ctx.cast::<Foreign>()) };
    foreign.deleted.fetch_add(1, Ordering::SeqCst);
}

/// What another framework hands out, `change`d before.
fn foreign(change: impl FnOnce(&mut Foreign)) -> (*mut DLManagedTensorVersioned, &'static AtomicU32) {
    let deleted: &'static AtomicU32 = Box::leak(Box::default());
    let dl_tensor = DLTensor {
        data: ptr::null_mut(),
        device: DLDevice { device_type: 1, device_id: 0 },
        ndim: 2,
        dtype: DLDataType { code: 2, bits: 32, lanes: 1 },
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 4,
    };
    let version = DLPackVersion { major: 1, minor: 1 };
    let managed =
        DLManagedTensorVersioned { version, manager_ctx: ptr::null_mut(), deleter: Some(delete), flags: 0, dl_tensor };
    let (data, shape, strides) = ((0..7u8).map(f32::from).collect(), vec![2, 3], vec![1, 2]);
    let mut foreign = Box::new(Foreign { managed, data, shape, strides, deleted });
    foreign.managed.dl_tensor.data = foreign.data.as_mut_ptr().cast();
    foreign.managed.dl_tensor.shape = foreign.shape.as_mut_ptr();
    foreign.managed.dl_tensor.strides = foreign.strides.as_mut_ptr();
    change(&mut foreign);
    let foreign = Box::into_raw(foreign);
    // SAFETY: just made.
    unsafe {
        (*foreign).managed.manager_ctx = foreign.cast::<c_void>();
        (&raw mut (*foreign).managed, deleted)
    }
}

#[test]
fn foreign_memory_is_read_where_it_lies() -> Result<(), max::Error> {
    let (managed, deleted) = foreign(|_| {});
    // SAFETY: as DLPack says it.
    let x = unsafe { from_dlpack(managed) }?;
    assert_eq!(x.to_vec::<f32>()?, [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    let mut y = x.clone();
    let z = &x * 2.0;
    // What changes in place copies first.
    y.store(0.0)?;
    assert_eq!(z.to_vec::<f32>()?, [2.0, 6.0, 10.0, 4.0, 8.0, 12.0]);
    assert_eq!(deleted.load(Ordering::SeqCst), 0);
    drop((x, y, z));
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
    Ok(())
}

#[test]
fn hostile_tensors_are_errors() {
    type Change = fn(&mut Foreign);
    let hostile: [(&str, Change); 11] = [
        ("data", |f| f.managed.dl_tensor.data = ptr::null_mut()),
        ("shape", |f| f.managed.dl_tensor.shape = ptr::null_mut()),
        ("shape", |f| f.shape[0] = -1),
        ("shape", |f| f.shape[0] = i64::MAX),
        ("strides", |f| f.strides[1] = -2),
        ("data", |f| f.managed.dl_tensor.byte_offset = 1),
        ("device_type", |f| f.managed.dl_tensor.device.device_type = 10),
        ("device_id", |f| f.managed.dl_tensor.device = DLDevice { device_type: 2, device_id: -1 }),
        ("dtype", |f| f.managed.dl_tensor.dtype.lanes = 4),
        ("dtype", |f| f.managed.dl_tensor.dtype.bits = 7),
        ("ndim", |f| f.managed.dl_tensor.ndim = -1),
    ];
    for (argument, change) in hostile {
        let (managed, deleted) = foreign(change);
        // SAFETY: nothing but what is to be refused.
        let error = unsafe { from_dlpack(managed) }.map(drop).unwrap_err().to_string();
        assert!(error.contains("`from_dlpack`") && error.contains(argument), "{argument}: {error}");
        assert_eq!(deleted.load(Ordering::SeqCst), 1, "{argument}");
    }
    // SAFETY: null is refused.
    assert!(unsafe { from_dlpack(ptr::null_mut()) }.is_err());
}

#[test]
fn tensors_are_lent() -> Result<(), max::Error> {
    let x = Tensor::arange(0, 6, 1)?.reshape([2, 3])?.t()?;
    let managed = to_dlpack(&x)?;
    // SAFETY: just made.
    let (shape, flags) = unsafe {
        let tensor = &(*managed).dl_tensor;
        (std::slice::from_raw_parts(tensor.shape, 2).to_vec(), (*managed).flags)
    };
    assert_eq!((shape, flags & 1), (vec![3, 2], 1));
    drop(x);
    // SAFETY: taken once.
    let y = unsafe { from_dlpack(managed) }?;
    assert_eq!(y.to_vec::<f32>()?, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert!(to_dlpack(&(&y * f64::NAN)).is_ok());
    Ok(())
}
