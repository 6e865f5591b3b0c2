//! [`Sampler`]: draws tokens where the logits are, by the graph of [`token_sampler`].

use max_core::driver::{Device, DeviceRef, Tensor};
use max_core::engine::{InferenceSession, Model};

use super::params::{Random, SamplingParams};
use super::token_sampler::{SamplingConfig, token_sampler};
use crate::error::Result;

/// A model of a sampling graph.
pub(in crate::text_generation) struct Sampler {
    model: Model,
}

/// How a row of logits is sampled.
pub(in crate::text_generation) struct Row {
    top_k: i64,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    seed: i64,
}

impl Row {
    /// By what a sequence asks for, with its next random number.
    pub(in crate::text_generation) fn new(params: &SamplingParams, random: &mut Random) -> Row {
        Row {
            top_k: params.top_k,
            temperature: params.temperature as f32,
            top_p: params.top_p as f32,
            min_p: params.min_p as f32,
            seed: random.bits() as i64,
        }
    }

    /// A row whose token nobody asks for.
    pub(in crate::text_generation) fn unused() -> Row {
        Row { top_k: 1, temperature: 0.0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

impl Sampler {
    pub(in crate::text_generation) fn new(session: &InferenceSession, device: DeviceRef) -> Result<Sampler> {
        Ok(Sampler { model: session.load(&token_sampler(&SamplingConfig::default(), device, false)?)? })
    }

    /// The token of each row of logits, -1 where a row has none.
    pub(in crate::text_generation) fn tokens(&self, logits: &Tensor, rows: &[Row]) -> Result<Vec<i64>> {
        let device: &Device = logits.device();
        let integers = |of: fn(&Row) -> i64| Tensor::from_vec(rows.iter().map(of).collect(), [rows.len()])?.to(device);
        let floats = |of: fn(&Row) -> f32| Tensor::from_vec(rows.iter().map(of).collect(), [rows.len()])?.to(device);
        let previous = Tensor::from_vec(Vec::<i64>::new(), [rows.len(), 0])?.to(device)?;
        let results = self.model.execute([
            logits,
            &previous,
            &integers(|row| row.top_k)?,
            &floats(|row| row.temperature)?,
            &floats(|row| row.top_p)?,
            &floats(|row| row.min_p)?,
            &integers(|row| row.seed)?,
        ])?;
        Ok(results.first().map(|tokens| tokens.to_vec::<i64>()).transpose()?.unwrap_or_default())
    }
}
