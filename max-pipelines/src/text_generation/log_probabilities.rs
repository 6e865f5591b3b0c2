//! [`LogProbabilities`]: how likely the model took tokens to be.

/// The log probabilities of a token, and of the likeliest in its place. They are natural logarithms of the model's own
/// softmax, before penalties, masks and temperature.
///
/// The lists have one entry for each token. With [`echo`](crate::TextGenerationRequest::echo), those of the first new token
/// begin with an entry for each of the prompt's tokens but the first.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LogProbabilities {
    /// Those of the tokens themselves.
    pub token_log_probabilities: Vec<f32>,
    /// The likeliest tokens and theirs, the likeliest first; of equally likely ones the least token.
    pub top_log_probabilities: Vec<Vec<(u32, f32)>>,
}

impl LogProbabilities {
    /// Adds `token`, which stands where the model computed `logits`, and the `top` likeliest.
    pub(super) fn push(&mut self, token: u32, logits: &[f32], top: usize) {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let normalizer = f64::from(largest) + sum.ln();
        let log = |logit: f32| (f64::from(logit) - normalizer) as f32;
        self.token_log_probabilities.push(logits.get(token as usize).map_or(f32::NEG_INFINITY, |logit| log(*logit)));
        let mut likeliest: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        let order = |(a, x): &(u32, f32), (b, y): &(u32, f32)| y.total_cmp(x).then(a.cmp(b));
        if top < likeliest.len() {
            likeliest.select_nth_unstable_by(top, order);
            likeliest.truncate(top);
        }
        likeliest.sort_unstable_by(order);
        self.top_log_probabilities.push(likeliest.into_iter().map(|(token, logit)| (token, log(logit))).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up() {
        let mut found = LogProbabilities::default();
        let logits = [0.0, 2f32.ln(), 5f32.ln(), 2f32.ln()];
        found.push(0, &logits, 4);
        found.push(2, &logits, 2);
        assert!((found.token_log_probabilities[0] - 0.1f32.ln()).abs() < 1e-6);
        let tokens = |i: usize| found.top_log_probabilities[i].iter().map(|(token, _)| *token).collect::<Vec<_>>();
        assert_eq!((tokens(0), tokens(1)), (vec![2, 1, 3, 0], vec![2, 1]));
        let sum: f32 = found.top_log_probabilities[0].iter().map(|(_, log)| log.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    }
}
