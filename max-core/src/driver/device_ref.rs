//! [`DeviceRef`]: the name of a device, `cpu:0` or `gpu:1`, for types and graphs that are built without one at hand.

use std::fmt;
use std::str::FromStr;

/// What kind of machine a device is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The host's processors.
    Cpu,
    /// An accelerator.
    Gpu,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
        })
    }
}

/// A device by kind and number. It says nothing about whether the machine has such a device.
///
/// ```
/// use max_core::driver::DeviceRef;
///
/// assert_eq!(DeviceRef::gpu(1).to_string(), "gpu:1");
/// assert_eq!("cpu".parse(), Ok(DeviceRef::CPU));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceRef {
    /// The kind of device.
    pub kind: DeviceKind,
    /// Its number among the devices of this kind.
    pub id: u32,
}

impl DeviceRef {
    /// The host, `cpu:0`.
    pub const CPU: DeviceRef = DeviceRef::cpu(0);

    /// The processors of NUMA node or host number `id`.
    pub const fn cpu(id: u32) -> Self {
        DeviceRef { kind: DeviceKind::Cpu, id }
    }

    /// The accelerator number `id`.
    pub const fn gpu(id: u32) -> Self {
        DeviceRef { kind: DeviceKind::Gpu, id }
    }

    /// Whether this is a CPU.
    pub const fn is_cpu(self) -> bool {
        matches!(self.kind, DeviceKind::Cpu)
    }

    /// Whether this is an accelerator.
    pub const fn is_gpu(self) -> bool {
        matches!(self.kind, DeviceKind::Gpu)
    }
}

impl fmt::Display for DeviceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.id)
    }
}

/// A text that names no device.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown device `{text}`: write `cpu`, `gpu`, or either with a number, such as `gpu:1`")]
#[non_exhaustive]
pub struct ParseDeviceRefError {
    /// The text that was read.
    pub text: String,
}

impl FromStr for DeviceRef {
    type Err = ParseDeviceRefError;

    /// Reads `cpu`, `gpu`, `cpu:0`, `gpu:1`; without a number it is 0.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseDeviceRefError { text: text.to_owned() };
        let (kind, id) = text.split_once(':').unwrap_or((text, "0"));
        let id = id.parse().map_err(|_| error())?;
        match kind {
            "cpu" => Ok(DeviceRef::cpu(id)),
            "gpu" => Ok(DeviceRef::gpu(id)),
            _ => Err(error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_others_are_refused() {
        for device in [DeviceRef::CPU, DeviceRef::cpu(3), DeviceRef::gpu(0), DeviceRef::gpu(7)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        for text in ["", "tpu", "gpu:", "gpu:-1", "gpu:0:1"] {
            assert_eq!(text.parse::<DeviceRef>(), Err(ParseDeviceRefError { text: text.to_owned() }));
        }
    }
}
