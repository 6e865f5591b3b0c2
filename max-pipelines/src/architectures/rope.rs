//! [`rotary_frequencies`]: what configurations say of rotary embeddings.

use max::nn::rope::{
    Llama3RopeScalingParams, LongRoPEScalingParams, RotaryFrequencies, YarnScalingParams, yarn_magnitude,
};

use crate::error::{PipelineError, Result};
use crate::model::HuggingFaceConfig;

/// The rotary embedding of a model with heads of `head_dim` elements: `rope_parameters`, or in older configurations `rope_theta`
/// and `rope_scaling`.
///
/// # Errors
/// When a value is missing or no number, or the kind is not known.
pub fn rotary_frequencies(config: &HuggingFaceConfig, head_dim: usize) -> Result<RotaryFrequencies> {
    of_section(config, scaling(config).as_ref(), head_dim, config.opt_f64("rope_theta")?.unwrap_or(10000.0))
}

/// What a configuration says of how its embedding is stretched.
fn scaling(config: &HuggingFaceConfig) -> Option<HuggingFaceConfig> {
    config.section("rope_parameters").or_else(|| config.section("rope_scaling"))
}

/// How it is stretched.
fn kind(section: &HuggingFaceConfig) -> Result<&str> {
    Ok(section.opt_str("rope_type")?.or(section.opt_str("type")?).unwrap_or("default"))
}

/// What DeepSeek's models multiply the scale of attention by, where YaRN stretches the embedding.
///
/// # Errors
/// When a value is missing or no number.
pub(super) fn attention_magnitude(config: &HuggingFaceConfig) -> Result<f64> {
    let Some(section) = scaling(config) else { return Ok(1.0) };
    let stretches = kind(&section)? != "default";
    match section.opt_f64("mscale_all_dim")?.filter(|mscale| *mscale != 0.0 && stretches) {
        Some(mscale) => Ok(yarn_magnitude(section.f64("factor")?, mscale).powi(2)),
        None => Ok(1.0),
    }
}

/// As [`rotary_frequencies`], of one section.
pub(super) fn of_section(
    config: &HuggingFaceConfig,
    section: Option<&HuggingFaceConfig>,
    head_dim: usize,
    theta: f64,
) -> Result<RotaryFrequencies> {
    let partial = |of: &HuggingFaceConfig| of.opt_f64("partial_rotary_factor");
    let Some(section) = section else {
        let share = partial(config)?.unwrap_or(1.0);
        return Ok(RotaryFrequencies::new(rotated(config, head_dim, share)?, theta)?);
    };
    let share = partial(section)?.or(partial(config)?).unwrap_or(1.0);
    let size = rotated(config, head_dim, share)?;
    let theta = section.opt_f64("rope_theta")?.unwrap_or(theta);
    let kind = kind(section)?;
    let now = || config.usize("max_position_embeddings");
    let original = || match section.opt_usize("original_max_position_embeddings")? {
        Some(size) => Ok(size),
        None => config.opt_usize("original_max_position_embeddings")?.map_or_else(now, Ok),
    };
    let asked_magnitude = section.opt_f64("attention_factor")?;
    match kind {
        "default" => Ok(RotaryFrequencies::new(size, theta)?),
        "linear" => Ok(RotaryFrequencies::new(size, theta)?.linear(section.f64("factor")?)),
        "dynamic" => Ok(RotaryFrequencies::dynamic(size, theta, section.f64("factor")?, now()?)?),
        // As GGUF has any kind whose frequencies do not depend on the sequence: one factor for each pair.
        "factors" => {
            let factors = section.opt_f64s("factors")?.ok_or_else(|| section.error("factors", "is missing"))?;
            Ok(RotaryFrequencies::new(size, theta)?.divided(&factors)?)
        }
        "llama3" => {
            let scaling = Llama3RopeScalingParams {
                factor: section.f64("factor")?,
                low_freq_factor: section.f64("low_freq_factor")?,
                high_freq_factor: section.f64("high_freq_factor")?,
                orig_max_position: original()?,
            };
            Ok(RotaryFrequencies::of(scaling.frequencies(size, theta)?))
        }
        "yarn" => {
            let scaling = YarnScalingParams {
                factor: section.f64("factor")?,
                beta_fast: section.opt_f64("beta_fast")?.unwrap_or(32.0),
                beta_slow: section.opt_f64("beta_slow")?.unwrap_or(1.0),
                original_max_position_embeddings: original()?,
                truncate: section.bool_or("truncate", true)?,
            };
            if scaling.factor <= 0.0 {
                return Err(section.error("factor", "is not above 0"));
            }
            let positive = |key| Ok::<_, PipelineError>(section.opt_f64(key)?.filter(|mscale| *mscale != 0.0));
            let own_magnitude = match (positive("mscale")?, positive("mscale_all_dim")?) {
                (Some(own), Some(all)) => yarn_magnitude(scaling.factor, own) / yarn_magnitude(scaling.factor, all),
                _ => scaling.magnitude(),
            };
            let magnitude = asked_magnitude.unwrap_or(own_magnitude);
            if !magnitude.is_finite() || magnitude <= 0.0 {
                return Err(section.error("mscale_all_dim", "makes queries and keys infinite or 0"));
            }
            Ok(RotaryFrequencies::of(scaling.frequencies(size, theta)?).magnitude(magnitude))
        }
        "longrope" | "su" => {
            let factors = |key| section.opt_f64s(key)?.ok_or_else(|| section.error(key, "is missing"));
            let scaling = LongRoPEScalingParams {
                short_factor: factors("short_factor")?,
                long_factor: factors("long_factor")?,
                original_max_position: original()?,
                max_position_embeddings: now()?,
            };
            let rope = RotaryFrequencies::long(size, theta, &scaling)?;
            Ok(asked_magnitude.map_or(rope.clone(), |magnitude| rope.magnitude(magnitude)))
        }
        _ => Err(section.error(
            "rope_type",
            format!("is `{kind}`, which is not known; known are default, linear, dynamic, llama3, yarn and longrope"),
        )),
    }
}

/// The longest sequence that a model is for. One whose embedding grows with the sequence is for longer ones than it says.
pub(crate) fn longest_sequence(config: &HuggingFaceConfig) -> Result<Option<usize>> {
    let Some(longest) = config.opt_usize("max_position_embeddings")? else { return Ok(None) };
    let grows = |rope: &HuggingFaceConfig| {
        ["rope_type", "type"].iter().any(|key| rope.opt_str(key).ok().flatten() == Some("dynamic"))
    };
    match scaling(config).filter(grows) {
        Some(rope) => Ok(Some((longest as f64 * rope.f64("factor")?.max(1.0)) as usize)),
        None => Ok(Some(longest)),
    }
}

/// How many elements of a head are rotated.
fn rotated(config: &HuggingFaceConfig, head_dim: usize, share: f64) -> Result<usize> {
    let size = (head_dim as f64 * share) as usize;
    match size {
        _ if !(0.0..=1.0).contains(&share) => Err(config.error("partial_rotary_factor", format!("is {share}"))),
        0 => Err(config.error("partial_rotary_factor", "rotates nothing")),
        size if size % 2 == 1 => Err(config.error("head_dim", format!("is odd: {size} elements are rotated"))),
        size => Ok(size),
    }
}
