//! [`FileWeights`]: the weights in one file or several, of any format whose header says where tensors lie in the file.
//! The files beside this one read headers and the index of shards, and convert blocks.

pub(super) mod gguf_convert;
pub(super) mod header;
mod index;
pub(super) mod json;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Seek};
use std::num::NonZero;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use self::gguf_convert::Converted;
use self::header::{Entry, HeaderError};
use self::index::{Index, is_index};
use super::data::WeightData;
use super::{WeightType, WeightsError, WeightsFormat, WeightsRegistry};
use crate::driver::{Device, DriverError, MapMode, Tensor};
use crate::dtype::DType;
use crate::graph::quantization::QuantizationEncoding;

type Result<T> = std::result::Result<T, WeightsError>;

/// A format of files of weights: [`Safetensors`](super::Safetensors), [`Gguf`](super::Gguf),
/// [`Pytorch`](super::Pytorch), or
/// [`AnyFormat`](super::AnyFormat), which is found by what a file begins with.
///
/// The trait is sealed: readers of other formats implement [`WeightsRegistry`].
pub trait Format: private::Read {}

pub(super) mod private {
    use std::collections::BTreeMap;
    use std::fs::File;

    use super::super::WeightsFormat;
    use super::header::{Header, HeaderError};

    /// Reads the headers of a format.
    pub trait Read: Send + Sync + 'static {
        /// What the format tells beside tensors.
        type Metadata: Default + Send + Sync;

        /// Of a file of so many bytes.
        fn header(file: &mut File, bytes: u64) -> Result<Header<Self::Metadata>, HeaderError>;

        /// Adds what a further file tells.
        fn merge(all: &mut Self::Metadata, more: Self::Metadata);

        /// Adds what an index of shards tells; only safetensors has one.
        fn merge_index(_all: &mut Self::Metadata, _index: BTreeMap<String, String>) {}

        /// What the files are taken for.
        fn format(file: &mut File) -> WeightsFormat;
    }
}

/// The weights in one file of a format, or in all shards of a model, which can be named by their index:
/// `model.safetensors.index.json` opens the files that it names, in its own folder.
///
/// Opening reads the headers; the bytes of a weight are read when it is asked for ([`open`](Self::open)), or when they are
/// used ([`mmap`](Self::mmap)). A clone is the same weights.
///
/// ```no_run
/// # use max_core as max;
/// use max::graph::weights::{GgufWeights, SafetensorWeights};
///
/// let weights = SafetensorWeights::open(["model-1-of-2.safetensors", "model-2-of-2.safetensors"])?;
/// // Or:
/// let weights = SafetensorWeights::open(["model.safetensors.index.json"])?;
/// let layer = weights.at("model.layers").at(3);
/// println!("{} has {:?}", layer.prefix(), layer.names().collect::<Vec<_>>());
/// let q = layer.tensor("self_attn.q_proj.weight")?;
///
/// let quantized = GgufWeights::open(["model-q4_k.gguf"])?;
/// println!("{:?}", quantized.data("blk.0.attn_q.weight")?.quantization_encoding);
/// # Ok::<(), max::Error>(())
/// ```
pub struct FileWeights<F: Format> {
    files: Arc<Files<F>>,
    /// What stands before all names: empty, or with a dot at its end.
    prefix: String,
}

impl<F: Format> Clone for FileWeights<F> {
    fn clone(&self) -> Self {
        FileWeights { files: self.files.clone(), prefix: self.prefix.clone() }
    }
}

struct Files<F: Format> {
    shards: Vec<Shard>,
    /// The shard of each weight, and what its header says.
    entries: BTreeMap<String, (usize, Entry)>,
    metadata: F::Metadata,
    /// The weights that graphs were given, and whether as bytes.
    allocated: Mutex<BTreeMap<String, bool>>,
}

struct Shard {
    path: PathBuf,
    format: WeightsFormat,
    data: Data,
}

enum Data {
    File(File),
    /// All bytes.
    Map(Tensor),
}

