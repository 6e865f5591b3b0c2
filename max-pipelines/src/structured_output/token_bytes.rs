//! The bytes that each token of a vocabulary stands for.

use std::collections::HashMap;

use llguidance::toktrie::TokTrie;
use serde_json::Value;
use tokenizers::Tokenizer;

/// The longest token: longer ones are never drawn in a text of a form.
const LONGEST: usize = 1024;

/// How a tokenizer writes bytes as texts.
enum Spelling {
    /// A letter for each byte, as GPT-2 has it.
    ByteLevel(HashMap<char, u8>),
    /// Text with another letter for a space, and `<0x0A>` for bytes that are no text, as SentencePiece has it.
    ByteFallback(Option<String>),
    /// Text as it is.
    Plain,
}

impl Spelling {
    fn of(tokenizer: &Tokenizer) -> Spelling {
        let decoder =
            tokenizer.get_decoder().and_then(|decoder| serde_json::to_value(decoder).ok()).unwrap_or_default();
        let all: Vec<&Value> = match decoder["decoders"].as_array() {
            Some(several) => several.iter().collect(),
            None => vec![&decoder],
        };
        let find = |kind: &str| all.iter().find(|decoder| decoder["type"].as_str() == Some(kind));
        if find("ByteLevel").is_some() {
            return Spelling::ByteLevel(byte_letters());
        }
        let space = match find("Replace") {
            Some(replace) if replace["content"].as_str() == Some(" ") => replace["pattern"]["String"].as_str(),
            _ => find("Metaspace").and_then(|metaspace| metaspace["replacement"].as_str()),
        };
        match (find("ByteFallback"), space) {
            (None, None) => Spelling::Plain,
            (_, space) => Spelling::ByteFallback(space.map(str::to_owned)),
        }
    }

    /// The bytes of a token; none where it is not spelled so.
    fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Spelling::Plain => token.as_bytes().to_vec(),
            Spelling::ByteLevel(letters) => {
                token.chars().map(|letter| letters.get(&letter).copied()).collect::<Option<_>>().unwrap_or_default()
            }
            Spelling::ByteFallback(space) => {
                let hex =
                    token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')).filter(|hex| hex.len() == 2);
                match (hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()), space) {
                    (Some(byte), _) => vec![byte],
                    (None, Some(space)) => token.replace(space.as_str(), " ").into_bytes(),
                    (None, None) => token.as_bytes().to_vec(),
                }
            }
        }
    }
}

/// The bytes of all tokens; none of those that stand for no text.
pub(super) fn token_bytes(tokenizer: &Tokenizer, vocab_size: usize) -> Vec<Vec<u8>> {
    let (spelling, added) = (Spelling::of(tokenizer), tokenizer.get_added_tokens_decoder());
    let bytes = |id: u32| match added.get(&id) {
        // A special token is none of a text's, whatever it is called.
        Some(token) if token.special => [&[TokTrie::SPECIAL_TOKEN_MARKER], token.content.as_bytes()].concat(),
        Some(token) => token.content.as_bytes().to_vec(),
        None => tokenizer.id_to_token(id).map(|token| spelling.bytes(&token)).unwrap_or_default(),
    };
    let mut all: Vec<Vec<u8>> = (0..vocab_size).map(|id| bytes(id as u32)).collect();
    all.iter_mut().filter(|bytes| bytes.len() > LONGEST).for_each(Vec::clear);
    all
}

/// The letters that GPT-2 writes for bytes: those that print, and others in their order for the rest.
fn byte_letters() -> HashMap<char, u8> {
    let mut others = (256..).filter_map(char::from_u32);
    (0..=255u8)
        .filter_map(|byte| match byte {
            33..=126 | 161..=172 | 174..=255 => Some((char::from(byte), byte)),
            _ => Some((others.next()?, byte)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_spelled_in_three_ways() {
        let byte_level = Spelling::ByteLevel(byte_letters());
        assert_eq!(
            (byte_level.bytes("Ġa"), byte_level.bytes("Ċ"), byte_level.bytes("你")),
            (b" a".to_vec(), vec![10], vec![])
        );
        let fallback = Spelling::ByteFallback(Some("▁".into()));
        assert_eq!(
            (fallback.bytes("▁a"), fallback.bytes("<0xE4>"), fallback.bytes("<0x>")),
            (b" a".to_vec(), vec![0xe4], b"<0x>".to_vec())
        );
        assert_eq!(Spelling::Plain.bytes("é"), "é".as_bytes());
    }
}
