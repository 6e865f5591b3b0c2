#!/usr/bin/env python3
"""Makes a model folder as a hub has it (config.json, model.safetensors, tokenizer.json) of a text, without packages or a network.

    python3 make_model.py TEXT FOLDER

The model is a Llama whose tokens are the words of the text. Its weights are not trained but computed: the vector of a word has a one
in a place of its own, attention and the feed-forward layer add nothing, and the logits are the logarithms of how often a word
follows another (a bigram model). What it writes is like the text for two words at a time.
"""

import array
import collections
import json
import math
import os
import struct
import sys

if len(sys.argv) != 3:
    sys.exit(__doc__)
text, folder = sys.argv[1:]
with open(text, encoding="utf-8") as file:
    words = file.read().split()
if len(words) < 2:
    sys.exit(f"{text}: a text of two words or more is wanted, this has {len(words)}")

UNKNOWN, END = 0, 1
vocabulary = ["<unk>", "</s>", *sorted(set(words))]
number = {word: i for i, word in enumerate(vocabulary)}
# Heads divide it.
size = -(-len(vocabulary) // 64) * 64
pairs = collections.Counter(zip(words, [*words[1:], "</s>"]))
firsts = collections.Counter(words)

embedding = array.array("f", bytes(4 * len(vocabulary) * size))
logits = array.array("f", [-20 / math.sqrt(size)]) * (len(vocabulary) * size)
for i in range(len(vocabulary)):
    embedding[i * size + i] = 1.0
for (first, second), count in pairs.items():
    # The norm makes the one in a word's vector as large as the root of the size.
    logits[number[second] * size + number[first]] = math.log(count / firsts[first]) / math.sqrt(size)

config = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": size, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": size // 64, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": len(vocabulary),
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "eos_token_id": END,
}
zeros = lambda *shape: (shape, array.array("f", bytes(4 * math.prod(shape))))
ones = ((size,), array.array("f", [1.0]) * size)
layer = "model.layers.0."
weights = {
    "model.embed_tokens.weight": ((len(vocabulary), size), embedding),
    "lm_head.weight": ((len(vocabulary), size), logits),
    "model.norm.weight": ones,
    layer + "input_layernorm.weight": ones,
    layer + "post_attention_layernorm.weight": ones,
    layer + "self_attn.q_proj.weight": zeros(size, size),
    layer + "self_attn.k_proj.weight": zeros(64, size),
    layer + "self_attn.v_proj.weight": zeros(64, size),
    layer + "self_attn.o_proj.weight": zeros(size, size),
    layer + "mlp.gate_proj.weight": zeros(64, size),
    layer + "mlp.up_proj.weight": zeros(64, size),
    layer + "mlp.down_proj.weight": zeros(size, 64),
}
special = lambda i: {
    "id": i, "content": vocabulary[i], "special": True, "single_word": False, "lstrip": False, "rstrip": False,
    "normalized": False,
}
tokenizer = {
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": None,
    "added_tokens": [special(UNKNOWN), special(END)], "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordLevel", "vocab": number, "unk_token": "<unk>"},
}

# https://huggingface.co/docs/safetensors: the length of the header, the header, the weights one behind the other.
header, end = {}, 0
for name, (shape, values) in weights.items():
    begin, end = end, end + 4 * len(values)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
head = json.dumps(header).encode()
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, "model.safetensors"), "wb") as file:
    file.write(struct.pack("<Q", len(head)) + head)
    for _, values in weights.values():
        if sys.byteorder == "big":
            values = array.array("f", values)
            values.byteswap()
        file.write(values.tobytes())
for name, value in [("config.json", config), ("tokenizer.json", tokenizer)]:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(value, file)
print(f"{folder}: a model of {len(vocabulary)} words and {end / 1e6:.1f} MB, of {text}")
