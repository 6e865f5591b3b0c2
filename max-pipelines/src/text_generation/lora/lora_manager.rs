//! [`LoraManager`]: adapters of low rank that sequences of one batch choose from (Chen et al.: Punica, 2023).

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::rc::Rc;

use max::functional as f;
use max::nn::kernels::sgmv_lora_kernel;
use max::nn::{Module, with_layer_hook};
use max::tensor::Tensor as Value;
use max_core::driver::{Device, DeviceRef, Tensor};
use max_core::dtype::DType;
use max_core::graph::weights::Weights;
use max_core::graph::{Dim, GraphError, TensorType, TensorValue};

use crate::config::PipelineConfig;
use crate::error::{PipelineError, Result};
use crate::model::{Lora, ModelFiles, WeightPart};
use crate::registry::SupportedArchitecture;

/// An adapter that is loaded. Another one has another serial number, also one of the same name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::text_generation) struct LoraSlot {
    pub(in crate::text_generation) index: usize,
    pub(in crate::text_generation) serial: u64,
}

struct Loaded {
    name: String,
    serial: u64,
}

/// A layer that adapters change.
struct Target {
    /// Its name in the model.
    module: String,
    /// The weight of a file that it is, or whose part it is.
    file: String,
    part: WeightPart,
    /// The rows and columns of the whole weight.
    sizes: [usize; 2],
    /// The rows of the part.
    rows: usize,
    /// `[slots, rank, in]` and `[slots, out, rank]`, which has the adapters' scales.
    values: [Vec<f32>; 2],
    /// The same in the dtype of the model.
    tensors: [Tensor; 2],
}

/// Adapters that sequences of a batch choose from, each in a slot. A graph has those of all slots as inputs, so that adapters are loaded
/// and unloaded without another one.
pub(in crate::text_generation) struct LoraManager {
    slots: Vec<Option<Loaded>>,
    rank: usize,
    dtype: DType,
    targets: Vec<Target>,
    serials: u64,
}

impl LoraManager {
    /// With the adapters of a configuration; `None` if it has no place for any. The layers are those that these adapters change.
    ///
    /// # Errors
    /// When an adapter cannot be read, does not fit the model, or has a higher rank than the configuration says.
    pub(in crate::text_generation) fn new(
        config: &PipelineConfig,
        files: &ModelFiles,
        architecture: &SupportedArchitecture,
        dtype: DType,
    ) -> Result<Option<LoraManager>> {
        let count = config.max_num_loras.max(config.lora_paths.len());
        if config.lora_paths.is_empty() {
            return match count {
                0 => Ok(None),
                _ => Err(PipelineError::Argument {
                    argument: "max_num_loras",
                    value: count.to_string(),
                    expected: "0 without `lora_paths`, whose adapters say which layers are changed",
                }),
            };
        }
        let weights = files.open()?;
        let adapters = config.lora_paths.iter().map(|path| Lora::open(path)).collect::<Result<Vec<_>>>()?;
        let most = adapters.iter().map(Lora::rank).max().unwrap_or(1);
        let rank = config.max_lora_rank.unwrap_or(most);
        let mut manager =
            LoraManager { slots: (0..count).map(|_| None).collect(), rank, dtype, targets: Vec::new(), serials: 0 };
        let adapt = architecture.adapter(files.format);
        let mut names: Vec<String> = adapters.iter().flat_map(Lora::weights).collect();
        names.sort_unstable();
        names.dedup();
        for adapter in &adapters {
            adapter.check(&weights)?;
        }
        for file in names {
            for (module, part) in adapt(&files.config, &file)? {
                manager.targets.push(manager.target(&weights, &file, &module, part)?);
            }
        }
        for (path, adapter) in config.lora_paths.iter().zip(&adapters) {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            manager.put(&name, adapter)?;
        }
        Ok(Some(manager))
    }

    fn target(&self, weights: &Weights, file: &str, module: &str, part: WeightPart) -> Result<Target> {
        let shape = weights.ty(file)?.shape;
        let &[out, size] = &shape[..] else {
            return Err(PipelineError::Argument {
                argument: "lora_paths",
                value: file.to_owned(),
                expected: "the name of a matrix",
            });
        };
        let rows = part.rows.as_ref().map_or(out, |rows| rows.len());
        let (count, rank) = (self.slots.len(), self.rank);
        let values = [vec![0.0; count * rank * size], vec![0.0; count * rows * rank]];
        // Made when an adapter is put.
        let nothing = Tensor::zeros(self.dtype, [0], &Device::cpu())?;
        let tensors = [nothing.clone(), nothing];
        Ok(Target {
            module: module.strip_suffix(".weight").unwrap_or(module).to_owned(),
            file: file.to_owned(),
            part,
            sizes: [out, size],
            rows,
            values,
            tensors,
        })
    }

