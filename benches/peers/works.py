"""The works in MAX, PyTorch and JAX: operands by name, and one function a peer that runs a work on them.

Run as a program, it serves one peer: it reads names of works from standard input, one a line, and answers each with one
JSON object a line: {"median_ns", "min_ns", "load_s"}, or {"error"}. `compare.py` starts it.
"""

import json
import math
import os
import re
import statistics
import sys
import time

OPS = [
    "relu", "add", "chain5", "chain_gelu_tanh", "softmax", "layer_norm", "rms_norm", "sum_rows", "sum_cols", "argmax",
    "transpose", "cumsum", "top_k", "gather", "matmul", "linear", "batch_matmul", "mlp_gelu", "attention",
    "conv2d",
]  # fmt: skip


def split(name):
    """The op, the sizes and the dtype of a work: ("matmul", [8, 16, 32], "bf16")."""
    op = next((op for op in OPS if name.startswith(op + "_")), None)
    if op is None:
        raise ValueError(f"no peer has the work {name}")
    rest = name[len(op) :]
    dtype = next((dtype for dtype in ("bf16", "f16") if rest.startswith(f"_{dtype}_")), "f32")
    return op, [int(n) for n in re.findall(r"\d+", rest.replace(f"_{dtype}_", "_"))], dtype


