//! How long texts may become.

use crate::error::{PipelineError, Result};

/// `default`, or `upper_bound` without one.
///
/// ```
/// use max_pipelines::upper_bounded_default;
///
/// assert_eq!(upper_bounded_default(4096, Some(512))?, 512);
/// assert_eq!(upper_bounded_default(4096, None)?, 4096);
/// assert!(upper_bounded_default(4096, Some(8192)).unwrap_err().to_string().contains("8192"));
/// # Ok::<(), max_pipelines::PipelineError>(())
/// ```
///
/// # Errors
/// When `default` is larger than `upper_bound`.
pub fn upper_bounded_default(upper_bound: usize, default: Option<usize>) -> Result<usize> {
    match default {
        Some(default) if default > upper_bound => Err(PipelineError::Argument {
            argument: "default",
            value: format!("{default} where the most is {upper_bound}"),
            expected: "no more than that",
        }),
        Some(default) => Ok(default),
        None => Ok(upper_bound),
    }
}

/// How many tokens may come behind a prompt: as many as are asked for and the longest sequence has room for. `None` where neither bounds
/// them.
///
/// ```
/// use max_pipelines::max_tokens_to_generate;
///
/// assert_eq!(max_tokens_to_generate(10, Some(64), Some(100)), Some(54));
/// assert_eq!(max_tokens_to_generate(10, None, Some(100)), Some(100));
/// assert_eq!(max_tokens_to_generate(90, Some(64), None), Some(0));
/// assert_eq!(max_tokens_to_generate(10, None, None), None);
/// ```
pub fn max_tokens_to_generate(
    prompt_size: usize,
    max_length: Option<usize>,
    max_new_tokens: Option<usize>,
) -> Option<usize> {
    let room = max_length.map(|longest| longest.saturating_sub(prompt_size));
    room.into_iter().chain(max_new_tokens).min()
}