    /// Loads an adapter under a name.
    pub(in crate::text_generation) fn load(&mut self, name: &str, path: &Path) -> Result<()> {
        self.put(name, &Lora::open(path)?)
    }

    fn put(&mut self, name: &str, adapter: &Lora) -> Result<()> {
        let wrong = |reason: String| PipelineError::Lora { name: name.to_owned(), reason };
        if self.slot(name).is_some() {
            return Err(wrong("there is one of that name already: unload it first".into()));
        }
        let Some(index) = self.slots.iter().position(Option::is_none) else {
            let count = self.slots.len();
            return Err(wrong(format!("all {count} slots are taken: unload one, or raise `max_num_loras`")));
        };
        if adapter.rank() > self.rank {
            let reason = format!("its rank is {}, and `max_lora_rank` is {}", adapter.rank(), self.rank);
            return Err(wrong(reason));
        }
        let other = adapter.weights().into_iter().find(|file| !self.targets.iter().any(|target| target.file == *file));
        if let Some(file) = other {
            return Err(wrong(format!("it changes {file}, which no adapter did that the model was loaded with")));
        }
        let mut changed = Vec::new();
        for target in &self.targets {
            changed.push(target.with(index, self.rank, adapter)?);
        }
        self.set(changed)?;
        self.serials += 1;
        self.slots[index] = Some(Loaded { name: name.to_owned(), serial: self.serials });
        Ok(())
    }

    /// Sets the matrices of all layers, once all of them are made.
    fn set(&mut self, values: Vec<[Vec<f32>; 2]>) -> Result<()> {
        let count = self.slots.len();
        let mut tensors = Vec::new();
        for (target, [a, b]) in self.targets.iter().zip(&values) {
            let shapes = [[count, self.rank, target.sizes[1]], [count, target.rows, self.rank]];
            let tensor = |values: &[f32], shape: [usize; 3]| -> Result<Tensor> {
                let wide = Tensor::from_slice(values, shape)?;
                Ok(f::cast(Value::from(wide), self.dtype)?.driver_tensor()?)
            };
            tensors.push([tensor(a, shapes[0])?, tensor(b, shapes[1])?]);
        }
        for ((target, values), tensors) in self.targets.iter_mut().zip(values).zip(tensors) {
            (target.values, target.tensors) = (values, tensors);
        }
        Ok(())
    }

    /// Gives up an adapter.
    pub(in crate::text_generation) fn unload(&mut self, name: &str) -> Result<()> {
        let Some(slot) = self.slot(name) else { return Err(self.unknown(name)) };
        self.slots[slot.index] = None;
        Ok(())
    }

    /// The adapter of that name.
    pub(in crate::text_generation) fn slot(&self, name: &str) -> Option<LoraSlot> {
        self.slots.iter().enumerate().find_map(|(index, loaded)| {
            let loaded = loaded.as_ref().filter(|loaded| loaded.name == name)?;
            Some(LoraSlot { index, serial: loaded.serial })
        })
    }

    /// Whether an adapter is still loaded.
    pub(in crate::text_generation) fn has(&self, slot: LoraSlot) -> bool {
        self.slots.get(slot.index).and_then(Option::as_ref).is_some_and(|loaded| loaded.serial == slot.serial)
    }

    /// Whether there is place for another adapter.
    pub(in crate::text_generation) fn has_free_slot(&self) -> bool {
        self.slots.iter().any(Option::is_none)
    }

    /// The names of all that are loaded.
    pub(in crate::text_generation) fn names(&self) -> impl Iterator<Item = &str> {
        self.slots.iter().flatten().map(|loaded| loaded.name.as_str())
    }

    /// That there is no adapter of that name.
    pub(in crate::text_generation) fn unknown(&self, name: &str) -> PipelineError {
        let known: Vec<&str> = self.names().collect();
        let reason = format!("it is not loaded; loaded are {}", known.join(", "));
        PipelineError::Lora { name: name.to_owned(), reason }
    }

