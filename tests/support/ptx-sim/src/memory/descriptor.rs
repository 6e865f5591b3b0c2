//! Matrices in shared memory as `wgmma` finds them: the 64-bit descriptor, and
//! where it says that each element lies.
//!
//! Elements lie in rows of 16, 32, 64 or 128 bytes, along the sum ("K-major")
//! or, those of two bytes, across it ("MN-major"); eight such rows make a
//! pattern. In a pattern the place of 16 bytes in their row is exclusive-ored
//! with the number of the row, or rather bits 4 to 6 of the address with bits 7
//! to 9, as many of these as the row has bits.

/// The fields of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub start: u64,
    /// Bytes from a pattern to the next along the elements of its rows; of
    /// K-major rows, only without swizzling.
    pub leading: u64,
    /// Bytes from eight rows to the next eight.
    pub stride: u64,
    /// Bytes of a row: 16 without swizzling, else 32, 64 or 128.
    pub row: u64,
}

/// Bits that have no meaning, and must be zero.
const RESERVED: u64 = 0b11 << 14 | 0b11 << 30 | 0b111 << 46 | 0x3ff << 52;

/// Bytes of the elements along the sum, of whatever type.
pub(crate) const STEPS_BYTES: usize = 32;

impl Descriptor {
    /// Reads a descriptor of a matrix with `extent` rows (or columns) across
    /// the sum, `across` if these are neighbours in memory, which are then of
    /// two bytes. `Err` says why there is no such matrix.
    pub fn read(bits: u64, extent: usize, across: bool) -> Result<Descriptor, String> {
        if bits & RESERVED != 0 {
            return Err(format!("its reserved bits {:#x} are not zero", bits & RESERVED));
        }
        if bits >> 49 & 7 != 0 {
            return Err("a base offset other than 0 is not simulated".into());
        }
        let field = |at: u32| (bits >> at & 0x3fff) << 4;
        let row = [16, 128, 64, 32][(bits >> 62) as usize];
        let (start, leading, stride) = (field(0), field(16), field(32));
        let d = Descriptor { start, leading, stride, row };
        if row == 16 {
            return Ok(d);
        }
        let pattern = 8 * row;
        let in_row = start % pattern;
        if in_row >= row {
            return Err(format!("its start {start:#x} is not in the first row of a pattern of {pattern} bytes"));
        }
        if across && (in_row != 0 || !(2 * extent as u64).is_multiple_of(row)) {
            return Err(format!("{extent} elements from {in_row} bytes on are no whole rows of {row} bytes"));
        }
        if !across && in_row + STEPS_BYTES as u64 > row {
            return Err(format!("{STEPS_BYTES} bytes from {in_row} bytes on are beyond a row of {row} bytes"));
        }
        if !stride.is_multiple_of(pattern) || across && !leading.is_multiple_of(pattern) {
            return Err(format!("its offsets {leading} and {stride} are no multiples of a pattern of {pattern} bytes"));
        }
        Ok(d)
    }

    /// The address of the 16 bytes that hold element `mn` across the sum and
    /// `k` along it, of so many bytes, and the element's place in them.
    pub fn at(self, mn: usize, k: usize, across: bool, size: usize) -> (u64, usize) {
        // Along the rows in memory, and down.
        let (along, down) = if across { (mn as u64, k as u64) } else { (k as u64, mn as u64) };
        let per_unit = 16 / size as u64;
        let (per_row, in_unit) = (self.row / size as u64, (along % per_unit) as usize);
        let offset = match (self.row, across) {
            // Core matrices of eight rows of 16 bytes. Across the sum the two offsets change their meaning.
            (16, false) => along / per_unit * self.leading + down / 8 * self.stride + down % 8 * 16,
            (16, true) => along / per_unit * self.stride + down / 8 * self.leading + down % 8 * 16,
            _ => {
                let unit = along % per_row / per_unit;
                along / per_row * self.leading + unit * 16 + down / 8 * self.stride + down % 8 * self.row
            }
        };
        let address = self.start + offset;
        let bits = self.row / 16 - 1;
        (address ^ (address >> 7 & bits) << 4, in_unit)
    }
}
