//! Models and tokenizers that are written as GGUF files, and read again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use max_core::dtype::DType;
use max_core::graph::weights::{GgufTensor, MetadataValue, load_weights, save_gguf};
use max_pipelines::{EmbeddingsPipeline, LLM, PipelineConfig, TextGenerationPipeline, quantize};
use serde_json::{Value, json};

use crate::architectures::continues_as_expected;
use crate::folders::{Expected, difference};

/// The model's file of a type.
fn written(model: &Expected, ty: &str) -> PathBuf {
    let path = model.file(&format!("{ty}.gguf"));
    quantize(model.path(), &path, ty.parse().unwrap()).unwrap();
    path
}

fn logits(path: impl Into<PathBuf>, ids: &[u32]) -> Vec<f32> {
    let pipeline = TextGenerationPipeline::new(&PipelineConfig::new(path)).unwrap();
    pipeline.logits(ids).unwrap().to_vec().unwrap()
}

fn continues(name: &str) {
    let model = Expected::new(name);
    let pipeline = TextGenerationPipeline::new(&PipelineConfig::new(written(&model, "f32"))).unwrap();
    continues_as_expected(name, &model, &pipeline);
}

macro_rules! continue_as_their_folders {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            continues(stringify!($name));
        }
    )*};
}
continue_as_their_folders!(
    llama llama_biases llama3 llama_linear llama_yarn qwen2 qwen3 phi3 phi3_longrope granite olmo2 mixtral
);

/// What GGUF has no word for is refused; without it, a file is as its folder.
fn continues_without(name: &str, reason: &str, change: fn(&mut Value)) {
    let model = Expected::new(name);
    let out = model.file("refused.gguf");
    let refused = || quantize(model.path(), &out, "f32".parse().unwrap()).unwrap_err().to_string();
    let error = refused();
    assert!(error.contains(reason) && error.contains("which cannot be said in GGUF"), "{name}: {error}");
    assert!(!out.exists());
    model.write_config(change);
    // A layer without experts among those that have some is one of these things.
    model.write_weights(|weights| weights.retain(|weight, _| name != "qwen3_moe" || !weight.contains("layers.1.")));
    let (path, ids) = (written(&model, "f32"), model.ids());
    let difference = difference(&logits(path, &ids), &logits(model.path(), &ids));
    assert!(difference < 1e-5, "{name}: {difference}");
}

#[test]
fn what_gguf_cannot_say() {
    continues_without("mistral", "`sliding_window` is shorter than the longest sequence", |config| {
        config["sliding_window"] = Value::Null;
    });
    continues_without("qwen3_moe", "`mlp_only_layers` names layers without experts", |config| {
        config["mlp_only_layers"] = json!([]);
        config["num_hidden_layers"] = json!(1);
    });
    continues_without("gemma3", "`layer_types` does not have full attention in each sixth layer", |config| {
        config["layer_types"] = json!(["sliding_attention", "sliding_attention"]);
        config["query_pre_attn_scalar"] = config["head_dim"].clone();
    });
}

#[test]
fn experts_are_stacks_of_blocks() {
    let model = Expected::new("mixtral");
    let path = written(&model, "q8_0");
    let file = load_weights([&path]).unwrap();
    let experts = file.ty("blk.0.ffn_gate_exps.weight").unwrap().shape;
    assert_eq!(experts.len(), 3, "{experts:?}");
    assert!(file.quantization_encoding("blk.0.ffn_gate_exps.weight").unwrap().is_some());
    assert!(file.quantization_encoding("blk.0.ffn_gate_inp.weight").unwrap().is_none());
    // Each where its number says.
    let own = load_weights([model.file("model.safetensors")]).unwrap();
    for (stack, name) in [("ffn_gate_exps", "w1"), ("ffn_up_exps", "w3"), ("ffn_down_exps", "w2")] {
        let stack = file.data(&format!("blk.1.{stack}.weight")).unwrap().astype(DType::F32).unwrap().data;
        for expert in 0..experts[0] {
            let one = stack.narrow(0, expert, 1).unwrap().to_vec::<f32>().unwrap();
            let name = format!("model.layers.1.block_sparse_moe.experts.{expert}.{name}.weight");
            let off = difference(&one, &own.tensor(&name).unwrap().to_vec::<f32>().unwrap());
            assert!(off < 0.01, "{name}: {off}");
        }
    }
    assert!(logits(&path, &model.ids()).iter().all(|x| x.is_finite()));
}

