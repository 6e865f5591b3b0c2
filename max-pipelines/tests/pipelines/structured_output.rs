//! Texts of a form: what is drawn has it, whatever the model would say.

use max_pipelines::{SamplingParams, TextGenerationRequest, TextGenerationResponseFormat};
use serde_json::json;

use crate::generation::bytes;

fn request(prompt: &[u32], format: TextGenerationResponseFormat, seed: u64) -> TextGenerationRequest {
    let params = SamplingParams { seed, temperature: 3.0, ..SamplingParams::default().max_new_tokens(1000) };
    TextGenerationRequest { response_format: Some(format), ..TextGenerationRequest::new(prompt, params) }
}

#[cfg(not(feature = "structured_output"))]
#[test]
fn a_build_without_them_says_so() {
    let pipeline = bytes().pipeline();
    let request = request(&[4, 5], TextGenerationResponseFormat::JsonSchema(json!({})), 0);
    let error = pipeline.new_context(&request).err().unwrap().to_string();
    assert!(error.contains("the JSON schema: ") && error.contains("feature `structured_output`"), "{error}");
}

#[cfg(feature = "structured_output")]
mod with_llguidance {
    use max_pipelines::{GenerationStatus, PipelineConfig, TextGenerationPipeline};

    use super::*;

    fn pipeline(max_batch_size: usize) -> TextGenerationPipeline {
        let model = bytes();
        model.write_config(|config| {
            config["vocab_size"] = 260.into();
            config["eos_token_id"] = json!([2, 3, 5000]);
            config["max_position_embeddings"] = 2048.into();
        });
        TextGenerationPipeline::new(&PipelineConfig { max_batch_size, ..model.config() }).unwrap()
    }

    #[test]
    fn json_is_what_a_schema_describes() {
        let pipeline = pipeline(2);
        let schema = json!({
            "type": "object", "required": ["count", "color"], "additionalProperties": false,
            "properties": {"count": {"type": "integer", "minimum": 1, "maximum": 99}, "color": {"enum": ["red", "grün"]}},
        });
        let requests: Vec<_> = (0..4)
            .map(|seed| request(&[4, 5, 6], TextGenerationResponseFormat::JsonSchema(schema.clone()), seed))
            .collect();
        // One of them is free, and not changed by the others.
        let free = TextGenerationRequest::new([4, 5, 6], SamplingParams::greedy().max_new_tokens(9));
        let (alone, _) = pipeline.generate_requests(std::slice::from_ref(&free), |_, _| {}).unwrap();
        let all: Vec<_> = requests.into_iter().chain([free]).collect();
        let (mut outputs, _) = pipeline.generate_requests(&all, |_, _| {}).unwrap();
        assert_eq!(outputs.pop().unwrap().tokens, alone[0].tokens);
        for output in outputs {
            assert_eq!(output.final_status, GenerationStatus::EndOfSequence, "{}", output.text);
            let value: serde_json::Value = serde_json::from_str(&output.text).unwrap();
            assert!((1..=99).contains(&value["count"].as_i64().unwrap()), "{value}");
            assert!(["red", "grün"].contains(&value["color"].as_str().unwrap()), "{value}");
        }
    }

    #[test]
    fn grammars_and_regular_expressions_are_held() {
        let pipeline = pipeline(1);
        let text = |format: TextGenerationResponseFormat| {
            let (mut outputs, _) = pipeline.generate_requests(&[request(&[4, 5], format, 7)], |_, _| {}).unwrap();
            let output = outputs.remove(0);
            assert_eq!(output.final_status, GenerationStatus::EndOfSequence, "{}", output.text);
            output.text
        };
        let found = text(TextGenerationResponseFormat::Regex("[ab]{3}-(é|z)".into()));
        assert!(found.len() >= 5 && found[..3].bytes().all(|byte| b"ab".contains(&byte)), "{found}");
        assert!(["-é", "-z"].contains(&&found[3..]), "{found}");
        let found = text(TextGenerationResponseFormat::Grammar("start: \"yes\" | \"no\"".into()));
        assert!(["yes", "no"].contains(&found.as_str()), "{found}");
    }

    #[test]
    fn forms_that_no_text_has_are_refused() {
        let pipeline = pipeline(1);
        let fails = |format: TextGenerationResponseFormat, part: &str| {
            let error = pipeline.new_context(&request(&[4, 5], format, 0)).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        };
        let schema = TextGenerationResponseFormat::JsonSchema;
        fails(schema(json!({"type": "integer", "minimum": 5, "maximum": 3})), "the JSON schema: ");
        fails(schema(json!({"type": "string", "enum": [1]})), "the JSON schema: ");
        fails(schema(json!({"$ref": "https://example.com/schema.json"})), "the JSON schema: ");
        fails(schema(json!({"type": "nothing"})), "the JSON schema: ");
        fails(TextGenerationResponseFormat::Grammar("start: other".into()), "the grammar: ");
        fails(TextGenerationResponseFormat::Regex("(a".into()), "the regular expression: ");
    }

    #[test]
    fn a_form_that_no_machine_could_hold_is_held_as_far_as_a_text_goes() {
        let form = TextGenerationResponseFormat::Regex("(((a{1000}){1000}){1000}){1000}b".into());
        let mut request = request(&[4, 5], form, 0);
        request.sampling_params.max_new_tokens = Some(20);
        let (outputs, _) = pipeline(1).generate_requests(&[request], |_, _| {}).unwrap();
        assert_eq!(outputs[0].final_status, GenerationStatus::MaximumLength, "{}", outputs[0].text);
        assert_eq!(outputs[0].text, "a".repeat(20));
    }
}
