//! How much longer a tokenizer can make texts. A `tokenizer.json` comes with a model, and steps that each double a text would
//! fill any memory.

use serde::Deserialize;
use serde_json::Value;

/// The largest factor by which the steps of a tokenizer may make a text longer: those of known models stay below 60.
const LARGEST: f64 = 4096.0;

/// The steps of a `tokenizer.json`, without its vocabulary.
#[derive(Deserialize)]
struct Steps {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
}

/// Why the text of a `tokenizer.json` is refused, if its steps make texts too long.
pub(super) fn refusal(text: &str) -> Option<String> {
    // What is no JSON is refused with a better reason by who reads all of it.
    let steps: Steps = serde_json::from_str(text).ok()?;
    let encoded = growth(&steps.normalizer) * growth(&steps.pre_tokenizer) * growth(&steps.post_processor);
    let largest = encoded.max(growth(&steps.decoder));
    (largest > LARGEST).then(|| format!("makes texts up to {largest:.1e} times as long, which no known tokenizer does"))
}

/// A bound of how many times as long a step, or several of them, makes a text.
fn growth(step: &Value) -> f64 {
    let lists = ["normalizers", "pretokenizers", "processors", "decoders"];
    if let Some(steps) = lists.iter().find_map(|list| step[*list].as_array()) {
        return steps.iter().map(growth).product();
    }
    match step["type"].as_str() {
        Some("Replace") => {
            let content = step["content"].as_str().unwrap_or_default().len() as f64;
            // A regular expression may match nothing, everywhere.
            let per_byte =
                step["pattern"]["String"].as_str().map_or(content + 1.0, |from| content / from.len().max(1) as f64);
            let empty = step["pattern"]["String"].as_str().is_some_and(str::is_empty);
            per_byte.max(1.0) + if empty { content } else { 0.0 }
        }
        // One for the token that it begins with, however long.
        Some("Prepend") => 1.0 + step["prepend"].as_str().unwrap_or_default().len() as f64,
        // The most that Unicode's compatibility decomposition makes of a character.
        Some("NFKD" | "NFKC") => 18.0,
        Some("TemplateProcessing") => {
            let pieces = step["single"].as_array();
            let texts =
                pieces.map_or(1, |pieces| pieces.iter().filter(|piece| piece.get("Sequence").is_some()).count());
            texts.max(1) as f64
        }
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_that_double_texts_are_refused() {
        let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        let anywhere = json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "aaaaaaa"});
        let twice =
            json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}]});
        for (key, list, step) in [
            ("normalizer", "normalizers", &double),
            ("normalizer", "normalizers", &anywhere),
            ("decoder", "decoders", &double),
            ("post_processor", "processors", &twice),
        ] {
            let steps = |count: usize| json!({key: {"type": "Sequence", list: vec![step; count]}}).to_string();
            assert_eq!(refusal(&steps(4)), None, "{step}");
            assert!(refusal(&steps(40)).is_some(), "{step}");
        }
    }

    #[test]
    fn steps_of_known_models_are_taken() {
        let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
        let llama = json!({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"}, space]}});
        let albert = json!({"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "``"}, "content": "\""}, {"type": "NFKD"}, {"type": "StripAccents"},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]}});
        for steps in [llama, albert, json!({}), json!({"normalizer": null})] {
            assert_eq!(refusal(&steps.to_string()), None, "{steps}");
        }
    }
}
