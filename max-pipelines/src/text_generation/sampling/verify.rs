//! Rejection sampling: a token that another model drew is taken or replaced so that the token is distributed as the target's own
//! (Leviathan, Kalman and Matias: Fast Inference from Transformers via Speculative Decoding, 2023).

use std::collections::HashMap;

use super::params::{Random, draw};

/// `drafted`, which was drawn from `draft`, or what takes its place: distributed as `target`. Both are tokens with shares, which need
/// not add up to 1. `None` where `target` has no token.
pub(in crate::text_generation) fn verify(
    drafted: u32,
    target: &[(u32, f64)],
    draft: &[(u32, f64)],
    random: &mut Random,
) -> Option<u32> {
    let sum = |shares: &[(u32, f64)]| shares.iter().map(|(_, share)| share).sum::<f64>().max(f64::MIN_POSITIVE);
    let (all, all_drafted) = (sum(target), sum(draft));
    let drafts: HashMap<u32, f64> = draft.iter().map(|(token, share)| (*token, share / all_drafted)).collect();
    let of_draft = |token: u32| drafts.get(&token).copied().unwrap_or_default();
    let of_target = target.iter().find(|(token, _)| *token == drafted).map_or(0.0, |(_, share)| share / all);
    // Where both are the one token that is taken always, nothing is left to chance.
    if of_target >= of_draft(drafted) || random.next() * of_draft(drafted) < of_target {
        return Some(drafted);
    }
    let left = |(token, share): &(u32, f64)| (*token, (share / all - of_draft(*token)).max(0.0));
    let residual: Vec<(u32, f64)> = target.iter().map(left).filter(|(_, share)| *share > 0.0).collect();
    // Rounding may leave nothing of two distributions that are the same.
    if residual.is_empty() { draw(target, random) } else { draw(&residual, random) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_distributed_as_those_of_the_target() {
        let distributions =
            [[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 1.0, 0.0], [0.25, 0.25, 0.25, 0.25]];
        let shares = |distribution: &[f64; 4], scale: f64| -> Vec<(u32, f64)> {
            (0..).zip(distribution).filter(|(_, share)| **share > 0.0).map(|(i, share)| (i, share * scale)).collect()
        };
        let mut random = Random(11);
        let draws = 40_000;
        for target in &distributions {
            for draft in &distributions {
                let (p, q) = (shares(target, 3.0), shares(draft, 0.5));
                let mut counts = [0.0; 4];
                for _ in 0..draws {
                    let drafted = draw(&q, &mut random).unwrap();
                    counts[verify(drafted, &p, &q, &mut random).unwrap() as usize] += 1.0;
                }
                for (count, share) in counts.iter().zip(target) {
                    let (found, deviation) =
                        (count / f64::from(draws), (share * (1.0 - share) / f64::from(draws)).sqrt());
                    assert!((found - share).abs() <= 4.5 * deviation, "{target:?}, {draft:?}: {counts:?}");
                }
            }
        }
    }

    #[test]
    fn the_likeliest_token_is_taken_or_put_in_place() {
        let mut random = Random(0);
        assert_eq!(verify(3, &[(3, 1.0)], &[(3, 1.0)], &mut random), Some(3));
        assert_eq!(verify(2, &[(3, 1.0)], &[(2, 1.0)], &mut random), Some(3));
        assert_eq!(verify(2, &[], &[(2, 1.0)], &mut random), None);
    }
}