#[test]
fn a_model_in_several_files() {
    let model = Expected::new("qwen3");
    let path = written(&model, "f32");
    let file = load_weights([&path]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<&str> = file.names().collect();
    let part = |number: usize| folder.path().join(format!("own-{number:05}-of-00003.gguf"));
    for (i, names) in names.chunks(names.len().div_ceil(3)).enumerate() {
        let entry = |name: &&str| GgufTensor {
            name: (*name).into(),
            shape: file.ty(name).unwrap().shape,
            dtype: DType::F32,
            quantization_encoding: None,
        };
        let tensors: Vec<GgufTensor> = names.iter().map(entry).collect();
        // The first one says what the model is.
        let told = if i == 0 { file.metadata().clone() } else { BTreeMap::new() };
        save_gguf(part(i + 1), &told, &tensors, |tensor| file.tensor(&tensor.name)).unwrap();
    }
    // By any of them, or by their folder.
    for path in [part(1), part(3), folder.path().to_path_buf()] {
        let off = difference(&logits(&path, &model.ids()), &model.rows("logits"));
        assert!(off < 1e-5, "{}: {off}", path.display());
    }
    std::fs::copy(&path, folder.path().join("other.gguf")).unwrap();
    let fails = |path: PathBuf| TextGenerationPipeline::new(&PipelineConfig::new(path)).err().unwrap().to_string();
    let error = fails(folder.path().into());
    assert!(error.contains("several GGUF files, other.gguf, own-00001-of-00003.gguf: name one"), "{error}");
    std::fs::remove_file(part(2)).unwrap();
    let error = fails(part(1));
    assert!(
        error.contains("own-00001-of-00003.gguf") && error.contains("own-00002-of-00003.gguf is not there"),
        "{error}"
    );
    std::fs::remove_file(folder.path().join("other.gguf")).unwrap();
    std::fs::remove_file(part(1)).unwrap();
    let error = fails(folder.path().into());
    assert!(error.contains("there is neither a config.json nor a GGUF file"), "{error}");
}

/// A tokenizer of bytes that joins some of them, and takes texts apart as `pre_tokenizer` says.
fn with_tokenizer(pre_tokenizer: &Value, change: impl FnOnce(&mut Value)) -> Expected {
    let model = crate::generation::bytes();
    let text = std::fs::read_to_string(model.file("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    tokenizer["pre_tokenizer"] = pre_tokenizer.clone();
    change(&mut tokenizer);
    std::fs::write(model.file("tokenizer.json"), tokenizer.to_string()).unwrap();
    model
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

/// The file of a folder, by itself.
fn moved(model: &Expected) -> (tempfile::TempDir, PathBuf) {
    let path = written(model, "f32");
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("model.gguf");
    std::fs::rename(path, &alone).unwrap();
    (folder, alone)
}

const TEXTS: [&str; 3] = ["it's  12345 naïve\n\n tests", "<0>tokens<1> of 99 words", " \tÜber"];

#[test]
fn a_tokenizer_is_written() {
    let digits = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true}, byte_level(true),
    ]});
    let split = |regex: &str| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false}, byte_level(false),
        ]})
    };
    let qwen = split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    );
    for (pre_tokenizer, name) in [(byte_level(true), "gpt-2"), (digits, "smollm"), (qwen, "qwen2")] {
        let model = with_tokenizer(&pre_tokenizer, |_| {});
        std::fs::write(model.file("chat_template.jinja"), "{{ messages[0].content }}!").unwrap();
        let folder = LLM::new(&PipelineConfig::new(model.path())).unwrap();
        let (_folder, path) = moved(&model);
        let written = load_weights([&path]).unwrap();
        assert_eq!(written.metadata()["tokenizer.ggml.pre"].as_str(), Some(name));
        assert_eq!(written.metadata()["tokenizer.chat_template"].as_str(), Some("{{ messages[0].content }}!"));
        let file = LLM::new(&PipelineConfig::new(path)).unwrap();
        let (own, read) = (folder.pipeline().tokenizer().unwrap(), file.pipeline().tokenizer().unwrap());
        for text in TEXTS {
            let ids = own.encode(text, true).unwrap();
            assert_eq!(read.encode(text, true).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(read.decode(&ids).unwrap(), own.decode(&ids).unwrap(), "{name}: {text:?}");
        }
    }
}