impl<F: Format> Files<F> {
    /// Adds a file.
    fn add(&mut self, path: PathBuf, data: impl Fn(&Path, File) -> io::Result<Data>) -> Result<()> {
        let io_error = |source| WeightsError::Io { path: path.clone(), source };
        let mut file = File::open(&path).map_err(io_error)?;
        let bytes = file.metadata().map_err(io_error)?.len();
        let format = F::format(&mut file);
        file.rewind().map_err(io_error)?;
        let header = F::header(&mut file, bytes).map_err(|error| match error {
            HeaderError::Io(source) => io_error(source),
            HeaderError::Format(reason) => WeightsError::Format { path: path.clone(), format, reason },
        })?;
        for (name, entry) in header.tensors {
            if let Some((first, _)) = self.entries.get(&name) {
                let first = self.shards.get(*first).map_or(&path, |shard| &shard.path).clone();
                return Err(WeightsError::Twice { name, first, second: path });
            }
            self.entries.insert(name, (self.shards.len(), entry));
        }
        F::merge(&mut self.metadata, header.metadata);
        let data = data(&path, file).map_err(io_error)?;
        self.shards.push(Shard { path, format, data });
        Ok(())
    }

    /// The file of a weight.
    fn shard_of(&self, name: &str) -> Option<&Shard> {
        self.entries.get(name).and_then(|(shard, _)| self.shards.get(*shard))
    }
}

impl<F: Format> FileWeights<F> {
    /// Reads the headers of these files. A weight is read into memory of its own each time it is asked for.
    ///
    /// # Errors
    /// When a file cannot be read, is damaged or of another format; when two have a weight of one name; when a shard lacks a
    /// weight that an index says it has, or the index names a file outside of its folder; without any file.
    pub fn open<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<FileWeights<F>> {
        FileWeights::read(paths, |_, file| Ok(Data::File(file)))
    }

    /// Reads the headers of these files and maps them into memory: weights are tensors over the files' pages, which are read
    /// when they are used and shared with all who map them. A weight that is not aligned in its file is copied.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    ///
    /// # Safety
    ///
    /// Nobody changes or truncates the files as long as the weights, their tensors or a model with them exist: a change
    /// would show through shared references, and reading beyond the end ends the process.
    pub unsafe fn mmap<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<FileWeights<F>> {
        FileWeights::read(paths, |path, file| {
            let bytes = file.metadata()?.len();
            let bytes = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
            // SAFETY: by contract, the file does not change.
            let map = unsafe { Tensor::mmap(path, DType::U8, [bytes], MapMode::ReadOnly, 0) };
            map.map(Data::Map).map_err(io::Error::other)
        })
    }

