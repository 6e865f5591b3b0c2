//! [`SamplingParams`]: how tokens are chosen, and when a text ends.

use super::logits_processor::LogitsProcessor;
use crate::error::{PipelineError, Result};

/// How the next token is chosen, and when a text ends.
///
/// ```
/// use max_pipelines::SamplingParams;
///
/// let params = SamplingParams { temperature: 0.7, top_p: 0.9, seed: 42, ..SamplingParams::default() };
/// assert_eq!(SamplingParams::greedy().temperature, 0.0);
/// assert!(SamplingParams { min_p: 2.0, ..params }.check().is_err());
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct SamplingParams {
    /// Of how many of the likeliest tokens one is drawn; -1 for all. 1 is the likeliest, always.
    pub top_k: i64,
    /// The likeliest tokens are drawn from whose shares add up to this.
    pub top_p: f64,
    /// The least share of a token, relative to the likeliest.
    pub min_p: f64,
    /// What logits are divided by; at 0 the likeliest token is taken.
    pub temperature: f64,
    /// What a token's logit loses for each time that it was generated.
    pub frequency_penalty: f64,
    /// What a token's logit loses if it was generated.
    pub presence_penalty: f64,
    /// What a token's logit is divided by (multiplied, below 0) if it was generated.
    pub repetition_penalty: f64,
    /// The most new tokens; `None` for as many as the context holds.
    pub max_new_tokens: Option<usize>,
    /// The fewest new tokens: until then, no token that ends the text is chosen.
    pub min_new_tokens: usize,
    /// Whether the model's own end is a token as all others.
    pub ignore_eos: bool,
    /// Texts that end the text before them.
    pub stop: Vec<String>,
    /// Further tokens that end the text.
    pub stop_token_ids: Vec<u32>,
    /// Whether the tokens' text is wanted.
    pub detokenize: bool,
    /// The same seed draws the same tokens with the same parameters. Tokens of which log probabilities are wanted, and those that
    /// processors, grammars, penalties or `min_new_tokens` decide on, are drawn on the host, from other random numbers than the rest.
    pub seed: u64,
    /// Functions of one's own that change logits, in this order, before penalties, masks and temperature.
    pub logits_processors: Vec<LogitsProcessor>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            top_k: -1,
            top_p: 1.0,
            min_p: 0.0,
            temperature: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            max_new_tokens: None,
            min_new_tokens: 0,
            ignore_eos: false,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            detokenize: true,
            seed: 0,
            logits_processors: Vec::new(),
        }
    }
}

impl SamplingParams {
    /// The likeliest token, always.
    pub fn greedy() -> SamplingParams {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// With at most so many new tokens.
    #[must_use]
    pub fn max_new_tokens(self, tokens: usize) -> SamplingParams {
        SamplingParams { max_new_tokens: Some(tokens), ..self }
    }

    /// Whether every value is one that something can be done with.
    ///
    /// # Errors
    /// The first that is not, with what it may be.
    pub fn check(&self) -> Result<()> {
        let fail = |argument, value: String, expected| Err(PipelineError::Argument { argument, value, expected });
        if self.top_k < -1 || self.top_k == 0 {
            return fail("top_k", self.top_k.to_string(), "-1, or a number of tokens");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return fail("top_p", self.top_p.to_string(), "above 0 and at most 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return fail("min_p", self.min_p.to_string(), "from 0 to 1");
        }
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return fail("temperature", self.temperature.to_string(), "0 or more");
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return fail("repetition_penalty", self.repetition_penalty.to_string(), "above 0");
        }
        let penalties = [("frequency_penalty", self.frequency_penalty), ("presence_penalty", self.presence_penalty)];
        match penalties.into_iter().find(|(_, penalty)| !penalty.is_finite()) {
            Some((argument, value)) => fail(argument, value.to_string(), "a finite number"),
            None => Ok(()),
        }
    }

    /// The tokens that the next one is drawn from, with their shares of the likeliest's probability: of logits of all tokens, of
    /// which none is NaN. Only the likeliest where it is taken always; none where all logits are negative infinity.
    pub(in crate::text_generation) fn candidates(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let Some(likeliest) = argmax(logits) else { return Vec::new() };
        if self.temperature == 0.0 || self.top_k == 1 {
            return vec![(likeliest, 1.0)];
        }
        let largest = logits[likeliest as usize];
        let share = |logit: f32| (f64::from(logit - largest) / self.temperature).exp();
        let mut shares: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|logit| share(*logit))).collect();
        shares.retain(|(_, share)| *share > 0.0 && *share >= self.min_p);
        // The likeliest first, where it matters: to sort a whole vocabulary for each token would cost more than the draw.
        let order = |(a, x): &(u32, f64), (b, y): &(u32, f64)| y.total_cmp(x).then(a.cmp(b));
        let most = usize::try_from(self.top_k).unwrap_or(usize::MAX);
        if most < shares.len() {
            shares.select_nth_unstable_by(most, order);
            shares.truncate(most);
        }
        if self.top_p < 1.0 || most != usize::MAX {
            shares.sort_unstable_by(order);
        }
        if self.top_p < 1.0 {
            let total: f64 = shares.iter().map(|(_, share)| share).sum();
            let mut sum = 0.0;
            let kept = shares.iter().position(|(_, share)| {
                sum += share;
                sum >= self.top_p * total
            });
            shares.truncate(kept.map_or(shares.len(), |last| last + 1));
        }
        shares
    }

    /// Whether tokens that were generated are less likely.
    pub(in crate::text_generation) fn has_penalties(&self) -> bool {
        (self.frequency_penalty, self.presence_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)
    }

    /// Lowers the logits of tokens that were generated.
    pub(in crate::text_generation) fn penalize(&self, logits: &mut [f32], generated: &[u32]) {
        if !self.has_penalties() {
            return;
        }
        let mut counts = std::collections::BTreeMap::new();
        generated.iter().for_each(|token| *counts.entry(*token).or_insert(0u32) += 1);
        for (token, count) in counts {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            let repetition = self.repetition_penalty as f32;
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            *logit -= (self.frequency_penalty * f64::from(count) + self.presence_penalty) as f32;
        }
    }
}

