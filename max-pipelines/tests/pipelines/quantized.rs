//! Models in quantized GGUF files that this crate writes, against folders of the elements that their blocks hold.

use std::collections::BTreeMap;
use std::path::Path;

use max_core::driver::Tensor;
use max_core::graph::weights::{Weights, load_weights, save_safetensors};
use max_pipelines::{GgufType, PipelineConfig, TextGenerationPipeline, quantize};
use tempfile::TempDir;

use crate::folders::difference;

/// Shapes of weights whose rows are whole blocks of every encoding, but those of one, which are whole blocks of q8_0 alone.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut all =
        vec![("model.embed_tokens.weight".to_owned(), vec![96, 256]), ("model.norm.weight".into(), vec![256])];
    for layer in 0..2 {
        for (name, shape) in [
            ("input_layernorm", vec![256]),
            ("post_attention_layernorm", vec![256]),
            ("self_attn.q_proj", vec![256, 256]),
            ("self_attn.k_proj", vec![128, 256]),
            ("self_attn.v_proj", vec![128, 256]),
            ("self_attn.o_proj", vec![256, 256]),
            ("mlp.gate_proj", vec![288, 256]),
            ("mlp.up_proj", vec![288, 256]),
            ("mlp.down_proj", vec![256, 288]),
        ] {
            all.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    all
}

/// A folder with these weights, and a matrix for logits unless it is tied.
fn folder(tied: bool, mut weight: impl FnMut(&str, &[usize]) -> Vec<f32>) -> TempDir {
    max_kernels::link();
    let folder = tempfile::tempdir().unwrap();
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 288, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "tie_word_embeddings": tied,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let mut shapes = shapes();
    if !tied {
        shapes.push(("lm_head.weight".into(), vec![96, 256]));
    }
    let tensors: Vec<(String, Tensor)> = shapes
        .into_iter()
        .map(|(name, shape)| (name.clone(), Tensor::from_vec(weight(&name, &shape), &shape).unwrap()))
        .collect();
    let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    save_safetensors(folder.path().join("model.safetensors"), named, &BTreeMap::new()).unwrap();
    folder
}

/// Noise that a name makes; norms are near 1.
fn noise(name: &str, shape: &[usize]) -> Vec<f32> {
    let mut seed = name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let (scale, shift) = if shape.len() == 1 { (0.2, 1.0) } else { (0.25, 0.0) };
    let mut next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((seed >> 40) as f32 / (1u32 << 24) as f32 - 0.5) * scale + shift
    };
    (0..shape.iter().product()).map(|_| next()).collect()
}