    fn read<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        data: impl Fn(&Path, File) -> io::Result<Data>,
    ) -> Result<FileWeights<F>> {
        let mut files = Files::<F> {
            shards: Vec::new(),
            entries: BTreeMap::new(),
            metadata: F::Metadata::default(),
            allocated: Mutex::default(),
        };
        for path in paths {
            let path = path.as_ref();
            if !is_index(path) {
                files.add(path.to_path_buf(), &data)?;
                continue;
            }
            let index = Index::read(path)?;
            for shard in index.shards() {
                files.add(shard, &data).map_err(|error| index.explain(error))?;
            }
            index.check(|name| files.shard_of(name).map(|shard| &*shard.path))?;
            F::merge_index(&mut files.metadata, index.metadata);
        }
        if files.shards.is_empty() {
            return Err(WeightsError::NoFiles);
        }
        Ok(FileWeights { files: Arc::new(files), prefix: String::new() })
    }

    /// The weights below a name: `weights.at("layers").at(0)` has `bias` where `weights` has `layers.0.bias`.
    pub fn at(&self, part: impl fmt::Display) -> FileWeights<F> {
        FileWeights { files: self.files.clone(), prefix: format!("{}{part}.", self.prefix) }
    }

    /// The name that these weights are below; empty for all.
    pub fn prefix(&self) -> &str {
        self.prefix.strip_suffix('.').unwrap_or_default()
    }

    /// The names, sorted, without the prefix.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let from = self.files.entries.range::<str, _>((Bound::Included(&*self.prefix), Bound::Unbounded));
        from.map_while(|(name, _)| name.strip_prefix(&*self.prefix))
    }

    /// Whether there is a weight of exactly this name.
    pub fn exists(&self, name: &str) -> bool {
        self.files.entries.contains_key(&*self.full(name))
    }

    /// Dtype and shape of a weight.
    ///
    /// # Errors
    /// When there is none of that name, or it has a dtype that there is not here.
    pub fn ty(&self, name: &str) -> Result<WeightType> {
        let (name, shard, entry) = self.find(name)?;
        entry.ty().ok_or_else(|| {
            let (path, dtype) = (shard.path.clone(), entry.dtype.clone().err().unwrap_or_default());
            WeightsError::DType { name: name.into(), path, dtype }
        })
    }

    /// What is told beside the tensors, as the format has it; of a key in several files, the last value.
    pub(super) fn told(&self) -> &F::Metadata {
        &self.files.metadata
    }

    /// The format of the first file.
    pub fn format(&self) -> WeightsFormat {
        self.files.shards.first().map_or(WeightsFormat::Safetensors, |shard| shard.format)
    }

    /// How the bytes of a weight are quantized; `None` where its elements are numbers of its dtype.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn quantization_encoding(&self, name: &str) -> Result<Option<QuantizationEncoding>> {
        Ok(self.find(name)?.2.encoding)
    }

    /// A weight with what its file says of it.
    ///
    /// # Errors
    /// Those of [`tensor`](Self::tensor).
    pub fn data(&self, name: &str) -> Result<WeightData> {
        let quantization_encoding = self.quantization_encoding(name)?;
        Ok(WeightData { name: self.full(name).into(), data: self.tensor(name)?, quantization_encoding })
    }

    /// A weight as a tensor of the host.
    ///
    /// # Errors
    /// Those of [`ty`](Self::ty); when it cannot be read, there is no memory for it, or a `bool` is neither 0 nor 1.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let ty = self.ty(name)?;
        let (name, shard, entry) = self.find(name)?;
        let failed =
            |source| WeightsError::Tensor { name: name.clone().into(), path: Some(shard.path.clone()), source };
        let bytes = match &shard.data {
            Data::Map(all) => all.narrow(0, entry.start as usize, entry.bytes as usize).map_err(&failed)?,
            Data::File(file) => {
                let mut bytes = Tensor::zeros(DType::U8, [entry.bytes as usize], &Device::cpu()).map_err(&failed)?;
                let target = bytes.as_mut_slice::<u8>().map_err(&failed)?;
                read_at(file, entry.start, target)
                    .map_err(|source| WeightsError::Io { path: shard.path.clone(), source })?;
                bytes
            }
        };
        let bytes = match entry.converted {
            Some(kind) => convert(kind, &bytes).map_err(&failed)?,
            None => bytes,
        };
        let order = entry.order.as_deref();
        let shape = order.map_or(ty.shape.clone(), |order| order.iter().map(|axis| ty.shape[*axis]).collect());
        let typed = match bytes.view(ty.dtype, Some(&shape)) {
            Err(DriverError::Misaligned { .. }) => bytes.copy().and_then(|bytes| bytes.view(ty.dtype, Some(&shape))),
            other => other,
        };
        let Some(order) = order else { return typed.map_err(failed) };
        // Where each axis of the tensor is in the file.
        let place = |axis| order.iter().position(|at| *at == axis).map_or(0, |at| at as isize);
        let axes: Vec<isize> = (0..order.len()).map(place).collect();
        typed.and_then(|tensor| tensor.permute(&axes)?.contiguous()).map_err(failed)
    }

    /// As [`tensor`](Self::tensor), of the dtype and the shape that the caller expects.
    ///
    /// # Errors
    /// Those of [`tensor`](Self::tensor); [`WeightsError::Mismatch`].
    pub fn tensor_of(&self, name: &str, dtype: DType, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let expected = WeightType { dtype, shape: shape.as_ref().to_vec() };
        let (full, shard, _) = self.find(name)?;
        self.ty(name)?.require(&expected, &full, Some(&shard.path))?;
        self.tensor(name)
    }

    /// The weights without a prefix.
    pub(super) fn all(&self) -> FileWeights<F> {
        FileWeights { files: self.files.clone(), prefix: String::new() }
    }

    /// The file of a weight.
    pub(super) fn path_of(&self, name: &str) -> Result<&Path> {
        Ok(&self.find(name)?.1.path)
    }

    /// What was allocated, by whole names, and whether as bytes.
    pub(super) fn allocated(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.files.allocated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn full<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self.prefix.as_str() {
            "" => Cow::Borrowed(name),
            prefix => Cow::Owned(format!("{prefix}{name}")),
        }
    }

    fn find<'n>(&self, name: &'n str) -> Result<(Cow<'n, str>, &Shard, &Entry)> {
        let full = self.full(name);
        let found = self.files.entries.get(&*full);
        match found.and_then(|(shard, entry)| Some((self.files.shards.get(*shard)?, entry))) {
            Some((shard, entry)) => Ok((full, shard, entry)),
            None => Err(WeightsError::missing(&full, self.files.entries.keys().map(String::as_str))),
        }
    }
}

