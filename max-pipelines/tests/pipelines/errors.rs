//! What users do wrong is said, with the file and what to do.

use max_core::driver::Tensor;
use max_core::dtype::DType;
use max_pipelines::{
    EmbeddingsPipeline, GenerationStatus, LLM, PipelineConfig, SamplingParams, TextGenerationPipeline,
};

use crate::folders::Expected;

#[track_caller]
fn fails(model: &Expected, config: &PipelineConfig, parts: &[&str]) {
    let error = TextGenerationPipeline::new(config).err().unwrap().to_string();
    for part in parts {
        assert!(error.contains(part), "{error}\ndoes not contain `{part}`");
    }
    assert!(error.contains(&model.path().display().to_string()) || parts.is_empty(), "{error}");
}

#[test]
fn folders_that_are_no_models() {
    let model = Expected::new("llama");
    let config = model.config();
    std::fs::remove_file(model.file("model.safetensors")).unwrap();
    fails(&model, &config, &["there is no model*.safetensors"]);
    std::fs::write(model.file("model.safetensors"), "x").unwrap();
    fails(&model, &config, &["model.safetensors"]);
    std::fs::remove_file(model.file("config.json")).unwrap();
    fails(&model, &config, &["there is neither a config.json nor a GGUF file", "a model is a folder with"]);
    std::fs::write(model.file("config.json"), "[1]").unwrap();
    fails(&model, &config, &["config.json", "a JSON object is expected"]);
    fails(&model, &PipelineConfig::new(model.file("none")), &["there is no such file or folder"]);
    fails(&model, &PipelineConfig::new(model.file("config.json")), &["this file is no GGUF"]);
}