#[test]
fn a_tokenizer_without_a_name_is_left_out() {
    type Change = fn(&mut Value);
    let cases: [(Value, Change, &str); 4] = [
        (byte_level(false), |_| {}, "how its `pre_tokenizer` cuts texts has no name in GGUF"),
        (json!({"type": "Whitespace"}), |_| {}, "how its `pre_tokenizer` cuts texts has no name in GGUF"),
        (
            byte_level(true),
            |json| json["normalizer"] = json!({"type": "Lowercase"}),
            "its normalizer has no name in GGUF",
        ),
        (
            json!({"type": "Whitespace"}),
            |json| {
                json["model"] = json!({
                    "type": "WordLevel", "vocab": json["model"]["vocab"], "unk_token": "<0>",
                });
            },
            "its model is WordLevel, and only BPE is written",
        ),
    ];
    for (pre_tokenizer, change, reason) in cases {
        let model = with_tokenizer(&pre_tokenizer, change);
        let path = model.file("model.gguf");
        let left_out = quantize(model.path(), &path, "f32".parse().unwrap()).unwrap();
        assert_eq!(left_out.as_deref(), Some(reason));
        // It is read beside the file.
        assert!(LLM::new(&PipelineConfig::new(&path)).unwrap().pipeline().tokenizer().is_ok());
    }
}

/// A vocabulary of SentencePiece, as it is read from a file that has scores: see `golden/make_sentencepiece.py`.
#[test]
fn a_vocabulary_of_sentencepiece_is_written() {
    let model = crate::gguf::sentencepiece(0);
    let read = LLM::new(&PipelineConfig::new(model.file("model.gguf"))).unwrap();
    let read = read.pipeline().tokenizer().unwrap();
    std::fs::write(model.file("tokenizer.json"), read.to_json().unwrap()).unwrap();
    let (_folder, path) = moved(&model);
    let metadata = load_weights([&path]).unwrap().metadata().clone();
    assert_eq!(metadata["tokenizer.ggml.model"].as_str(), Some("llama"));
    let again = LLM::new(&PipelineConfig::new(path)).unwrap();
    let again = again.pipeline().tokenizer().unwrap();
    for text in ["the naïve  cat's 123", " leading", "tabs\tand\nlines", "日本"] {
        let ids = read.encode(text, true).unwrap();
        assert_eq!(again.encode(text, true).unwrap(), ids, "{text:?}");
        assert_eq!(again.decode(&ids).unwrap(), read.decode(&ids).unwrap(), "{text:?}");
    }
}