/// Blocks as what they become, by several threads.
fn convert(kind: Converted, bytes: &Tensor) -> std::result::Result<Tensor, DriverError> {
    let blocks = bytes.as_slice::<u8>()?;
    let count = blocks.len() / kind.block_size();
    let mut out = Tensor::zeros(DType::U8, [count * kind.converted_size()], &Device::cpu())?;
    let part = (READ_BYTES / kind.converted_size()).max(1);
    let parts = blocks.chunks(part * kind.block_size());
    let parts = parts.zip(out.as_mut_slice::<u8>()?.chunks_mut(part * kind.converted_size()));
    let readers = thread::available_parallelism().map_or(1, NonZero::get).min(READERS).min(parts.len());
    let parts = Mutex::new(parts);
    let work = || {
        loop {
            let next = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((blocks, out)) = next else { return };
            kind.convert(blocks, out);
        }
    };
    thread::scope(|scope| {
        // What a thread that does not start would do, the others do.
        let others = (1..readers).map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok());
        let _others: Vec<_> = others.collect();
        work();
    });
    Ok(out)
}

/// The least bytes that are worth a thread to read them: several huge pages, which the system clears at the first touch.
const READ_BYTES: usize = 8 << 20;
/// The most threads that read a weight.
const READERS: usize = 8;

/// Fills `target` with the bytes of a file from `start` on, by several threads: the system clears new pages and copies to them at a few
/// GB/s a thread. They are threads of their own, since one of a pool would take up other work while it waits.
fn read_at(file: &File, start: u64, target: &mut [u8]) -> io::Result<()> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let readers = processors.min(READERS).min(target.len() / READ_BYTES);
    let parts = Mutex::new(target.chunks_mut(READ_BYTES).enumerate());
    let read = || -> io::Result<()> {
        loop {
            let next = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((i, part)) = next else { return Ok(()) };
            read_part(file, start + (i * READ_BYTES) as u64, part)?;
        }
    };
    thread::scope(|scope| {
        // What a thread that does not start would read, the others do.
        let start = |_| thread::Builder::new().spawn_scoped(scope, read).ok();
        let others: Vec<_> = (1..readers).map_while(start).collect();
        others.into_iter().fold(read(), |result, other| {
            result.and(other.join().unwrap_or_else(|_| Err(io::Error::other("a thread that reads it panicked"))))
        })
    })
}

#[cfg(unix)]
fn read_part(file: &File, start: u64, target: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, target, start)
}

#[cfg(windows)]
fn read_part(file: &File, mut start: u64, mut target: &mut [u8]) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !target.is_empty() {
        match file.seek_read(target, start) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                target = &mut target[count..];
                start += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl<F: Format> WeightsRegistry for FileWeights<F> {
    fn weight(&self, name: &str) -> Result<Option<Tensor>> {
        if !self.exists(name) {
            return Ok(None);
        }
        let as_bytes = self.allocated().get(&*self.full(name)) == Some(&true);
        (if as_bytes { self.bytes(name) } else { self.tensor(name) }).map(Some)
    }

    fn quantized(&self, name: &str) -> Result<Option<(Tensor, QuantizationEncoding)>> {
        if !self.exists(name) {
            return Ok(None);
        }
        let encoding = self.quantization_encoding(name)?;
        encoding.map(|encoding| Ok((self.tensor(name)?, encoding))).transpose()
    }

    fn weight_names(&self) -> Vec<String> {
        self.names().map(str::to_owned).collect()
    }
}

impl<F: Format> fmt::Debug for FileWeights<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<&Path> = self.files.shards.iter().map(|shard| shard.path.as_path()).collect();
        write!(
            f,
            "{}Weights({paths:?}, {:?}, {} weights)",
            self.format().type_name(),
            self.prefix(),
            self.names().count()
        )
    }
}