def operands(name, np):
    """The operands, normally distributed, as numpy arrays of float32 or int64."""
    op, n, _ = split(name)
    rng = np.random.default_rng(1)

    def normal(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    if op == "add":
        return [normal(*n), normal(*n)]
    if op == "layer_norm":
        return [normal(*n), normal(n[-1]), normal(n[-1])]
    if op == "rms_norm":
        return [normal(*n), normal(n[-1])]
    if op == "top_k":
        return [normal(*n[:2])]
    if op == "gather":
        return [normal(n[0], n[1]), rng.integers(0, n[0], n[2])]
    if op == "matmul":
        m, k, c = n if len(n) == 3 else n * 3
        return [normal(m, k), normal(k, c)]
    if op == "linear":
        m, k, c = n
        return [normal(m, k), normal(c, k)]
    if op == "batch_matmul":
        b, m, k, c = n
        return [normal(b, m, k), normal(b, k, c)]
    if op == "mlp_gelu":
        m, d, f = n
        return [normal(m, d), normal(d, f), normal(f), normal(f, d)]
    if op == "attention":
        return [normal(*n) for _ in range(3)]
    if op == "conv2d":
        b, h, w, c, kh, kw, f = n
        return [normal(b, h, w, c), normal(kh, kw, c, f)]
    return [normal(*n)]


def on_cpu(peer, device):
    """An error on other devices: of those, a peer has no works here."""
    if device != "cpu":
        raise ValueError(f"the works of {peer} run on the CPU")


def repeat(once):
    """A function that runs `once` so often."""

    def times(count):
        for _ in range(count):
            once()

    return times


def with_torch(name, arrays, threads, compiled, device):
    """PyTorch, eager or compiled, on a CPU or a GPU (`gpu`, `gpu:1`)."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    op, n, dtype = split(name)
    x = [torch.from_numpy(a).to(device.replace("gpu", "cuda")) for a in arrays]
    if dtype != "f32":
        x = [a.to({"bf16": torch.bfloat16, "f16": torch.float16}[dtype]) for a in x]
    if op == "conv2d":
        last = torch.channels_last
        x = [x[0].permute(0, 3, 1, 2).contiguous(memory_format=last), x[1].permute(3, 2, 0, 1).contiguous(memory_format=last)]
    run = {
        "relu": lambda x: torch.relu(x),
        "add": lambda x, y: x + y,
        "chain5": lambda x: torch.relu(x * 2.0 + 1.0) * x - x,
        "chain_gelu_tanh": lambda x: torch.tanh(F.gelu(x * 2.0 + 1.0)) * x,
        "softmax": lambda x: torch.softmax(x, -1),
        "layer_norm": lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5),
        "rms_norm": lambda x, w: F.rms_norm(x, w.shape, w, 1e-6),
        "sum_rows": lambda x: x.sum(-1, keepdim=True),
        "sum_cols": lambda x: x.sum(0, keepdim=True),
        "argmax": lambda x: x.argmax(-1, keepdim=True),
        "transpose": lambda x: x.t().contiguous(),
        "cumsum": lambda x: x.cumsum(-1),
        "top_k": lambda x: torch.topk(x, n[-1], -1),
        "gather": lambda x, i: x.index_select(0, i),
        "matmul": lambda x, y: x @ y,
        "linear": lambda x, w: x @ w.T,
        "batch_matmul": lambda x, y: x @ y,
        "mlp_gelu": lambda x, a, b, c: F.gelu(x @ a + b) @ c,
        "attention": lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None]),
        "conv2d": lambda x, f: F.conv2d(x, f, padding=tuple(k // 2 for k in n[4:6])),
    }[op]
    run = torch.compile(run, dynamic=False) if compiled else run

    def times(count):
        with torch.inference_mode():
            for _ in range(count):
                run(*x)
        if device != "cpu":
            torch.cuda.synchronize()

    return times


def with_jax(name, arrays, threads, _compiled, device):
    """JAX, compiled by XLA."""
    on_cpu("jax", device)
    os.environ.setdefault("XLA_FLAGS", f"--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads={threads}")
    import jax
    import jax.numpy as jnp

    op, n, dtype = split(name)
    x = [jnp.asarray(a) for a in arrays]
    if dtype != "f32":
        x = [a.astype({"bf16": jnp.bfloat16, "f16": jnp.float16}[dtype]) for a in x]

    def layer_norm(x, w, b):
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * w + b

    def attention(q, k, v):
        return jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) * n[-1] ** -0.5, -1) @ v

    def conv2d(x, f):
        pads = [(k // 2, k // 2) for k in n[4:6]]
        return jax.lax.conv_general_dilated(x, f, (1, 1), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    gelu = lambda x: jax.nn.gelu(x, approximate=False)
    run = {
        "relu": lambda x: jax.nn.relu(x),
        "add": lambda x, y: x + y,
        "chain5": lambda x: jax.nn.relu(x * 2.0 + 1.0) * x - x,
        "chain_gelu_tanh": lambda x: jnp.tanh(gelu(x * 2.0 + 1.0)) * x,
        "softmax": lambda x: jax.nn.softmax(x, -1),
        "layer_norm": layer_norm,
        "rms_norm": lambda x, w: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w,
        "sum_rows": lambda x: x.sum(-1, keepdims=True),
        "sum_cols": lambda x: x.sum(0, keepdims=True),
        "argmax": lambda x: jnp.argmax(x, -1, keepdims=True),
        # Added to, so that it is not only another layout.
        "transpose": lambda x: x.T + 0.0,
        "cumsum": lambda x: jnp.cumsum(x, -1),
        "top_k": lambda x: jax.lax.top_k(x, n[-1]),
        "gather": lambda x, i: x[i],
        "matmul": lambda x, y: x @ y,
        "linear": lambda x, w: x @ w.T,
        "batch_matmul": lambda x, y: x @ y,
        "mlp_gelu": lambda x, a, b, c: gelu(x @ a + b) @ c,
        "attention": attention,
        "conv2d": conv2d,
    }[op]
    run = jax.jit(run)
    return repeat(lambda: jax.block_until_ready(run(*x)))


def with_max(name, arrays, _threads, _compiled, device):
    """MAX's own graph compiler; it uses every processor that the process may use."""
    on_cpu("max", device)
    from max.driver import CPU, Buffer
    from max.dtype import DType
    from max.engine import InferenceSession
    from max.graph import DeviceRef, Graph, TensorType, ops

    op, n, dtype = split(name)
    halves = {"bf16": DType.bfloat16, "f16": DType.float16}

    def kind(array):
        return DType.int64 if array.dtype.kind == "i" else halves.get(dtype, DType.float32)

    def attention(q, k, v):
        return ops.softmax(q @ ops.transpose(k, -1, -2) * float(n[-1] ** -0.5)) @ v

    build = {
        "relu": lambda x: ops.relu(x),
        "add": lambda x, y: x + y,
        "chain5": lambda x: ops.relu(x * 2.0 + 1.0) * x - x,
        "chain_gelu_tanh": lambda x: ops.tanh(ops.gelu(x * 2.0 + 1.0)) * x,
        "softmax": lambda x: ops.softmax(x),
        "layer_norm": lambda x, w, b: ops.layer_norm(x, w, b, 1e-5),
        "rms_norm": lambda x, w: x * ops.rsqrt(ops.mean(x * x) + 1e-6) * w,
        "sum_rows": lambda x: ops.sum(x, axis=-1),
        "sum_cols": lambda x: ops.sum(x, axis=0),
        "argmax": lambda x: ops.argmax(x, axis=-1),
        "transpose": lambda x: ops.transpose(x, 0, 1),
        "cumsum": lambda x: ops.cumsum(x, axis=-1),
        "top_k": lambda x: ops.top_k(x, n[-1], -1),
        "gather": lambda x, i: ops.gather(x, i, axis=0),
        "matmul": lambda x, y: x @ y,
        "linear": lambda x, w: x @ ops.transpose(w, 0, 1),
        "batch_matmul": lambda x, y: x @ y,
        "mlp_gelu": lambda x, a, b, c: ops.gelu(x @ a + b) @ c,
        "attention": attention,
        "conv2d": lambda x, f: ops.conv2d(x, f, padding=tuple(k // 2 for k in n[4:6] for _ in range(2))),
    }[op]
    types = [TensorType(kind(a), list(a.shape), device=DeviceRef.CPU()) for a in arrays]
    with Graph(name, input_types=types) as graph:
        result = build(*(value.tensor for value in graph.inputs))
        graph.output(*(result if isinstance(result, tuple) else (result,)))
    model = InferenceSession(devices=[CPU()]).load(graph)
    inputs = []
    for array in arrays:
        if kind(array) in halves.values():
            import ml_dtypes
            import numpy as np

            half = ml_dtypes.bfloat16 if dtype == "bf16" else np.float16
            inputs.append(Buffer.from_numpy(array.astype(half).view(np.uint16)).view(kind(array)))
        else:
            inputs.append(Buffer.from_numpy(array))
    return repeat(lambda: model.execute(*inputs))


# What a peer imports, and how it runs a work.
PEERS = {
    "max": ("max.engine", with_max, False),
    "torch": ("torch", with_torch, False),
    "torch-compile": ("torch", with_torch, True),
    "jax": ("jax", with_jax, False),
}


def measure(run):
    """Times of a run in nanoseconds, as `max bench` takes them: warm runs, at least 20 samples of 20 us in two seconds."""
    start = time.perf_counter()
    run(1)
    load = time.perf_counter() - start
    warm, runs = time.perf_counter(), 1
    while time.perf_counter() - warm < 0.1:
        before = time.perf_counter()
        run(runs)
        one = (time.perf_counter() - before) / runs
        # Stretches so long that waiting for their end is no part of a run.
        runs = math.ceil(4e-3 / one)
    batch = math.ceil(20e-6 / one)
    samples, start = [], time.perf_counter()
    while True:
        before = time.perf_counter_ns()
        run(batch)
        samples.append((time.perf_counter_ns() - before) / batch)
        elapsed = time.perf_counter() - start
        if (len(samples) >= 20 and elapsed >= 0.5) or (len(samples) >= 5 and elapsed >= 2):
            return {"median_ns": statistics.median(samples), "min_ns": min(samples), "load_s": load}


def serve(peer, threads, device):
    """Answers names with results until the input ends."""
    # What a peer prints must not mix with the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    module, make, compiled = PEERS[peer]
    try:
        __import__(module)
        import numpy as np

        answer = {"ready": True}
    except ImportError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), file=answers, flush=True)
    for name in map(str.strip, sys.stdin):
        try:
            start = time.perf_counter()
            run = make(name, operands(name, np), threads, compiled, device)
            made = time.perf_counter() - start
            answer = measure(run)
            answer["load_s"] += made
        except Exception as error:  # Whatever a peer raises is its result.
            answer = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
