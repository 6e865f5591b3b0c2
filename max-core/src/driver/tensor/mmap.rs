//! Tensors over files that are mapped into memory.

use super::Tensor;
use super::layout::byte_count;
use super::storage::Storage;
use crate::driver::{Device, DriverError};
use crate::dtype::DType;
use memmap2::MmapOptions;
use std::fs::File;
use std::path::Path;

/// What may be done with a mapped tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum MapMode {
    /// It can be read and written; what is written stays in memory and never reaches the file.
    #[default]
    CopyOnWrite,
    /// It can be read.
    ReadOnly,
    /// It can be read and written, and what is written reaches the file, at the latest when the process ends.
    ReadWrite,
}

impl Tensor {
    /// A host tensor over the bytes of a file from `offset` on, in row-major order and the machine's byte order. Nothing is
    /// read before it is used, except for `bool`, whose bytes are checked.
    ///
    /// # Errors
    ///
    /// [`DriverError::Io`]; [`DriverError::ShortFile`]; [`DriverError::Misaligned`] if `offset` is not a multiple of the
    /// dtype's alignment; [`DriverError::InvalidBool`]; [`DriverError::SizeOverflow`].
    ///
    /// # Safety
    ///
    /// Nobody else changes or truncates the file while the tensor, a clone or a view of it exists: a change would show through
    /// shared references, and reading beyond the end ends the process.
    pub unsafe fn mmap(
        path: impl AsRef<Path>,
        dtype: DType,
        shape: impl AsRef<[usize]>,
        mode: MapMode,
        offset: u64,
    ) -> Result<Tensor, DriverError> {
        let (path, shape) = (path.as_ref(), shape.as_ref());
        let (_, bytes) = byte_count("mmap", dtype, shape)?;
        if !offset.is_multiple_of(dtype.align() as u64) {
            return Err(DriverError::Misaligned { op: "mmap", dtype });
        }
        let io_error = |source| DriverError::Io { op: "mmap", path: path.to_owned(), source };
        let write = mode == MapMode::ReadWrite;
        let file = File::options().read(true).write(write).open(path).map_err(io_error)?;
        let found = file.metadata().map_err(io_error)?.len();
        if offset.checked_add(bytes as u64).is_none_or(|end| end > found) {
            return Err(DriverError::ShortFile { path: path.to_owned(), offset, needed: bytes, found });
        }
        if bytes == 0 {
            // There is nothing to map.
            return Ok(Tensor::over(Storage::allocate(0, &Device::cpu())?, dtype, shape));
        }
        let mut options = MmapOptions::new();
        options.offset(offset).len(bytes);
        // SAFETY: by contract, the file does not change.
        let storage = unsafe {
            match mode {
                MapMode::CopyOnWrite => Storage::from_map_mut(options.map_copy(&file).map_err(io_error)?),
                MapMode::ReadWrite => Storage::from_map_mut(options.map_mut(&file).map_err(io_error)?),
                MapMode::ReadOnly => Storage::from_map(options.map(&file).map_err(io_error)?),
            }
        };
        let tensor = Tensor::over(storage, dtype, shape);
        if dtype == DType::Bool {
            tensor.require_valid_bools("mmap")?;
        }
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn map(
        file: &tempfile::NamedTempFile,
        dtype: DType,
        shape: &[usize],
        mode: MapMode,
        offset: u64,
    ) -> Result<Tensor, DriverError> {
        // SAFETY: only this test knows the file.
        unsafe { Tensor::mmap(file.path(), dtype, shape, mode, offset) }
    }

    #[test]
    fn maps_read_and_write() {
        let file = file(&[9, 9, 9, 9, 1, 0, 2, 0, 3, 0]);
        let mut x = map(&file, DType::U16, &[3], MapMode::CopyOnWrite, 4).unwrap();
        assert_eq!(x.to_vec::<u16>().unwrap(), [1, 2, 3]);
        x.as_mut_slice::<u16>().unwrap()[0] = 77;
        assert_eq!(x.to_vec::<u16>().unwrap(), [77, 2, 3]);
        let mut y = map(&file, DType::U16, &[3], MapMode::ReadOnly, 4).unwrap();
        assert_eq!(y.to_vec::<u16>().unwrap(), [1, 2, 3]);
        assert!(matches!(y.as_mut_slice::<u16>(), Err(DriverError::ReadOnly { .. })));
        assert_eq!(map(&file, DType::F64, &[0, 3], MapMode::ReadOnly, 8).unwrap().num_elements(), 0);
    }

    #[test]
    fn what_is_written_reaches_the_file() {
        let file = file(&[9, 9, 1, 0, 2, 0]);
        let mut x = map(&file, DType::U16, &[2], MapMode::ReadWrite, 2).unwrap();
        x.as_mut_slice::<u16>().unwrap()[1] = 0x0504;
        drop(x);
        assert_eq!(std::fs::read(file.path()).unwrap(), [9, 9, 1, 0, 4, 5]);
    }

    #[test]
    fn bad_files_are_errors() {
        let file = file(&[0, 1, 2, 0, 0, 0]);
        let result = |dtype, shape: &[usize], offset| map(&file, dtype, shape, MapMode::ReadOnly, offset);
        assert!(matches!(
            result(DType::U16, &[3], 2),
            Err(DriverError::ShortFile { offset: 2, needed: 6, found: 6, .. })
        ));
        assert!(matches!(result(DType::U16, &[1], u64::MAX - 1), Err(DriverError::ShortFile { .. })));
        assert!(matches!(result(DType::U16, &[1], 1), Err(DriverError::Misaligned { .. })));
        assert!(matches!(result(DType::Bool, &[6], 0), Err(DriverError::InvalidBool { index: 2, value: 2, .. })));
        assert_eq!(result(DType::Bool, &[2], 0).unwrap().to_vec::<bool>().unwrap(), [false, true]);
        // SAFETY: there is no such file.
        let missing = unsafe { Tensor::mmap("/no/such/file", DType::U8, [1], MapMode::ReadOnly, 0) };
        assert_eq!(
            missing.unwrap_err().to_string(),
            "mmap: cannot read /no/such/file: No such file or directory (os error 2)"
        );
    }
}
