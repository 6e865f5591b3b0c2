//! Which experts of a [`MoE`] a token goes through, and with which weights.

use max_core::dtype::DType;
use max_core::graph::{Dim, GraphError};

use super::MoE;
use crate::Result;
use crate::functional as f;
use crate::nn::Forward;
use crate::tensor::Tensor;

/// Less than any sum of weights, which may be 0 where sigmoids vanish.
const LEAST_SUM: f64 = 1e-20;

/// What becomes of the results of a gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ScoringFunc {
    /// The scores of a token's experts sum to 1.
    #[default]
    Softmax,
    /// Each expert has a score of its own, between 0 and 1.
    Sigmoid,
}

/// How a group of experts is scored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupScore {
    /// By its largest score.
    Largest,
    /// By the sum of its two largest scores.
    TwoLargest,
}

/// Experts in groups of neighbours: a token's are of the groups with the largest scores (DeepSeek-AI: DeepSeek-V2, 2024).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpertGroups {
    /// How many groups there are, which divides the number of experts.
    pub n_group: usize,
    /// How many of them are chosen from.
    pub topk_group: usize,
    /// How they are scored.
    pub score: GroupScore,
}

impl ExpertGroups {
    /// Whether so many experts are in such groups, of which a token goes through some.
    ///
    /// # Errors
    /// When the groups are not of one size, or those that are chosen have too few experts.
    #[track_caller]
    pub fn check(self, experts: usize, per_token: usize) -> Result<()> {
        let of_group = experts.checked_div(self.n_group).unwrap_or(0);
        let scored = match self.score {
            GroupScore::Largest => 1,
            GroupScore::TwoLargest => 2,
        };
        let fits = of_group >= scored
            && of_group * self.n_group == experts
            && (1..=self.n_group).contains(&self.topk_group)
            && self.topk_group * of_group >= per_token;
        if fits {
            return Ok(());
        }
        let value = format!("{} of {} groups of {experts} experts", self.topk_group, self.n_group);
        let expected =
            format!("groups of one size, {scored} or more, of which those chosen have {per_token} experts or more");
        Err(GraphError::argument("moe", "groups", value, expected))
    }

    /// `scores`, `[tokens, experts]`, with negative infinity for experts of other groups than those that a token chooses from.
    #[track_caller]
    fn limited(self, scores: &Tensor, per_token: usize) -> Result<Tensor> {
        let shape = scores.shape();
        let experts = shape.last().and_then(Dim::as_static).and_then(|count| usize::try_from(count).ok());
        let experts = experts.unwrap_or_default();
        self.check(experts, per_token)?;
        let of_group = experts / self.n_group;
        let grouped = f::reshape(scores, [shape[0].clone(), self.n_group.into(), of_group.into()])?;
        let of_groups = match self.score {
            GroupScore::Largest => f::max(&grouped, -1)?,
            GroupScore::TwoLargest => f::sum(f::top_k(&grouped, 2, -1)?.0, -1)?,
        };
        // [tokens, 1, chosen] beside [groups, 1].
        let (_, chosen) = f::top_k(f::squeeze(of_groups, -1)?, self.topk_group, -1)?;
        let groups = f::cast(Tensor::arange(0, self.n_group as i64, 1)?, chosen.dtype())?;
        let is_chosen = f::equal(f::unsqueeze(chosen, 1)?, f::unsqueeze(groups, 1)?)?;
        let is_chosen = f::greater(f::max(f::cast(is_chosen, DType::I32)?, -1)?, 0)?;
        f::reshape(f::where_(is_chosen, grouped, f32::NEG_INFINITY)?, shape)
    }
}

impl MoE {
    /// The weights of each token's experts, `float32`, and which these are, `int64`: both `[tokens, experts per token]`.
    #[track_caller]
    pub(super) fn route(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        // A gate in `float32` is one that rounding must not decide.
        let x = match self.gate.quantization_encoding {
            None => &f::cast(x, self.gate.weight.dtype())?,
            Some(_) => x,
        };
        let scores = f::cast(self.gate.call(x)?, DType::F32)?;
        let scores = match self.scoring_func {
            ScoringFunc::Softmax => f::softmax(scores, -1)?,
            ScoringFunc::Sigmoid => f::sigmoid(scores)?,
        };
        let mut choice = match &self.e_score_correction_bias {
            Some(bias) => f::add(&scores, bias)?,
            None => scores.clone(),
        };
        if let Some(groups) = self.groups {
            choice = groups.limited(&choice, self.num_experts_per_token)?;
        }
        let (mut weights, chosen) = f::top_k(choice, self.num_experts_per_token, -1)?;
        if self.e_score_correction_bias.is_some() {
            weights = f::gather_nd(scores, f::unsqueeze(&chosen, -1)?, 1)?;
        }
        if self.norm_topk_prob {
            let mut sum = f::sum(&weights, -1)?;
            if self.scoring_func == ScoringFunc::Sigmoid {
                sum = f::maximum(sum, LEAST_SUM)?;
            }
            weights = f::div(&weights, sum)?;
        }
        if self.routed_scaling_factor != 1.0 {
            weights = f::mul(weights, self.routed_scaling_factor)?;
        }
        Ok((weights, chosen))
    }
}
