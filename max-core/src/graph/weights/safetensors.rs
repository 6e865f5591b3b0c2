//! [`SafetensorWeights`]: the weights in one safetensors file or several.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::header::{self, Entry, HeaderError};
use super::index::{Index, is_index};
use super::{Weight, WeightType, WeightsError, WeightsRegistry};
use crate::driver::{Device, DeviceRef, DriverError, MapMode, Tensor};
use crate::dtype::DType;
use crate::graph::TensorType;

type Result<T> = std::result::Result<T, WeightsError>;

/// The weights in one [safetensors](https://huggingface.co/docs/safetensors) file, or in all shards of a model, which can be
/// named by their index: `model.safetensors.index.json` opens the files that it names, in its own folder.
///
/// Opening reads the headers; the bytes of a weight are read when it is asked for ([`open`](Self::open)), or when they are
/// used ([`mmap`](Self::mmap)). A clone is the same weights.
///
/// ```no_run
/// # use max_core as max;
/// use max::graph::weights::SafetensorWeights;
///
/// let weights = SafetensorWeights::open(["model-1-of-2.safetensors", "model-2-of-2.safetensors"])?;
/// // Or:
/// let weights = SafetensorWeights::open(["model.safetensors.index.json"])?;
/// let layer = weights.at("model.layers").at(3);
/// println!("{} has {:?}", layer.prefix(), layer.names().collect::<Vec<_>>());
/// let q = layer.tensor("self_attn.q_proj.weight")?;
/// # Ok::<(), max::Error>(())
/// ```
#[derive(Clone)]
pub struct SafetensorWeights {
    files: Arc<Files>,
    /// What stands before all names: empty, or with a dot at its end.
    prefix: String,
}

struct Files {
    shards: Vec<Shard>,
    /// The shard of each weight, and what its header says.
    entries: BTreeMap<String, (usize, Entry)>,
    metadata: BTreeMap<String, String>,
}

struct Shard {
    path: PathBuf,
    data: Data,
}

enum Data {
    File(Mutex<File>),
    /// All bytes.
    Map(Tensor),
}

impl Files {
    /// Adds a file.
    fn add(&mut self, path: PathBuf, data: impl Fn(&Path, File) -> io::Result<Data>) -> Result<()> {
        let io_error = |source| WeightsError::Io { path: path.clone(), source };
        let mut file = File::open(&path).map_err(io_error)?;
        let bytes = file.metadata().map_err(io_error)?.len();
        let header = header::read(&mut file, bytes).map_err(|error| match error {
            HeaderError::Io(source) => io_error(source),
            HeaderError::Format(reason) => WeightsError::Format { path: path.clone(), reason },
        })?;
        for (name, entry) in header.tensors {
            if let Some((first, _)) = self.entries.get(&name) {
                let first = self.shards.get(*first).map_or(&path, |shard| &shard.path).clone();
                return Err(WeightsError::Twice { name, first, second: path });
            }
            self.entries.insert(name, (self.shards.len(), entry));
        }
        self.metadata.extend(header.metadata);
        let data = data(&path, file).map_err(io_error)?;
        self.shards.push(Shard { path, data });
        Ok(())
    }

    /// The file of a weight.
    fn shard_of(&self, name: &str) -> Option<&Shard> {
        self.entries.get(name).and_then(|(shard, _)| self.shards.get(*shard))
    }
}

