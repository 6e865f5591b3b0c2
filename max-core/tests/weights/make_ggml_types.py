"""Writes ggml_types.json: blocks of random bytes of the types that are converted, and what the package `gguf` makes of them.

    pip install gguf numpy
    python3 make_ggml_types.py
"""

import json
import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

# Where a block has numbers of half precision.
HALVES = {"Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0]}

random = np.random.default_rng(7)
cases = {}
for name, halves in HALVES.items():
    elements, size = GGML_QUANT_SIZES[Type[name]]
    blocks = random.integers(0, 256, (2, size), dtype=np.uint8)
    for at in halves:
        scale = random.uniform(-0.1, 0.1, (2, 1)).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8)
    values = dequantize(blocks.reshape(1, -1), Type[name]).reshape(-1)
    cases[name] = {
        "number": int(Type[name]),
        "blocks": blocks.reshape(-1).tolist(),
        "values": [float(np.float32(value)) for value in values],
    }
pathlib.Path(__file__).with_name("ggml_types.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")