#[test]
fn configurations_that_make_no_sense() {
    let model = Expected::new("llama");
    let cases: [(&str, serde_json::Value, &str); 10] = [
        (
            "architectures",
            serde_json::json!(["NoneForCausalLM"]),
            "known are BertForMaskedLM, BertModel, DeepseekV2ForCausalLM",
        ),
        ("hidden_size", serde_json::json!("32"), "`hidden_size` is \"32\", not a size"),
        ("num_hidden_layers", serde_json::json!(0), "`num_hidden_layers` is 0"),
        ("num_key_value_heads", serde_json::json!(3), "does not divide num_attention_heads, 4"),
        ("hidden_act", serde_json::json!("mish"), "`hidden_act` is `mish`"),
        ("rope_parameters", serde_json::json!({"rope_type": "spiral"}), "`rope_parameters.rope_type` is `spiral`"),
        ("head_dim", serde_json::json!(7), "is odd"),
        ("num_hidden_layers", serde_json::json!(1_000_000_000), "more than the 4096 of any model"),
        ("hidden_size", serde_json::json!(1u64 << 50), "more than the 16777216 of any model"),
        ("eos_token_id", serde_json::json!("end"), "`eos_token_id` is \"end\""),
    ];
    for (key, value, message) in cases {
        model.write_config(|config| config[key] = value);
        fails(&model, &model.config(), &[message, "config.json"]);
    }
    model.write_config(|_| {});
    for (config, message) in [
        (PipelineConfig { max_batch_size: 0, ..model.config() }, "max_batch_size: 0"),
        (PipelineConfig { prefill_chunk_size: 0, ..model.config() }, "prefill_chunk_size: 0"),
        (PipelineConfig { max_length: Some(4096), ..model.config() }, "max_length: 4096"),
        (PipelineConfig { dtype: Some(DType::I8), ..model.config() }, "float32, float16 or bfloat16"),
        (
            PipelineConfig { cache_dtype: Some(DType::F64), ..model.config() },
            "cache_dtype: float64 is not float32, float16 or bfloat16",
        ),
    ] {
        let error = TextGenerationPipeline::new(&config).err().unwrap().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn experts_and_latents_that_make_no_sense() {
    for (name, key, value, message) in [
        ("deepseek_v3", "n_group", serde_json::json!(4), "`n_group` does not fit"),
        ("deepseek_v3", "n_group", serde_json::json!(6), "groups of one size, 2 or more"),
        ("deepseek_v3", "topk_group", serde_json::json!(null), "`topk_group` is missing"),
        ("deepseek_v3", "scoring_func", serde_json::json!("softmax"), "`scoring_func` is `softmax`; known is sigmoid"),
        ("deepseek_v3", "num_experts_per_tok", serde_json::json!(5), "those chosen have 5 experts or more"),
        ("deepseek_v3", "kv_lora_rank", serde_json::json!(0), "`kv_lora_rank` is 0"),
        ("deepseek_v3", "n_shared_experts", serde_json::json!(u64::MAX / 2), "of 20 units each"),
        ("deepseek_v3", "q_lora_rank", serde_json::json!(null), "unexpected: layers.0.self_attn.q_a_layernorm.weight"),
        ("deepseek_v3", "kv_lora_rank", serde_json::json!(12), "kv_b_proj.weight: float32[52, 12] is wanted"),
        ("deepseek_v2", "topk_method", serde_json::json!("noaux_tc"), "known are greedy, group_limited_greedy"),
        ("deepseek_v2", "norm_topk_prob", serde_json::json!(true), "`norm_topk_prob` is true"),
        ("deepseek_v2", "qk_rope_head_dim", serde_json::json!(5), "is odd"),
    ] {
        let model = Expected::new(name);
        model.write_config(|config| config[key] = value);
        fails(&model, &model.config(), &[message]);
    }
}

#[test]
fn all_weights_that_do_not_fit_are_listed() {
    let model = Expected::new("llama");
    model.write_weights(|weights| {
        for name in ["model.norm.weight", "model.layers.1.self_attn.q_proj.weight"] {
            weights.remove(name).unwrap();
        }
        weights.insert("model.layers.2.mlp.up_proj.weight".into(), Tensor::from_slice(&[0.0f32], [1]).unwrap());
        weights.insert("lm_head.weight".into(), Tensor::from_slice(&[0.0f32; 6], [2, 3]).unwrap());
    });
    let parts = [
        "missing: norm.weight",
        "missing: layers.1.self_attn.q_proj.weight",
        "unexpected: layers.2.mlp.up_proj.weight",
        "lm_head.weight: float32[64, 32] is wanted, float32[2, 3] is there",
    ];
    fails(&model, &model.config(), &parts);
}

#[test]
fn parts_of_weights_that_are_not_there() {
    let model = Expected::new("phi3");
    model.write_weights(|weights| {
        let name = "model.layers.0.self_attn.qkv_proj.weight";
        weights.insert(name.into(), Tensor::from_slice(&[0.0f32; 96], [3, 32]).unwrap());
    });
    fails(&model, &model.config(), &["layers.0.self_attn.q_proj.weight: float32[32, 32] is wanted"]);
}

#[test]
fn tokenizers_of_other_models() {
    let model = Expected::new("llama");
    model.write_tokenizer(4);
    fails(&model, &model.config(), &["tokenizer.json", "has tokens up to 259", "64 rows"]);
    std::fs::write(model.file("tokenizer.json"), "{}").unwrap();
    fails(&model, &model.config(), &["tokenizer.json"]);
    std::fs::remove_file(model.file("tokenizer.json")).unwrap();
    let llm = LLM::new(&model.config()).unwrap();
    let error = llm.generate(&["Hi"], &SamplingParams::greedy()).unwrap_err().to_string();
    assert!(error.contains("there is no tokenizer.json"), "{error}");
}

#[test]
fn tokenizers_that_would_fill_the_memory() {
    let model = crate::generation::bytes();
    let text = std::fs::read_to_string(model.file("tokenizer.json")).unwrap();
    let write = |key: &str, value: serde_json::Value| {
        let mut tokenizer: serde_json::Value = serde_json::from_str(&text).unwrap();
        tokenizer[key] = value;
        std::fs::write(model.file("tokenizer.json"), tokenizer.to_string()).unwrap();
    };
    let double = serde_json::json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    write("normalizer", serde_json::json!({"type": "Sequence", "normalizers": vec![double; 60]}));
    fails(&model, &model.config(), &["tokenizer.json", "times as long"]);
    // As many tokens as a file wants are not made.
    let padding = serde_json::json!({
        "strategy": {"Fixed": 1u64 << 40}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<0>",
    });
    write("padding", padding);
    let pipeline = model.pipeline();
    assert_eq!(pipeline.tokenizer().unwrap().encode("aaa", true).unwrap().len(), 3);
    // A pattern that tries everything: the search ends.
    let slow = serde_json::json!({"type": "Split", "pattern": {"Regex": "(a+)+\\1b"}, "behavior": "Isolated", "invert": false});
    let bytes =
        serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    write("pre_tokenizer", serde_json::json!({"type": "Sequence", "pretokenizers": [slow, bytes]}));
    let start = std::time::Instant::now();
    let _ = model.pipeline().tokenizer().unwrap().encode(&"a".repeat(2000), true);
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

#[test]
fn prompts_that_cannot_be_continued() {
    let model = Expected::new("llama");
    let pipeline = model.pipeline();
    let greedy = SamplingParams::greedy();
    let fails = |prompt: &[u32], params: &SamplingParams, message: &str| {
        let error = pipeline.generate(&[prompt.to_vec()], params, |_, _| {}).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    };
    fails(&[], &greedy, "give at least one token");
    fails(&[64], &greedy, "token 64 is not in the vocabulary, which has 64");
    fails(&[4; 128], &greedy, "the prompt has 128 tokens, and the model's context is 128");
    fails(&[4], &SamplingParams { top_p: 0.0, ..greedy.clone() }, "top_p: 0 is not above 0");
    fails(&[4], &SamplingParams { temperature: f64::NAN, ..greedy.clone() }, "temperature: NaN");
    fails(&[4], &SamplingParams { stop: vec!["x".into()], ..greedy }, "there is no tokenizer.json");
}

#[test]
fn logits_that_are_no_numbers_end_their_sequence_alone() {
    let model = Expected::new("llama");
    let prompts = [vec![4, 5, 6], vec![4, 7, 6], vec![8, 9]];
    let params = SamplingParams::greedy().max_new_tokens(6);
    let expected: Vec<Vec<u32>> = model
        .pipeline()
        .generate(&prompts, &params, |_, _| {})
        .unwrap()
        .0
        .into_iter()
        .map(|output| output.tokens)
        .collect();
    assert!(!expected[0].contains(&7) && !expected[2].contains(&7), "{expected:?}");
    model.write_weights(|weights| {
        let mut table = weights["model.embed_tokens.weight"].to_vec::<f32>().unwrap();
        table[7 * 32..8 * 32].fill(f32::NAN);
        weights.insert("model.embed_tokens.weight".into(), Tensor::from_vec(table, [64, 32]).unwrap());
    });
    for max_batch_size in [1, 3] {
        let config = PipelineConfig { max_batch_size, ..model.config() };
        let pipeline = TextGenerationPipeline::new(&config).unwrap();
        let (outputs, _) = pipeline.generate(&prompts, &params, |_, _| {}).unwrap();
        assert_eq!((&outputs[0].tokens, &outputs[2].tokens), (&expected[0], &expected[2]));
        assert_eq!(outputs[1].final_status, GenerationStatus::Failed);
        let error = outputs[1].error.as_ref().unwrap().to_string();
        assert!(error.contains("the logits behind token 2 are not numbers"), "{error}");
    }
}

#[test]
fn models_of_another_task() {
    let (text, encoder) = (Expected::new("llama"), Expected::new("bert"));
    fails(&encoder, &encoder.config(), &["`BertModel` is a model for embeddings, not for text generation"]);
    let error = EmbeddingsPipeline::new(&text.config()).err().unwrap().to_string();
    assert!(error.contains("`LlamaForCausalLM` is a model for text generation, not for embeddings"), "{error}");
    let pipeline = EmbeddingsPipeline::new(&encoder.config()).unwrap();
    assert!(pipeline.embed_tokens(&[]).is_err());
    assert!(pipeline.embed_tokens(&[4; 65]).unwrap_err().to_string().contains("65 tokens"));
}

#[test]
fn files_that_change_while_they_are_read() {
    use std::io::Write;
    let changed = |change: fn(&mut std::fs::File)| {
        let model = Expected::new("llama");
        let file = model.file("model.safetensors");
        let progress = max_pipelines::LoadProgress::new(move |_, _| {
            change(&mut std::fs::OpenOptions::new().append(true).open(&file).unwrap());
        });
        let config = PipelineConfig { load_progress: Some(progress), ..model.config() };
        let error = TextGenerationPipeline::new(&config).err().unwrap().to_string();
        assert!(error.contains("model.safetensors"), "{error}");
        error
    };
    let error = changed(|file| file.write_all(b"x").unwrap());
    assert!(error.contains("was changed while it was read"), "{error}");
    // What is missing then is an error of reading.
    let error = changed(|file| file.set_len(2000).unwrap());
    assert!(error.contains("failed to fill whole buffer"), "{error}");
}
