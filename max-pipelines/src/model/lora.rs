//! [`Lora`]: an adapter of low rank, merged into a model's weights when they are loaded
//! (Hu et al.: LoRA: Low-Rank Adaptation of Large Language Models, 2021).
//!
//! An adapter is a folder as PEFT writes it: `adapter_config.json` and `adapter_model.safetensors` with matrices A, `[r, in]`, and
//! B, `[out, r]`, for each adapted weight W, `[out, in]`, which becomes `W + scale · B A`.

use std::path::{Path, PathBuf};

use max::functional as f;
use max::tensor::Tensor as Eager;
use max_core::driver::Tensor;
use max_core::dtype::DType;
use max_core::graph::GraphError;
use max_core::graph::weights::{Weights, WeightsError, WeightsFormat, load_weights};

use super::HuggingFaceConfig;
use crate::error::{PipelineError, Result};

/// What PEFT puts before the names of a model's weights.
const PREFIX: &str = "base_model.model.";

/// An adapter.
pub(crate) struct Lora {
    /// The file of its matrices.
    path: PathBuf,
    rank: usize,
    scale: f64,
    weights: Weights,
}

impl Lora {
    /// Opens an adapter.
    ///
    /// # Errors
    /// When a file is not there or damaged, or the adapter is of a kind that is not known here.
    pub fn open(folder: &Path) -> Result<Lora> {
        let config = HuggingFaceConfig::load(folder.join("adapter_config.json"))?;
        for key in ["use_dora", "fan_in_fan_out"] {
            if config.bool_or(key, false)? {
                return Err(config.error(key, "is true, which is not known here"));
            }
        }
        for key in ["rank_pattern", "alpha_pattern"] {
            if config.section(key).is_some_and(|pattern| !pattern.values().is_empty()) {
                return Err(config.error(key, "gives weights other ranks than `r`, which is not known here"));
            }
        }
        if let Some(bias) = config.opt_str("bias")?.filter(|bias| *bias != "none") {
            return Err(config.error("bias", format!("is `{bias}`, and only `none` is known here")));
        }
        let (rank, alpha) = (config.usize("r")?, config.f64("lora_alpha")?);
        let of_rank = rank as f64;
        let scale = alpha / if config.bool_or("use_rslora", false)? { of_rank.sqrt() } else { of_rank };
        let path = folder.join("adapter_model.safetensors");
        let weights = load_weights([&path])?;
        Ok(Lora { path, rank, scale, weights })
    }

    /// Whether every matrix fits a weight of a model.
    ///
    /// # Errors
    /// When one does not, with the names of all of those.
    pub fn check(&self, model: &Weights) -> Result<()> {
        let mut wrong = Vec::new();
        for name in self.weights.names() {
            let Some((target, _)) = split(name) else {
                wrong.push(format!("{name} is no `lora_A` or `lora_B`"));
                continue;
            };
            let [a, b] = matrices(target);
            let shape = |weights: &Weights, name: &str| weights.ty(name).map(|ty| ty.shape).ok();
            let file = weight_name(target);
            match (shape(&self.weights, &a), shape(&self.weights, &b), shape(model, &file)) {
                (.., None) => wrong.push(format!("{name}: the model has no {file}")),
                (Some(a), Some(b), Some(whole))
                    if a.len() == 2 && b.len() == 2 && a[0] == b[1] && whole[..] == [b[0], a[1]] => {}
                (a, b, Some(whole)) => {
                    let shape =
                        |shape: Option<Vec<usize>>| shape.map_or("nothing".into(), |shape| format!("{shape:?}"));
                    wrong.push(format!("{file} is {whole:?}, and there are A, {}, and B, {}", shape(a), shape(b)));
                }
            }
        }
        wrong.sort();
        wrong.dedup();
        if wrong.is_empty() {
            return Ok(());
        }
        let reason = format!("the adapter does not fit the model:\n  {}", wrong.join("\n  "));
        Err(PipelineError::File { path: self.path.clone(), reason })
    }

    /// The file of its matrices.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// What products with its matrices are multiplied by.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The weights of files that it adapts.
    pub fn weights(&self) -> Vec<String> {
        let names = self.weights.names().filter_map(|name| Some(weight_name(split(name)?.0)));
        names.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }

    /// The matrices A and B of a weight of a file, in `float32`; `None` if it is not adapted.
    pub fn matrices(&self, file: &str) -> Result<Option<(Tensor, Tensor)>> {
        if !self.adapts(file) {
            return Ok(None);
        }
        let [a, b] = matrices(file.strip_suffix(".weight").unwrap_or(file));
        Ok(Some((self.weights.data(&a)?.astype(DType::F32)?.data, self.weights.data(&b)?.astype(DType::F32)?.data)))
    }

    /// Whether a weight of a file is adapted.
    pub fn adapts(&self, file: &str) -> bool {
        let [a, _] = matrices(file.strip_suffix(".weight").unwrap_or(file));
        self.weights.ty(&a).is_ok()
    }

    /// The weight of a file, adapted if it is, in its dtype.
    pub fn merge(&self, file: &str, weight: Tensor) -> Result<Tensor, WeightsError> {
        if !self.adapts(file) {
            return Ok(weight);
        }
        let [a, b] = matrices(file.strip_suffix(".weight").unwrap_or(file)).map(|name| self.weights.tensor(&name));
        let (a, b, dtype) = (a?, b?, weight.dtype());
        let sum = || -> Result<Tensor, GraphError> {
            let product = f::matmul(f::cast(Eager::from(b), DType::F32)?, f::cast(Eager::from(a), DType::F32)?)?;
            let sum = f::add(f::cast(Eager::from(weight), DType::F32)?, f::mul(product, self.scale)?)?;
            f::cast(sum, dtype)?.driver_tensor()
        };
        sum().map_err(|error| WeightsError::Format {
            path: self.path.clone(),
            format: WeightsFormat::Safetensors,
            reason: error.to_string(),
        })
    }
}

/// The weight that a matrix adapts, without `.weight`, and which matrix it is.
fn split(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix(PREFIX)?.strip_suffix(".weight")?;
    [".lora_A", ".lora_B"].iter().find_map(|kind| Some((name.strip_suffix(kind)?, *kind)))
}

/// The names of the two matrices.
fn matrices(target: &str) -> [String; 2] {
    ["lora_A", "lora_B"].map(|kind| format!("{PREFIX}{target}.{kind}.weight"))
}

fn weight_name(target: &str) -> String {
    format!("{target}.weight")
}
