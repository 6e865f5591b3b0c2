#!/usr/bin/env python3
"""A chain of 20 elementwise ops at 4096x4096, float32: as a graph, as a region and as statements that are each computed, and in
PyTorch eagerly and compiled. All of them take turns in one run.

    cargo build --release -p max-nn --example worlds
    python3 benches/peers/eager.py
"""
import pathlib
import subprocess
import time

import torch


def chain(x):
    y = x
    for _ in range(2):
        y = torch.relu(y * 1.01 + 0.5)
        y = torch.abs(y - 0.25) * 0.5
        y = torch.clamp_min(-y, -3.0) + x
        y = torch.clamp_max(y, 3.0)
    return y


def median(f, x, rounds=12):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        f(x)
        times.append((time.perf_counter() - start) * 1e6)
    times = sorted(times[2:])
    return times[0], times[len(times) // 2]


def main():
    binary = pathlib.Path(__file__).resolve().parents[2] / "target/release/examples/worlds"
    x = torch.randn(4096, 4096)
    compiled = torch.compile(chain)
    assert torch.allclose(compiled(x), chain(x), atol=1e-5)
    found = {}
    for _ in range(3):
        ours = subprocess.run([binary], capture_output=True, text=True, check=True).stdout
        for line in ours.splitlines():
            name, least, middle = line.split()
            found.setdefault(name, []).append((float(least), float(middle)))
        with torch.inference_mode():
            found.setdefault("torch", []).append(median(chain, x))
            found.setdefault("torch_compile", []).append(median(compiled, x))
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    for name, times in found.items():
        print(f"{name:14} least {min(t[0] for t in times):9.0f} us, median {sorted(t[1] for t in times)[1]:9.0f} us")


if __name__ == "__main__":
    main()
