//! `max generate`, `max logits`, `max embed`, `max quantize` and `max info --model`.

use std::collections::BTreeMap;
use std::path::Path;

use std::process::Stdio;

use crate::{command, max, max_in};
use max::graph::weights::{SafetensorWeights, save_safetensors};
use max::prelude::*;

const CONFIG: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32, "max_position_embeddings": 64,
    "tie_word_embeddings": true, "eos_token_id": 1
}"#;

/// A folder with a Llama of one layer.
pub fn model(folder: &Path) -> String {
    let shapes: [(&str, &[usize]); 11] = [
        ("model.embed_tokens.weight", &[32, 8]),
        ("model.norm.weight", &[8]),
        ("model.layers.0.input_layernorm.weight", &[8]),
        ("model.layers.0.post_attention_layernorm.weight", &[8]),
        ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
        ("model.layers.0.mlp.gate_proj.weight", &[16, 8]),
        ("model.layers.0.mlp.up_proj.weight", &[16, 8]),
        ("model.layers.0.mlp.down_proj.weight", &[8, 16]),
    ];
    let weight = |shape: &[usize], step: usize| {
        let count: usize = shape.iter().product();
        let values = (0..count).map(|i| ((i * (step * 2 + 7) + step) % 23) as f32 / 23.0 - 0.4).collect();
        Tensor::from_vec(values, shape).unwrap()
    };
    let tensors: Vec<Tensor> = shapes.iter().enumerate().map(|(i, (_, shape))| weight(shape, i)).collect();
    let named = shapes.iter().map(|(name, _)| *name).zip(&tensors);
    save_safetensors(folder.join("model.safetensors"), named, &BTreeMap::new()).unwrap();
    std::fs::write(folder.join("config.json"), CONFIG).unwrap();
    folder.to_str().unwrap().to_owned()
}

#[test]
fn tokens_are_continued() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let run = |more: &[&str]| {
        let args = ["generate", "--model", &model, "--ids", "4,5,6", "--max-new-tokens", "5", "--ignore-eos"];
        max(&[&args, more].concat()).success()
    };
    let report: serde_json::Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let tokens: Vec<String> = report["tokens"].as_array().unwrap().iter().map(|token| token.to_string()).collect();
    assert_eq!((tokens.len(), &report["prompt_tokens"]), (5, &serde_json::json!(3)));
    assert_eq!(report["final_status"], "maximum_length");
    for key in ["load_ms", "prefill_ms", "prefill_tok_s", "decode_tok_s"] {
        assert!(report[key].as_f64().unwrap() > 0.0, "{report}");
    }
    assert_eq!(run(&[]).trim(), tokens.join(","));
    assert_eq!(run(&["--temperature", "2", "--seed", "3"]), run(&["--temperature", "2", "--seed", "3"]));
    let speed =
        max(&["generate", "--model", &model, "--bench-prompt", "20", "--bench-new", "8", "--max-batch-size", "2"]);
    let speed: serde_json::Value = serde_json::from_str(&speed.success()).unwrap();
    let outputs = speed["outputs"].as_array().unwrap();
    assert_eq!((outputs.len(), &outputs[1]["prompt_tokens"]), (2, &serde_json::json!(20)));
    assert_eq!(outputs[1]["tokens"].as_array().unwrap().len(), 8);
}

#[test]
fn log_probabilities_are_printed() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let args = ["generate", "--model", &model, "--ids", "4,5,6", "--max-new-tokens", "2", "--ignore-eos", "--json"];
    let report = max(&[&args[..], &["--logprobs", "3", "--echo"]].concat()).success();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let found = report["log_probabilities"].as_array().unwrap();
    assert_eq!(found[0]["token_log_probabilities"].as_array().unwrap().len(), 3);
    let [top, own] = ["top_log_probabilities", "token_log_probabilities"].map(|key| &found[1][key][0]);
    assert_eq!((top.as_array().unwrap().len(), &top[0][0], &top[0][1]), (3, &report["tokens"][1], own));
}

#[test]
fn a_smaller_model_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let args = ["generate", "--model", &model, "--ids", "4,5,6", "--max-new-tokens", "9", "--ignore-eos", "--json"];
    let run = |more: &[&str]| -> serde_json::Value {
        serde_json::from_str(&max(&[&args[..], more].concat()).success()).unwrap()
    };
    let (alone, drafted) = (run(&[]), run(&["--draft-model", &model, "--num-speculative-tokens", "3"]));
    assert_eq!((&drafted["tokens"], &drafted["final_status"]), (&alone["tokens"], &alone["final_status"]));
    // It is its own draft, all of which is taken.
    assert!(drafted["draft_tokens"].as_u64().unwrap() >= 3, "{drafted}");
    assert_eq!(drafted["draft_tokens_accepted"], drafted["draft_tokens"]);
    let error = max(&[&args[..], &["--draft-model", "none-such"]].concat()).failure(1);
    assert!(error.contains("none-such"), "{error}");
}

#[test]
fn settings_are_in_files_and_variables() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let file = folder.path().join("max.toml");
    std::fs::write(&file, format!("model_path = '{model}'\nmax_length = 6\n")).unwrap();
    let run = |more: &[&str], variables: &[(&str, &str)]| {
        let args = ["generate", "--config", file.to_str().unwrap(), "--ids", "4,5,6", "--ignore-eos"];
        max_in(&[&args, more].concat(), variables)
    };
    let tokens = |run: crate::Run| run.success().trim().split(',').count();
    let variable = [("MAX_SERVE_MAX_LENGTH", "8")];
    assert_eq!((tokens(run(&[], &[])), tokens(run(&[], &variable))), (3, 5));
    assert_eq!(tokens(run(&["--max-length", "10"], &variable)), 7);
    let error = run(&[], &[("MAX_SERVE_MAX_LENGTH", "long")]).failure(2);
    assert!(error.contains("MAX_SERVE_MAX_LENGTH: long is not a whole number"), "{error}");
    let error = max(&["generate", "--ids", "4"]).failure(2);
    assert!(error.contains("no model is given"), "{error}");
}

