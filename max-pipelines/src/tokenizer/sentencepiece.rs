//! SentencePiece's vocabularies: pieces with scores, as the text of a `tokenizer.json`.
//!
//! SentencePiece's BPE (Kudo and Richardson, 2018) joins the two neighbours that make the piece of the best score, and so does
//! llama.cpp. The crate `tokenizers` joins by a list of merges instead: those of all pieces that two others make, the best score
//! first. What no piece spells becomes the tokens of its bytes.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::gguf::{NORMAL, USER_DEFINED};

/// What SentencePiece writes for a space.
pub(super) const SPACE: &str = "\u{2581}";

/// The kinds of tokens that are pieces of texts: normal ones, and those that a user defined.
const PIECES: [i64; 2] = [NORMAL, USER_DEFINED];

/// The parts of a `tokenizer.json` that differ between kinds of vocabularies.
pub(super) struct Parts {
    pub normalizer: Value,
    pub decoder: Value,
    pub model: Value,
}

/// A vocabulary of `tokens` with `scores` and kinds. `space_prefix`: whether a space is put before texts. `unknown`: the token of
/// what cannot be spelled.
pub(super) fn parts(
    tokens: &[&str],
    scores: &[f64],
    kinds: &[i64],
    space_prefix: bool,
    unknown: Option<usize>,
) -> Parts {
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let is_piece = |id: usize| kinds.get(id).is_none_or(|kind| PIECES.contains(kind));
    let piece = |text: &str| ids.get(text).copied().filter(|id| is_piece(*id));
    let mut merges = Vec::new();
    for (id, token) in tokens.iter().enumerate().filter(|(id, _)| is_piece(*id)) {
        let score = scores.get(id).copied().unwrap_or_default();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(first), Some(second)) = (piece(left), piece(right)) {
                merges.push((score, first, second, [left, right]));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let merges: Vec<[&str; 2]> = merges.into_iter().map(|(.., pair)| pair).collect();
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut normalizers = vec![replace(" ", SPACE)];
    let mut decoders = vec![replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if space_prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = unknown.and_then(|id| tokens.get(id));
    Parts {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: json!({
            "type": "BPE", "vocab": ids, "merges": merges, "unk_token": unknown, "fuse_unk": true, "byte_fallback": true,
        }),
    }
}
