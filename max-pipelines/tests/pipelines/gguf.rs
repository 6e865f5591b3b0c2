//! GGUF files of the models that transformers computed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use max_core::driver::Tensor;
use max_pipelines::{LLM, PipelineConfig, SamplingParams, TextGenerationPipeline};

use crate::architectures::greedy;
use crate::folders::Expected;

/// A value of the metadata, as its kind and its bytes.
struct Metadata(u32, Vec<u8>);

fn number(n: u32) -> Metadata {
    Metadata(4, n.to_le_bytes().to_vec())
}

fn float(x: f32) -> Metadata {
    Metadata(6, x.to_le_bytes().to_vec())
}

fn sized(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn numbers<T: Copy>(kind: u32, all: &[T], bytes: impl Fn(T) -> [u8; 4]) -> Metadata {
    let head = [kind.to_le_bytes().to_vec(), (all.len() as u64).to_le_bytes().to_vec()].concat();
    Metadata(9, [head, all.iter().flat_map(|number| bytes(*number)).collect()].concat())
}

fn text(text: &str) -> Metadata {
    Metadata(8, sized(text))
}

fn texts(all: &[String]) -> Metadata {
    let head = [8u32.to_le_bytes().to_vec(), (all.len() as u64).to_le_bytes().to_vec()].concat();
    Metadata(9, [head, all.iter().flat_map(|text| sized(text)).collect()].concat())
}

/// Rows of heads whose halves lie one behind the other, as pairs of neighbours.
fn paired(tensor: &Tensor, heads: usize) -> Tensor {
    let shape = tensor.shape().to_vec();
    let half = shape[0] / heads / 2;
    let split = tensor.reshape([heads, 2, half, shape[1]]).unwrap().transpose(1, 2).unwrap();
    split.contiguous().unwrap().reshape(shape).unwrap()
}

/// A Llama in a file, with more metadata.
fn file(model: &Expected, more: Vec<(&str, Metadata)>) -> PathBuf {
    let weights = max_core::graph::weights::load_weights([model.file("model.safetensors")]).unwrap();
    let names = [
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
    ];
    let vocab = weights.ty("lm_head.weight").unwrap().shape[0];
    let mut metadata = vec![
        ("general.architecture", text("llama")),
        ("llama.embedding_length", number(32)),
        ("llama.feed_forward_length", number(48)),
        ("llama.block_count", number(2)),
        ("llama.attention.head_count", number(4)),
        ("llama.attention.head_count_kv", number(2)),
        ("llama.context_length", number(128)),
        ("llama.attention.layer_norm_rms_epsilon", float(1e-6)),
        ("llama.rope.freq_base", float(10000.0)),
        ("llama.vocab_size", number(vocab as u32)),
    ];
    metadata.extend(more);
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((weights.names().count() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    for (name, Metadata(kind, value)) in &metadata {
        bytes.extend([sized(name), kind.to_le_bytes().to_vec(), value.clone()].concat());
    }
    let mut data = Vec::new();
    for name in weights.names() {
        let mut tensor = weights.tensor(name).unwrap();
        if name.contains("q_proj") {
            tensor = paired(&tensor, 4);
        } else if name.contains("k_proj") {
            tensor = paired(&tensor, 2);
        }
        let name = names.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
        bytes.extend(sized(&name));
        bytes.extend((tensor.rank() as u32).to_le_bytes());
        tensor.shape().iter().rev().for_each(|size| bytes.extend((*size as u64).to_le_bytes()));
        bytes.extend(0u32.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        tensor.to_vec::<f32>().unwrap().iter().for_each(|x| data.extend(x.to_le_bytes()));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    let path = model.file("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_file_continues_as_its_folder_does() {
    let model = Expected::new("llama");
    let path = file(&model, Vec::new());
    let pipeline = TextGenerationPipeline::new(&PipelineConfig::new(&path)).unwrap();
    let (outputs, _) = pipeline.generate(&[model.ids()], &greedy(16), |_, _| {}).unwrap();
    assert_eq!(outputs[0].tokens, model.tokens());
    let info = max_pipelines::info(&path, &max_pipelines::PipelineRegistry::new()).unwrap();
    assert_eq!((info.architecture.as_str(), info.max_length), ("LlamaForCausalLM", Some(128)));
}

#[test]
fn a_vocabulary_within_a_file_is_a_tokenizer() {
    let model = crate::generation::bytes();
    let json = std::fs::read_to_string(model.file("tokenizer.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let by_id: BTreeMap<u64, &String> = vocab.iter().map(|(token, id)| (id.as_u64().unwrap(), token)).collect();
    let tokens: Vec<String> = by_id.into_values().cloned().collect();
    let more = |kind: &str| {
        vec![
            ("tokenizer.ggml.model", text(kind)),
            ("tokenizer.ggml.pre", text("llama-bpe")),
            ("tokenizer.ggml.tokens", texts(&tokens)),
            ("tokenizer.ggml.merges", texts(&["t h".into()])),
            ("tokenizer.chat_template", text("{{ messages[0].content }}!")),
        ]
    };
    std::fs::remove_file(model.file("tokenizer.json")).unwrap();
    // A merge makes a token that the vocabulary has to have.
    let error = LLM::new(&PipelineConfig::new(file(&model, more("gpt2")))).err().unwrap().to_string();
    assert!(error.contains("model.gguf"), "{error}");
    let error = LLM::new(&PipelineConfig::new(file(&model, more("wordpiece")))).err().unwrap().to_string();
    assert!(error.contains("put the model's tokenizer.json beside the file"), "{error}");
    let error = LLM::new(&PipelineConfig::new(file(&model, more("llama")))).err().unwrap().to_string();
    assert!(error.contains("has 0 scores for 260 tokens"), "{error}");
    let mut long = more("gpt2");
    long[2].1 = texts(&["x".repeat(1 << 20)]);
    let error = LLM::new(&PipelineConfig::new(file(&model, long))).err().unwrap().to_string();
    assert!(error.contains("token 0 has 1048576 bytes, more than 1024"), "{error}");
    let mut without = more("gpt2");
    without[3].1 = texts(&[]);
    let llm = LLM::new(&PipelineConfig::new(file(&model, without))).unwrap();
    let tokenizer = llm.pipeline().tokenizer().unwrap();
    let ids = tokenizer.encode("the naïve 123", true).unwrap();
    assert_eq!((ids.len(), tokenizer.decode(&ids).unwrap().as_str()), (14, "the naïve 123"));
    let params = SamplingParams::greedy().max_new_tokens(2);
    let answer = llm.chat(&[max_pipelines::ChatMessage::user("Hi")], &params).unwrap();
    assert_eq!(answer.prompt_tokens, 3);
}

#[test]
fn files_that_are_no_models_here() {
    let model = Expected::new("llama");
    let path = file(&model, vec![("general.architecture", text("mamba"))]);
    let error = TextGenerationPipeline::new(&PipelineConfig::new(&path)).err().unwrap().to_string();
    assert!(error.contains("model.gguf"), "{error}");
}

/// What SentencePiece makes of texts, and its vocabulary: see `golden/make_sentencepiece.py`.
fn golden() -> serde_json::Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sentencepiece.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A model with that vocabulary in its `model.gguf`.
pub fn sentencepiece(adds_bos: u8) -> Expected {
    let golden = golden();
    let list = |key: &str| golden[key].as_array().unwrap().clone();
    let tokens: Vec<String> = list("tokens").iter().map(|token| token.as_str().unwrap().to_owned()).collect();
    let scores: Vec<f32> = list("scores").iter().map(|score| score.as_f64().unwrap() as f32).collect();
    let kinds: Vec<i32> = list("token_type").iter().map(|kind| kind.as_i64().unwrap() as i32).collect();
    let model = crate::generation::vocabulary_of(tokens.len());
    let metadata = vec![
        ("tokenizer.ggml.model", text("llama")),
        ("tokenizer.ggml.tokens", texts(&tokens)),
        ("tokenizer.ggml.scores", numbers(6, &scores, f32::to_le_bytes)),
        ("tokenizer.ggml.token_type", numbers(5, &kinds, i32::to_le_bytes)),
        ("tokenizer.ggml.bos_token_id", number(1)),
        ("tokenizer.ggml.eos_token_id", number(2)),
        ("tokenizer.ggml.unknown_token_id", number(0)),
        ("tokenizer.ggml.add_bos_token", Metadata(7, vec![adds_bos])),
    ];
    file(&model, metadata);
    model
}

#[test]
fn a_vocabulary_of_sentencepiece_gives_its_tokens() {
    let golden = golden();
    let list = |key: &str| golden[key].as_array().unwrap().clone();
    let model = sentencepiece(0);
    let llm = LLM::new(&PipelineConfig::new(model.file("model.gguf"))).unwrap();
    let tokenizer = llm.pipeline().tokenizer().unwrap();
    for case in list("texts") {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let found = tokenizer.encode(text, true).unwrap();
        assert_eq!(found, ids, "{text:?}");
        assert_eq!(tokenizer.decode(&found).unwrap(), case["decoded"].as_str().unwrap(), "{text:?}");
    }
    let model = sentencepiece(1);
    let llm = LLM::new(&PipelineConfig::new(model.file("model.gguf"))).unwrap();
    let tokens = llm.pipeline().tokenizer().unwrap().encode("the", true).unwrap();
    assert_eq!(tokens[0], 1);
    // Bytes of a character are drawn one at a time, and text comes in whole characters.
    let output = llm.generate(&["the"], &SamplingParams::greedy().max_new_tokens(8)).unwrap().remove(0);
    assert_eq!(output.tokens.len(), 8);
}
