//! What `max generate --json` prints.

use std::time::Duration;

use max::pipelines::{LogProbabilities, SpeculativeDecodingMetrics, TextGenerationOutput, Timing};
use serde_json::{Map, Value, json};

use crate::memory;

/// What was generated and how long it took: of one prompt as one object, of several with a list of `outputs`.
pub fn report(
    outputs: &[TextGenerationOutput],
    load: Duration,
    timing: &Timing,
    metrics: Option<SpeculativeDecodingMetrics>,
) -> Value {
    let mut report = match outputs {
        [output] => fields(output),
        outputs => Map::from_iter([("outputs".to_owned(), outputs.iter().map(fields).collect())]),
    };
    let speed = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    report.insert("load_ms".into(), json!(load.as_secs_f64() * 1e3));
    report.insert("prefill_ms".into(), json!(timing.prefill.as_secs_f64() * 1e3));
    report.insert("prefill_tok_s".into(), json!(speed(timing.prefill_tokens, timing.prefill)));
    report.insert("decode_tok_s".into(), json!(speed(timing.decode_tokens, timing.decode)));
    if let Some(metrics) = metrics {
        report.insert("draft_tokens".into(), json!(metrics.draft_tokens_generated));
        report.insert("draft_tokens_accepted".into(), json!(metrics.draft_tokens_accepted));
    }
    if let Some(bytes) = memory::peak() {
        report.insert("peak_rss_mb".into(), json!(bytes as f64 / 1e6));
    }
    Value::Object(report)
}

fn fields(output: &TextGenerationOutput) -> Map<String, Value> {
    let mut fields = Map::from_iter([
        ("tokens".to_owned(), json!(output.tokens)),
        ("text".to_owned(), json!(output.text)),
        ("prompt_tokens".to_owned(), json!(output.prompt_tokens)),
        ("final_status".to_owned(), json!(output.final_status.name())),
    ]);
    if let Some(log_probabilities) = &output.log_probabilities {
        let one = |one: &LogProbabilities| {
            json!({
                "token_log_probabilities": one.token_log_probabilities,
                "top_log_probabilities": one.top_log_probabilities,
            })
        };
        fields.insert("log_probabilities".into(), log_probabilities.iter().map(one).collect());
    }
    if let Some(error) = &output.error {
        fields.insert("error".into(), json!(error.to_string()));
    }
    fields
}