/// A BERT's weights by the names that GGUF has, and a vocabulary of WordPiece.
#[test]
fn an_encoder_is_read() {
    let model = Expected::new("bert");
    let own = load_weights([model.file("model.safetensors")]).unwrap();
    let names = [
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.position_embeddings", "position_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("embeddings.LayerNorm", "token_embd_norm"),
        ("attention.self.query", "attn_q"),
        ("attention.self.key", "attn_k"),
        ("attention.self.value", "attn_v"),
        ("attention.output.dense", "attn_output"),
        ("attention.output.LayerNorm", "attn_output_norm"),
        ("intermediate.dense", "ffn_up"),
        ("output.dense", "ffn_down"),
        ("output.LayerNorm", "layer_output_norm"),
        ("encoder.layer.", "blk."),
    ];
    let renamed = |name: &str| names.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
    let sources: BTreeMap<String, &str> =
        own.names().filter(|name| !name.contains("pooler")).map(|name| (renamed(name), name)).collect();
    let config: Value = serde_json::from_str(&std::fs::read_to_string(model.file("config.json")).unwrap()).unwrap();
    let size = |key: &str| MetadataValue::Int(config[key].as_u64().unwrap().into());
    let text = |text: &str| MetadataValue::String(text.into());
    let vocab = config["vocab_size"].as_u64().unwrap() as usize;
    let mut tokens =
        vec!["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u{2581}un", "\u{2581}the", "able", "\u{2581}eat", "s", "\u{2581}!"];
    tokens.resize(vocab, "[unused]");
    let kinds = (0..vocab).map(|id| MetadataValue::Int(if id < 4 { 3 } else { 1 })).collect();
    let metadata = BTreeMap::from([
        ("general.architecture".to_owned(), text("bert")),
        ("bert.block_count".into(), size("num_hidden_layers")),
        ("bert.context_length".into(), size("max_position_embeddings")),
        ("bert.embedding_length".into(), size("hidden_size")),
        ("bert.feed_forward_length".into(), size("intermediate_size")),
        ("bert.attention.head_count".into(), size("num_attention_heads")),
        ("bert.attention.layer_norm_epsilon".into(), MetadataValue::Float(config["layer_norm_eps"].as_f64().unwrap())),
        ("bert.pooling_type".into(), MetadataValue::Int(2)),
        ("tokenizer.ggml.token_type_count".into(), size("type_vocab_size")),
        ("tokenizer.ggml.model".into(), text("bert")),
        ("tokenizer.ggml.tokens".into(), MetadataValue::Array(tokens.iter().map(|token| text(token)).collect())),
        ("tokenizer.ggml.token_type".into(), MetadataValue::Array(kinds)),
        ("tokenizer.ggml.unknown_token_id".into(), MetadataValue::Int(1)),
        ("tokenizer.ggml.cls_token_id".into(), MetadataValue::Int(2)),
        ("tokenizer.ggml.seperator_token_id".into(), MetadataValue::Int(3)),
    ]);
    let entry = |(name, source): (&String, &&str)| GgufTensor {
        name: name.clone(),
        shape: own.ty(source).unwrap().shape,
        dtype: DType::F32,
        quantization_encoding: None,
    };
    let tensors: Vec<GgufTensor> = sources.iter().map(entry).collect();
    let path = model.file("model.gguf");
    save_gguf(&path, &metadata, &tensors, |tensor| own.tensor(sources[&tensor.name])).unwrap();
    let pipeline = EmbeddingsPipeline::new(&PipelineConfig::new(&path)).unwrap();
    let hidden = pipeline.hidden(&model.ids()).unwrap().to_vec::<f32>().unwrap();
    let off = difference(&hidden, &model.rows("hidden"));
    assert!(off < 1e-5, "{off}");
    // The first vector, of length 1.
    let (vector, width) =
        (pipeline.embed_tokens(&model.ids()).unwrap(), config["hidden_size"].as_u64().unwrap() as usize);
    let length = hidden[..width].iter().map(|x| x * x).sum::<f32>().sqrt();
    let first: Vec<f32> = hidden[..width].iter().map(|x| x / length).collect();
    assert!(difference(&vector, &first) < 1e-5);
    let tokenizer = pipeline.tokenizer().unwrap();
    assert_eq!(tokenizer.encode("The ÜNeatables eats!", true).unwrap(), [2, 5, 1, 7, 8, 9, 3]);
    assert_eq!(tokenizer.encode("uneats unable", true).unwrap(), [2, 1, 4, 6, 3]);
    assert_eq!(tokenizer.decode(&[2, 4, 6, 9, 3]).unwrap(), "unable!");
    let error = quantize(model.path(), model.file("q.gguf"), "q8_0".parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("`architectures` is an encoder's, which is not written to GGUF"), "{error}");
}
