//! Which tokens of which sequences a step computes: continuous batching with chunked prefill (Yu et al.: Orca, 2022; Agrawal et al.:
//! Sarathi, 2023).

use super::cache::Cache;
use super::context::TextContext;
use crate::error::{PipelineError, Result};

/// The most tokens of a prompt that are computed at once where the logits of all of them are wanted.
const ECHO_CHUNK: usize = 256;

/// What a step may compute.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// The most tokens, if prompts are among them.
    pub(super) chunk: usize,
    /// The length beyond which a sequence is computed again: see [`TextModel`](crate::TextModel).
    pub(super) recompute_beyond: Option<usize>,
}

/// How many tokens of each sequence are computed next. Texts take one each, prompts share what is left, the first before others.
///
/// A sequence whose pages others have waits, unless they are of sequences behind it: these are computed again later.
pub(super) fn schedule(cache: &mut Cache, active: &mut [&mut TextContext], limits: Limits) -> Result<Vec<usize>> {
    let mut parts = vec![0; active.len()];
    for (i, context) in active.iter_mut().enumerate() {
        restart(cache, context, limits)?;
        parts[i] = usize::from(context.remaining() == 1);
    }
    let (texts, prompts): (Vec<usize>, Vec<usize>) = (0..active.len()).partition(|i| parts[*i] == 1);
    let mut left = limits.chunk.saturating_sub(texts.len()).max(1);
    parts.fill(0);
    let mut preempted = vec![false; active.len()];
    for i in texts.iter().chain(&prompts).copied() {
        // One that lost its pages in this step has become a prompt.
        if left == 0 && prompts.contains(&i) || preempted[i] {
            continue;
        }
        begin(cache, active[i])?;
        let part = match part(active[i], if texts.contains(&i) { 1 } else { left }, limits) {
            0 => continue,
            part => part,
        };
        while !reserve(cache, active[i], part)? {
            let has_pages = |context: &TextContext| {
                let blocks = context.lease.as_ref().and_then(|lease| cache.manager.blocks(lease.id));
                blocks.is_some_and(|blocks| !blocks.is_empty())
            };
            let victim = (i + 1..active.len()).rev().find(|j| parts[*j] == 0 && has_pages(active[*j]));
            let Some(victim) = victim else { break };
            give_up(cache, active[victim])?;
            preempted[victim] = true;
        }
        if reserve(cache, active[i], part)? {
            parts[i] = part;
            if prompts.contains(&i) {
                left = left.saturating_sub(part);
            }
        }
    }
    if parts.iter().all(|part| *part == 0) {
        let (total, available) = (cache.manager.total_blocks(), cache.manager.free_blocks());
        return Err(PipelineError::CacheFull { total, available });
    }
    Ok(parts)
}

/// Lets a sequence that has grown beyond a length at which the model changes begin again.
pub(super) fn restart(cache: &mut Cache, context: &mut TextContext, limits: Limits) -> Result<()> {
    match limits.recompute_beyond {
        Some(length) if context.tokens.len() > length && context.processed <= length && context.processed > 0 => {
            give_up(cache, context)
        }
        _ => Ok(()),
    }
}

/// Finds what is in the cache of a prompt that has no tokens there. What is found gives no logits, so that an echo looks for nothing.
fn begin(cache: &mut Cache, context: &mut TextContext) -> Result<()> {
    if let (0, false, Some(lease)) = (context.processed, context.echoes(), &context.lease) {
        context.processed = cache.reuse(lease, &context.tokens)?;
    }
    Ok(())
}

/// How many tokens of a sequence are computed next, if it has a share of so many.
pub(super) fn part(context: &TextContext, share: usize, limits: Limits) -> usize {
    // The logits of all these rows are held at once.
    let share = if context.echoes() { share.min(ECHO_CHUNK) } else { share };
    let share = match limits.recompute_beyond.filter(|length| context.tokens.len() > *length) {
        // What is computed at once tells the model how long the sequence is.
        Some(length) if context.processed <= length => share.max(length + 1),
        _ => share,
    };
    context.remaining().min(share)
}

/// Makes room for the next tokens of a sequence; `false` if others have the pages.
pub(super) fn reserve(cache: &mut Cache, context: &mut TextContext, part: usize) -> Result<bool> {
    let Some(lease) = &context.lease else { return Ok(false) };
    let outcome = cache.reserve(lease, context.processed + part);
    context.processed = cache.manager.length(lease.id).unwrap_or(0);
    outcome
}

/// Takes the pages of a sequence: its tokens are computed again.
fn give_up(cache: &mut Cache, context: &mut TextContext) -> Result<()> {
    if let Some(lease) = &context.lease {
        cache.manager.truncate(lease.id, 0)?;
    }
    context.processed = 0;
    Ok(())
}
