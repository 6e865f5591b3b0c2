"""Writes what Hugging Face transformers computes for small models: a JSON file for each, beside this script.

    pip install torch transformers && python make_expected.py [NAME ..]

A file has `config` (config.json), the names and shapes of the `weights`, `ids` (a prompt), the `logits` of all its positions,
and the `tokens` that greedy generation adds; of an encoder the `hidden` vectors. The values of weights are made of their names,
by `values` here and by `weights` in the tests, so that they are not stored.
"""
import json
import pathlib
import sys

import numpy as np
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

MASK = (1 << 64) - 1


def values(name, shape, tied):
    """The weight of that name: SplitMix64 numbers of the name's FNV-1a hash."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        bits = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    uniform = ((bits ^ (bits >> np.uint64(31))) >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1.0
    if "norm" in name.lower() and name.endswith("weight"):
        values = 0.2 * uniform + 1.0
    elif len(shape) < 2:
        values = 0.1 * uniform
    elif "embed" in name:
        values = (0.02 if tied else 0.8) * uniform
    else:
        values = uniform * 2.2 / np.sqrt(np.float64(shape[-1]))
    return values.astype(np.float32).reshape(shape)


DIMS = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64)
SHARED = dict(max_position_embeddings=128, bos_token_id=0, eos_token_id=1, pad_token_id=3)
BASE = dict(**DIMS, **SHARED, tie_word_embeddings=False)
EXPERTS = dict(num_experts_per_tok=2)
LATENT = dict(**{**BASE, "num_key_value_heads": 4}, num_experts_per_tok=2, n_routed_experts=6, moe_intermediate_size=20, first_k_dense_replace=1,
    kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=6, v_head_dim=5)
FACTORS = dict(short_factor=[1.0, 1.1, 1.3, 1.6], long_factor=[1.0, 1.9, 3.5, 6.0])


def rope(**kind):
    return dict(rope_parameters=dict(rope_theta=10000.0, **kind))


MODELS = {
    "llama": tf.LlamaConfig(**BASE),
    "llama_biases": tf.LlamaConfig(**BASE, attention_bias=True, mlp_bias=True),
    "llama3": tf.LlamaConfig(**DIMS, **SHARED, tie_word_embeddings=True, **rope(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)),
    "llama_linear": tf.LlamaConfig(**BASE, **rope(rope_type="linear", factor=4.0)),
    "llama_dynamic": tf.LlamaConfig(**{**BASE, "max_position_embeddings": 16}, **rope(rope_type="dynamic", factor=2.0)),
    "llama_yarn": tf.LlamaConfig(**BASE, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "mistral": tf.MistralConfig(**BASE, sliding_window=7),
    "qwen2": tf.Qwen2Config(**BASE),
    "qwen3": tf.Qwen3Config(**BASE, head_dim=16),
    "qwen3_moe": tf.Qwen3MoeConfig(**BASE, **EXPERTS, head_dim=8, num_experts=5, moe_intermediate_size=24, mlp_only_layers=[1], norm_topk_prob=True),
    "phi3": tf.Phi3Config(**BASE),
    "phi3_longrope": tf.Phi3Config(**BASE, original_max_position_embeddings=16, rope_parameters=dict(
        rope_theta=10000.0, rope_type="longrope", original_max_position_embeddings=16, **FACTORS)),
    "granite": tf.GraniteConfig(**BASE, embedding_multiplier=6.0, attention_multiplier=0.2, residual_multiplier=0.4, logits_scaling=2.0),
    "olmo2": tf.Olmo2Config(**BASE),
    "gemma3": tf.Gemma3TextConfig(**DIMS, **SHARED, head_dim=16, sliding_window=7, layer_types=["sliding_attention", "full_attention"]),
    "mixtral": tf.MixtralConfig(**BASE, **EXPERTS, num_local_experts=4),
    "deepseek_v2": tf.DeepseekV2Config(**LATENT, **rope(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=32, mscale=0.707, mscale_all_dim=0.707), q_lora_rank=None, n_shared_experts=2),
    "deepseek_v2_groups": tf.DeepseekV2Config(**LATENT, q_lora_rank=12, topk_method="group_limited_greedy", n_group=3, topk_group=2,
        n_shared_experts=1, routed_scaling_factor=2.5, attention_bias=True),
    "deepseek_v3": tf.DeepseekV3Config(**LATENT, **rope(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=0.5), q_lora_rank=12, n_group=3, topk_group=2,
        n_shared_experts=1, routed_scaling_factor=2.5),
    "deepseek_v3_halves": tf.DeepseekV3Config(**LATENT, q_lora_rank=None, n_group=1, topk_group=1, n_shared_experts=2, norm_topk_prob=False,
        routed_scaling_factor=1.0, rope_interleave=False, attention_bias=True),
    "bert": tf.BertConfig(**{k: v for k, v in DIMS.items() if k != "num_key_value_heads"}, max_position_embeddings=64),
    "mpnet": tf.MPNetConfig(**{k: v for k, v in DIMS.items() if k != "num_key_value_heads"}, max_position_embeddings=64),
}


def numbers(tensor):
    return [[float(f"{x:.7g}") for x in row] for row in tensor.tolist()]


def main():
    folder = pathlib.Path(__file__).parent
    for name, config in MODELS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        encoder = name in ("bert", "mpnet")
        model = (tf.AutoModel if encoder else tf.AutoModelForCausalLM).from_config(config, attn_implementation="eager").eval()
        config.architectures = [type(model).__name__]
        # The names that the files of a hub have are those that are saved.
        saved = folder / "saved"
        model.save_pretrained(saved)
        shapes = {k: list(v.shape) for k, v in sorted(load_file(saved / "model.safetensors").items())}
        tied = bool(config.tie_word_embeddings) and not encoder
        made = {k: torch.from_numpy(values(k, shape, tied)) for k, shape in shapes.items()}
        save_file(made, saved / "model.safetensors", metadata={"format": "pt"})
        loaded = (tf.AutoModel if encoder else tf.AutoModelForCausalLM).from_pretrained(saved, dtype=torch.float32, attn_implementation="eager").eval()
        settings = json.load(open(saved / "config.json"))
        for file in saved.iterdir():
            file.unlink()
        saved.rmdir()
        ids = torch.tensor([[(i * i * 7 + 5 * i + 11) % 59 + 4 for i in range(12)]])
        found = dict(config=settings, weights=shapes, ids=ids[0].tolist())
        with torch.no_grad():
            if encoder:
                found["hidden"] = numbers(loaded(input_ids=ids).last_hidden_state[0])
            else:
                found["logits"] = numbers(loaded(ids).logits[0])
                new = loaded.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, min_new_tokens=16, do_sample=False, pad_token_id=3)
                found["tokens"] = new[0, ids.shape[1]:].tolist()
        (folder / f"{name}.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")
        print(name, found.get("tokens"))


if __name__ == "__main__":
    main()
