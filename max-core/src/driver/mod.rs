//! driver

mod device_ref;

pub use device_ref::{DeviceKind, DeviceRef, ParseDeviceRefError};