/// One of `candidates`, by their shares.
pub(in crate::text_generation) fn draw(candidates: &[(u32, f64)], random: &mut Random) -> Option<u32> {
    if let [(only, _)] = candidates {
        return Some(*only);
    }
    let mut point = random.next() * candidates.iter().map(|(_, share)| share).sum::<f64>();
    let drawn = candidates.iter().find(|(_, share)| {
        point -= share;
        point < 0.0
    });
    drawn.or(candidates.last()).map(|(token, _)| *token)
}

/// The first of the largest; `None` where all are negative infinity.
fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (token, logit) in (0..).zip(logits) {
        if best.is_none_or(|(_, largest)| *logit > largest) {
            best = Some((token, *logit));
        }
    }
    best.filter(|(_, logit)| logit.is_finite()).map(|(token, _)| token)
}

/// Random numbers of a seed (Steele, Lea and Flood: SplitMix64, 2014).
#[derive(Clone, Debug)]
pub(in crate::text_generation) struct Random(pub u64);

impl Random {
    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// At least 0, and below 1.
    pub fn next(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(params: &SamplingParams, logits: &[f32]) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        let mut random = Random(7);
        for _ in 0..20_000 {
            let token = draw(&params.candidates(logits), &mut random).unwrap();
            counts[token as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    #[test]
    fn draws_by_shares() {
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        let close = |found: Vec<f64>, expected: [f64; 3]| {
            let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.02);
            assert!(near, "{found:?}, {expected:?}");
        };
        let all = SamplingParams::default();
        close(shares(&all, &logits), [0.125, 0.25, 0.625]);
        close(
            shares(&SamplingParams { temperature: 0.5, ..all.clone() }, &logits),
            [1.0 / 30.0, 4.0 / 30.0, 25.0 / 30.0],
        );
        close(shares(&SamplingParams { top_k: 2, ..all.clone() }, &logits), [0.0, 2.0 / 7.0, 5.0 / 7.0]);
        close(shares(&SamplingParams { top_p: 0.6, ..all.clone() }, &logits), [0.0, 0.0, 1.0]);
        close(shares(&SamplingParams { min_p: 0.3, ..all.clone() }, &logits), [0.0, 2.0 / 7.0, 5.0 / 7.0]);
        close(shares(&SamplingParams::greedy(), &logits), [0.0, 0.0, 1.0]);
    }

    #[test]
    fn penalizes_what_was_generated() {
        let params = SamplingParams {
            frequency_penalty: 0.5,
            presence_penalty: 0.25,
            repetition_penalty: 2.0,
            ..SamplingParams::default()
        };
        let mut logits = [4.0, -1.0, 3.0];
        params.penalize(&mut logits, &[0, 0, 1, 9]);
        assert_eq!(logits, [4.0 / 2.0 - 1.25, -2.0 - 0.75, 3.0]);
    }

    #[test]
    fn what_is_ruled_out_is_not_drawn() {
        let (no, greedy) = (f32::NEG_INFINITY, SamplingParams::greedy());
        assert!(greedy.candidates(&[no, no]).is_empty());
        assert_eq!(greedy.candidates(&[no, 1.0, no]), [(1, 1.0)]);
        assert_eq!(SamplingParams::default().candidates(&[no, 1.0, no]), [(1, 1.0)]);
        assert_eq!(draw(&[], &mut Random(0)), None);
    }
}
