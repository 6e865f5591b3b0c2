//! Tensor maps: what bulk copies know of a tensor in global memory.
//!
//! A device's own format is not public. Here the 128 bytes are the fields one
//! after another, which is all that those who make a map and those who take it
//! have to agree on.

use crate::memory::DevicePtr;

/// Bytes of a tensor map.
pub(crate) const BYTES: usize = 128;
/// What a tensor map begins with.
const MAGIC: u64 = u64::from_le_bytes(*b"tile map");
/// The most axes.
const AXES: usize = 5;

/// A tensor in global memory, and the box of it that one copy takes. Axes are in the order of the driver's interface: the
/// first has its elements side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// The address of the first element.
    pub address: DevicePtr,
    /// Bytes of an element.
    pub element: u32,
    /// Elements along each axis.
    pub dims: Vec<u64>,
    /// Bytes from an element to the next along each axis but the first.
    pub strides: Vec<u64>,
    /// Elements of the box along each axis.
    pub extents: Vec<u32>,
    /// Bytes of the pattern in which units of 16 bytes change places in shared memory: 32, 64 or 128; 0 if they do not.
    pub swizzle: u32,
}

impl TensorMap {
    /// The map of a tensor whose dims and strides, in elements, have the last axis last, in boxes of so many columns and rows.
    /// `None` if the last axis has not its elements side by side, or a dim or a stride is not positive.
    pub fn of_tensor(
        address: DevicePtr,
        element: u32,
        [dims, strides]: [&[i64]; 2],
        [columns, rows]: [u32; 2],
        swizzle: u32,
    ) -> Option<TensorMap> {
        let positive = |numbers: &[i64]| -> Option<Vec<u64>> {
            let positive = numbers.iter().rev().map(|&n| u64::try_from(n).ok().filter(|&n| n > 0));
            positive.collect()
        };
        let (dims, strides) = (positive(dims)?, positive(strides)?);
        let (first, rest) = strides.split_first()?;
        let strides = rest.iter().map(|stride| stride * u64::from(element)).collect();
        let extents = [columns, rows].into_iter().chain(std::iter::repeat(1)).take(dims.len()).collect();
        (*first == 1).then_some(TensorMap { address, element, dims, strides, extents, swizzle })
    }

    /// The 128 bytes that a kernel takes as a parameter.
    ///
    /// # Errors
    /// Where the driver would refuse the map: says why.
    ///
    /// ```
    /// use ptx_sim::{DevicePtr, TensorMap};
    /// let mut map = TensorMap {
    ///     address: DevicePtr(256),
    ///     element: 2,
    ///     dims: vec![100, 40],
    ///     strides: vec![208],
    ///     extents: vec![32, 8],
    ///     swizzle: 64,
    /// };
    /// assert!(map.encode().is_ok());
    /// map.strides = vec![200];
    /// assert!(map.encode().is_err());
    /// ```
    pub fn encode(&self) -> Result<[u8; BYTES], String> {
        let axes = self.dims.len();
        let say = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
        say((1..=AXES).contains(&axes), "a tensor has 1 to 5 axes")?;
        say(self.strides.len() == axes - 1 && self.extents.len() == axes, "the numbers of axes differ")?;
        say([1, 2, 4, 8].contains(&self.element), "elements have 1, 2, 4 or 8 bytes")?;
        say(self.address.0.is_multiple_of(16), "the address is no multiple of 16")?;
        say(self.dims.iter().all(|d| (1..=1 << 32).contains(d)), "an axis has 1 to 2^32 elements")?;
        let stride = |s: &u64| s.is_multiple_of(16) && *s < 1 << 40;
        say(self.strides.iter().all(stride), "strides are multiples of 16 bytes below 2^40")?;
        say(self.extents.iter().all(|e| (1..=256).contains(e)), "a box has 1 to 256 elements along an axis")?;
        let row = self.extents[0] * self.element;
        say(row.is_multiple_of(16), "a row of the box is no multiple of 16 bytes")?;
        say([0, 32, 64, 128].contains(&self.swizzle), "a pattern has 32, 64 or 128 bytes")?;
        say(self.swizzle == 0 || row <= self.swizzle, "a row of the box is longer than the pattern")?;
        let mut words = vec![MAGIC, self.address.0, u64::from(self.element) << 32 | axes as u64];
        words.push(u64::from(self.swizzle));
        words.extend(&self.dims);
        words.extend(&self.strides);
        let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.extend(self.extents.iter().flat_map(|e| e.to_le_bytes()));
        let mut map = [0; BYTES];
        map[..bytes.len()].copy_from_slice(&bytes);
        Ok(map)
    }

    /// Reads a map back; `None` if these are not the bytes of one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<TensorMap> {
        let word = |i: usize| Some(u64::from_le_bytes(bytes.get(8 * i..8 * i + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if bytes.len() != BYTES || word(0)? != MAGIC {
            return None;
        }
        let axes = word(2)? as u32 as usize;
        let extents = 8 * (4 + axes + axes.checked_sub(1)?);
        Some(TensorMap {
            address: DevicePtr(word(1)?),
            element: (word(2)? >> 32) as u32,
            swizzle: word(3)? as u32,
            dims: (0..axes).map(|i| word(4 + i)).collect::<Option<_>>()?,
            strides: (0..axes - 1).map(|i| word(4 + axes + i)).collect::<Option<_>>()?,
            extents: (0..axes).map(|i| half(extents + 4 * i)).collect::<Option<_>>()?,
        })
    }

    /// Bytes of a box.
    pub(crate) fn bytes(&self) -> u64 {
        self.extents.iter().map(|&e| u64::from(e)).product::<u64>() * u64::from(self.element)
    }

    /// The address of an element, if it is one of the tensor's.
    pub(crate) fn at(&self, coordinates: &[i64]) -> Option<u64> {
        let inside = coordinates.iter().zip(&self.dims).all(|(&c, &d)| c >= 0 && (c as u64) < d);
        let steps = std::iter::once(u64::from(self.element)).chain(self.strides.iter().copied());
        let offset: u64 = coordinates.iter().zip(steps).map(|(&c, step)| (c as u64).wrapping_mul(step)).sum();
        inside.then(|| self.address.0 + offset)
    }
}