/// The name of a folder's weight in a file, and the elements that the file holds of it, rows in the folder's order.
fn elements(file: &Weights, name: &str, shape: &[usize]) -> Vec<f32> {
    let short = [
        ("model.layers", "blk"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
    ];
    let there = short.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
    let all = file.data(&there).unwrap().astype(max_core::dtype::DType::F32).unwrap().data.to_vec::<f32>().unwrap();
    let heads = if name.contains("q_proj") { 4 } else { 2 };
    if !name.contains("q_proj") && !name.contains("k_proj") {
        return all;
    }
    let half = shape[0] / heads / 2;
    let row = |to: usize| {
        let (head, side, i) = (to / (2 * half), to / half % 2, to % half);
        (head * half + i) * 2 + side
    };
    (0..shape[0]).flat_map(|to| all[row(to) * shape[1]..][..shape[1]].to_vec()).collect()
}

fn logits(path: &Path) -> Vec<f32> {
    let pipeline = TextGenerationPipeline::new(&PipelineConfig::new(path)).unwrap();
    pipeline.logits(&[3, 14, 15, 92, 65, 35, 8, 9, 79, 32, 38, 46]).unwrap().to_vec().unwrap()
}

#[test]
fn blocks_are_computed_with_as_their_elements_are() {
    let source = folder(false, noise);
    let exact = logits(source.path());
    // How far from what was quantized: by the bits of weights, which errors of layers add to.
    for (ty, from_source) in
        [("f32", 1e-6), ("bf16", 5e-2), ("q8_0", 5e-2), ("q6_k", 0.12), ("q5_k", 0.25), ("q4_k", 0.5), ("q4_0", 0.5)]
    {
        let path = source.path().join(format!("{ty}.gguf"));
        quantize(source.path(), &path, ty.parse::<GgufType>().unwrap()).unwrap();
        let file = load_weights([&path]).unwrap();
        let packed = logits(&path);
        let off = difference(&packed, &exact);
        assert!(off < from_source, "{ty}: {off} from the folder");
        if ty == "bf16" {
            continue;
        }
        let elements = folder(false, |name, shape| elements(&file, name, shape));
        let off = difference(&packed, &logits(elements.path()));
        let bound = if ty == "f32" { 1e-4 } else { BOUND };
        assert!(off < bound, "{ty}: {off} from its elements");
    }
}

/// How far logits of blocks are from those of their elements: products with blocks round activations to 8 bits, which errors of layers add
/// to. Elements in another order would be as far as 1.
const BOUND: f32 = 0.1;

#[test]
fn a_quantized_embedding_makes_logits_too() {
    let source = folder(true, noise);
    let path = source.path().join("q4_k.gguf");
    quantize(source.path(), &path, "q4_k".parse().unwrap()).unwrap();
    let file = load_weights([&path]).unwrap();
    assert!(!file.exists("output.weight"));
    let encoding = |name: &str| file.quantization_encoding(name).unwrap().map(|encoding| encoding.name());
    assert_eq!(encoding("token_embd.weight"), Some("q6_k"));
    assert_eq!(encoding("blk.1.ffn_down.weight"), Some("q8_0"));
    assert_eq!(encoding("blk.1.ffn_up.weight"), Some("q4_k"));
    assert_eq!(encoding("blk.1.ffn_norm.weight"), None);
    let elements = folder(true, |name, shape| elements(&file, name, shape));
    let off = difference(&logits(&path), &logits(elements.path()));
    assert!(off < BOUND, "{off}");
    // An answer of the dtype that is asked for.
    let config = PipelineConfig { dtype: Some(max_core::dtype::DType::BF16), ..PipelineConfig::new(&path) };
    let pipeline = TextGenerationPipeline::new(&config).unwrap();
    let half = pipeline.logits(&[3, 14, 15]).unwrap().to_vec::<f32>().unwrap();
    let whole = TextGenerationPipeline::new(&PipelineConfig::new(&path)).unwrap().logits(&[3, 14, 15]).unwrap();
    let off = difference(&half, &whole.to_vec::<f32>().unwrap());
    assert!(off < BOUND, "{off}");
}

#[test]
fn models_that_are_not_written() {
    let source = folder(false, noise);
    let error = "q3_k".parse::<GgufType>().unwrap_err().to_string();
    assert_eq!(error, "type: q3_k is not q4_0, q8_0, q4_k, q5_k, q6_k, f16, bf16 or f32");
    let (out, ty) = (source.path().join("out.gguf"), "q8_0".parse::<GgufType>().unwrap());
    let config = source.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let fails = |text: String| {
        std::fs::write(&config, text).unwrap();
        let error = quantize(source.path(), &out, ty).unwrap_err().to_string();
        assert!(!out.exists());
        error
    };
    let error = fails(text.replace("LlamaFor", "DeepseekV3For"));
    assert!(
        error.contains("`DeepseekV3ForCausalLM` is not known; known are LlamaForCausalLM, MistralForCausalLM"),
        "{error}"
    );
    let dynamic = r#""rope_scaling": {"rope_type": "dynamic"}, "hidden_size""#;
    let error = fails(text.replace(r#""hidden_size""#, dynamic));
    assert!(error.contains("`rope_scaling.rope_type` is `dynamic`, which is not written to GGUF"), "{error}");
    std::fs::write(&config, &text).unwrap();
    let left_out = quantize(source.path(), &out, ty).unwrap();
    assert_eq!(left_out.as_deref(), Some("there is no tokenizer.json"));
    let error = quantize(&out, source.path().join("again.gguf"), ty).unwrap_err().to_string();
    assert!(error.contains("out.gguf is not a folder, but a GGUF file already"), "{error}");
}