    /// The types of the inputs of a graph: the adapter of each sequence, and two matrices for each layer.
    pub(in crate::text_generation) fn input_types(&self) -> Vec<TensorType> {
        let mut types = vec![TensorType::new(DType::I32, ("sequences",), DeviceRef::CPU)];
        for target in &self.targets {
            let (count, rank) = (self.slots.len(), self.rank);
            for shape in [[count, rank, target.sizes[1]], [count, target.rows, rank]] {
                types.push(TensorType::new(self.dtype, shape, DeviceRef::CPU));
            }
        }
        types
    }

    /// The matrices, in the order of the [types](Self::input_types).
    pub(in crate::text_generation) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.targets.iter().flat_map(|target| &target.tensors)
    }

    /// Runs `body`, in which layers of `model` add what the adapters do. `inputs` are those of a graph, and `offsets` says where
    /// sequences begin.
    pub(in crate::text_generation) fn adapted<T>(
        &self,
        model: &dyn Module,
        inputs: &[TensorValue],
        offsets: &TensorValue,
        body: impl FnOnce() -> Result<T, GraphError>,
    ) -> Result<T, GraphError> {
        let Some((ids, matrices)) = inputs.split_first() else { return body() };
        let (ids, offsets) = (Value::from(ids), Value::from(offsets));
        let pairs = self.targets.iter().zip(matrices.chunks_exact(2));
        let of_layers: HashMap<String, [Value; 2]> = pairs
            .map(|(target, pair)| (target.module.clone(), [Value::from(&pair[0]), Value::from(&pair[1])]))
            .collect();
        let missed = Rc::new(RefCell::new(of_layers.keys().cloned().collect::<BTreeSet<String>>()));
        let missing = missed.clone();
        let hook = move |name: &str, x: &Value, y: &Value| {
            let Some([a, b]) = of_layers.get(name) else { return Ok(None) };
            missing.borrow_mut().remove(name);
            let tokens = Dim::from("tokens");
            if x.shape().dims().first() != Some(&tokens) {
                let expected = "a layer of all tokens: merge the adapter with `lora_path`";
                return Err(GraphError::argument("lora", "layer", name, expected));
            }
            Ok(Some(f::add(y, sgmv_lora_kernel(x, a, b, &ids, &offsets, None)?)?))
        };
        let result = with_layer_hook(model, hook, body)?;
        match missed.borrow().first() {
            None => Ok(result),
            Some(layer) => {
                let expected = "a layer that runs on its own: merge the adapter with `lora_path`";
                Err(GraphError::argument("lora", "layer", layer, expected))
            }
        }
    }
}

impl Target {
    /// The matrices with those of an adapter in a slot, or with none where it does not change this layer.
    fn with(&self, index: usize, most: usize, adapter: &Lora) -> Result<[Vec<f32>; 2]> {
        let [mut a, mut b] = self.values.clone();
        let ([out, size], rows) = (self.sizes, self.rows);
        let own_a = &mut a[index * most * size..][..most * size];
        let own_b = &mut b[index * rows * most..][..rows * most];
        own_a.fill(0.0);
        own_b.fill(0.0);
        let Some((of_a, of_b)) = adapter.matrices(&self.file)? else { return Ok([a, b]) };
        let rank = adapter.rank();
        if of_a.shape() != [rank, size] || of_b.shape() != [out, rank] {
            let reason = format!(
                "{} is [{out}, {size}], and there are A, {:?}, and B, {:?}",
                self.file,
                of_a.shape(),
                of_b.shape()
            );
            return Err(PipelineError::Lora { name: adapter.path().display().to_string(), reason });
        }
        let of_b = self.part.of(of_b.clone()).unwrap_or(of_b);
        own_a.chunks_mut(size.max(1)).zip(of_a.to_vec::<f32>()?.chunks(size.max(1))).for_each(|(own, row)| {
            own.copy_from_slice(row);
        });
        for (own, row) in own_b.chunks_mut(most.max(1)).zip(of_b.to_vec::<f32>()?.chunks(rank.max(1))) {
            own.iter_mut().zip(row).for_each(|(own, x)| *own = (f64::from(*x) * adapter.scale()) as f32);
        }
        Ok([a, b])
    }
}