impl SafetensorWeights {
    /// Reads the headers of these files. A weight is read into memory of its own each time it is asked for.
    ///
    /// # Errors
    /// When a file cannot be read, is damaged or no safetensors file; when two have a weight of one name; when a shard lacks a
    /// weight that an index says it has, or the index names a file outside of its folder; without any file.
    pub fn open<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<SafetensorWeights> {
        SafetensorWeights::read(paths, |_, file| Ok(Data::File(Mutex::new(file))))
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
    pub unsafe fn mmap<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<SafetensorWeights> {
        SafetensorWeights::read(paths, |path, file| {
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
    ) -> Result<SafetensorWeights> {
        let mut files = Files { shards: Vec::new(), entries: BTreeMap::new(), metadata: BTreeMap::new() };
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
            files.metadata.extend(index.metadata);
        }
        if files.shards.is_empty() {
            return Err(WeightsError::NoFiles);
        }
        Ok(SafetensorWeights { files: Arc::new(files), prefix: String::new() })
    }

    /// The weights below a name: `weights.at("layers").at(0)` has `bias` where `weights` has `layers.0.bias`.
    pub fn at(&self, part: impl fmt::Display) -> SafetensorWeights {
        SafetensorWeights { files: self.files.clone(), prefix: format!("{}{part}.", self.prefix) }
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
        self.files.entries.contains_key(&self.full(name))
    }

    /// Dtype and shape of a weight.
    ///
    /// # Errors
    /// When there is none of that name, or it has a dtype that there is not here.
    pub fn ty(&self, name: &str) -> Result<WeightType> {
        let (name, shard, entry) = self.find(name)?;
        entry.ty().ok_or_else(|| {
            let (path, dtype) = (shard.path.clone(), entry.dtype.0.clone());
            WeightsError::DType { name, path, dtype }
        })
    }

    /// What was written about the files beside their tensors (`__metadata__`), and in an index (`metadata`); of a key in several,
    /// the last value.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.files.metadata
    }

    /// A weight as a tensor of the host.
    ///
    /// # Errors
    /// Those of [`ty`](Self::ty); when it cannot be read, there is no memory for it, or a `bool` is neither 0 nor 1.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let ty = self.ty(name)?;
        let (name, shard, entry) = self.find(name)?;
        let failed = |source| WeightsError::Tensor { name: name.clone(), path: Some(shard.path.clone()), source };
        let bytes = match &shard.data {
            Data::Map(all) => all.narrow(0, entry.start as usize, entry.bytes as usize).map_err(&failed)?,
            Data::File(file) => {
                let mut bytes = Tensor::zeros(DType::U8, [entry.bytes as usize], &Device::cpu()).map_err(&failed)?;
                let target = bytes.as_mut_slice::<u8>().map_err(&failed)?;
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let read = file.seek(SeekFrom::Start(entry.start)).and_then(|_| file.read_exact(target));
                read.map_err(|source| WeightsError::Io { path: shard.path.clone(), source })?;
                bytes
            }
        };
        let typed = match bytes.view(ty.dtype, Some(&ty.shape)) {
            Err(DriverError::Misaligned { .. }) => bytes.copy().and_then(|bytes| bytes.view(ty.dtype, Some(&ty.shape))),
            other => other,
        };
        typed.map_err(failed)
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

    /// A weight with the dtype and the shape that it has in its file, to be declared in a graph by
    /// [`add_weight`](crate::graph::Graph::add_weight). It has its whole name there, with the prefix: the graph is loaded with the
    /// weights that this one is of.
    ///
    /// # Errors
    /// Those of [`ty`](Self::ty).
    pub fn weight(&self, name: &str, device: DeviceRef) -> Result<Weight> {
        let WeightType { dtype, shape } = self.ty(name)?;
        Ok(Weight { name: self.full(name).into(), ty: TensorType::new(dtype, shape, device) })
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn find(&self, name: &str) -> Result<(String, &Shard, &Entry)> {
        let full = self.full(name);
        let found = self.files.entries.get(&full);
        match found.and_then(|(shard, entry)| Some((self.files.shards.get(*shard)?, entry))) {
            Some((shard, entry)) => Ok((full, shard, entry)),
            None => Err(WeightsError::missing(&full, self.files.entries.keys().map(String::as_str))),
        }
    }
}

impl WeightsRegistry for SafetensorWeights {
    fn weight(&self, name: &str) -> Result<Option<Tensor>> {
        if self.exists(name) { self.tensor(name).map(Some) } else { Ok(None) }
    }

    fn weight_names(&self) -> Vec<String> {
        self.names().map(str::to_owned).collect()
    }
}

impl fmt::Debug for SafetensorWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<&Path> = self.files.shards.iter().map(|shard| shard.path.as_path()).collect();
        write!(f, "SafetensorWeights({paths:?}, {:?}, {} weights)", self.prefix(), self.names().count())
    }
}