#[test]
fn models_are_found_in_the_cache_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("hub/models--org--tiny");
    std::fs::create_dir_all(repository.join("snapshots/c0ffee")).unwrap();
    std::fs::create_dir_all(repository.join("refs")).unwrap();
    std::fs::write(repository.join("refs/main"), "c0ffee").unwrap();
    model(&repository.join("snapshots/c0ffee"));
    let home = [("HF_HOME", folder.path().to_str().unwrap())];
    let run = |name: &str| max_in(&["generate", "--model", name, "--ids", "4,5", "--max-new-tokens", "1"], &home);
    assert!(!run("org/tiny").success().is_empty());
    assert!(run("org/other").failure(1).contains("`hf download org/other` puts it there"));
}

/// A command that would go on for long is asked to end.
#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_keeps_what_was_generated() {
    use std::io::Read;
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let config = CONFIG.replace("\"max_position_embeddings\": 64", "\"max_position_embeddings\": 100000000");
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let args =
        ["generate", "--model", &model, "--ids", "4,5", "--ignore-eos", "--max-new-tokens", "100000000", "--json"];
    let mut child = command(&args, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let catches_interrupts = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() >> (libc::SIGINT - 1) & 1 == 1
    };
    while !catches_interrupts() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    // SAFETY: `kill` reads no memory, and the process is a child that was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["final_status"], "cancelled");
    assert!(!report["tokens"].as_array().unwrap().is_empty());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn logits_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (model(folder.path()), folder.path().join("out.safetensors"));
    let text = max(&["logits", "--model", &model, "--ids", "4,5,6", "--out", out.to_str().unwrap()]).success();
    assert_eq!(text, "logits: float32 [3, 32]\n");
    let logits = SafetensorWeights::open([&out]).unwrap().tensor("logits").unwrap();
    assert_eq!(logits.shape(), [3, 32]);
}

#[test]
fn a_model_is_described() {
    let folder = tempfile::tempdir().unwrap();
    let text = max(&["info", "--model", &model(folder.path())]).success();
    for part in [
        "LlamaForCausalLM, for text generation",
        "0.0 million",
        "64 tokens",
        "MB of float32",
        "0.0 kB for each",
        "it fits",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let error = max(&["generate", "--model", &model]).failure(2);
    assert!(error.contains("say what the model is given"), "{error}");
    let error = max(&["generate", "--model", &model, "--prompt", "Hi"]).failure(1);
    assert!(error.contains("there is no tokenizer.json"), "{error}");
    let error = max(&["embed", "--model", &model, "--ids", "4"]).failure(1);
    assert!(error.contains("is a model for text generation, not for embeddings"), "{error}");
    let error = max(&["generate", "--model", "/nowhere", "--ids", "4"]).failure(1);
    assert!(error.contains("there is no such file or folder"), "{error}");
    let error = max(&["generate", "--model", &model, "--ids", "4", "--top-p", "2"]).failure(1);
    assert!(error.contains("top_p: 2 is not above 0 and at most 1"), "{error}");
}

#[test]
fn folders_become_gguf_files() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let out = folder.path().join("model.gguf");
    let out = out.to_str().unwrap();
    let said = max(&["quantize", &model, out, "--type", "f32"]).success();
    assert!(said.contains(&format!("{out}: 0.0 MB of f32")), "{said}");
    assert!(said.starts_with("without a tokenizer: there is no tokenizer.json; put tokenizer.json beside"), "{said}");
    let tokens = |model: &str| {
        max(&["generate", "--model", model, "--ids", "4,5,6", "--max-new-tokens", "5", "--ignore-eos"]).success()
    };
    assert_eq!(tokens(out), tokens(&model));
    // Rows of 8 and 16 elements are no whole blocks of any encoding.
    max(&["quantize", &model, out, "--type", "q4_k"]).success();
    let info = max(&["info", "--model", out]).success();
    assert!(info.contains("of float16") && info.contains("of float32"), "{info}");
}

/// README's way from a clone to text: a model of the pairs of words on that page writes such pairs.
#[test]
fn the_model_that_readme_makes_continues_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let readme = root.join("README.md");
    let made = std::process::Command::new("python3")
        .arg(root.join("max-pipelines/examples/make_model.py"))
        .args([&readme, folder.path()])
        .output();
    let made = match made {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return eprintln!("skipped: there is no python3"),
        made => made.unwrap(),
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let model = folder.path().to_str().unwrap();
    let args = ["generate", "--model", model, "--prompt", "A graph", "--max-new-tokens", "40", "--temperature", "1"];
    let text = max(&[&args[..], &["--seed", "1", "--stream"]].concat()).success();
    let page = std::fs::read_to_string(readme).unwrap();
    let words: Vec<&str> = page.split_whitespace().collect();
    let new: Vec<&str> = ["graph"].into_iter().chain(text.split_whitespace()).collect();
    assert!(new.len() > 20, "{text}");
    for pair in new.windows(2) {
        assert!(words.windows(2).any(|words| words == pair), "{pair:?} of {text}");
    }
}
