#!/usr/bin/env python3
"""Times language models in this project, llama.cpp and transformers, in turn, in one run; or compares their perplexity.

    python3 benches/peers/language.py speed MODEL ... [--prompt 512] [--new 32] [--rounds 3] [--figures FILE] [--cpu]
    python3 benches/peers/language.py perplexity MODEL.gguf ... --ids FILE
    python3 benches/peers/language.py sample MODEL.gguf --count 512 --ids FILE

`--max PATH` names the command of this project; several are compared. `--cpu` counts the processor's time of one thread, which
says something on a machine that does other things as well: no thread waits for another. Of this project it is the difference
of runs of different lengths.
With `--figures` runs are kept in a file, and the table is of all that are there: a comparison can be made in pieces.
A MODEL is a GGUF file, which this project and llama.cpp run, or a folder, which this project and transformers run.
`--python llama=PATH` and `--python torch=PATH` name interpreters with llama-cpp-python, or torch and transformers.
`sample` draws tokens from a model with llama.cpp, as a text for `perplexity`: of random weights no other text has meaning.
"""

import argparse
import json
import math
import os
import pathlib
import random
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()


def random_tokens(count, vocab):
    draw = random.Random(0)
    return [draw.randrange(4, vocab) for _ in range(count)]


class Llama:
    """A model in llama.cpp."""

    def __init__(self, path, threads, context, all_logits=False):
        import llama_cpp
        import numpy

        self.cpp, self.numpy = llama_cpp, numpy
        self.model = llama_cpp.Llama(
            path, n_ctx=context, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False, logits_all=all_logits
        )
        self.vocab = self.model.n_vocab()

    def logits(self, tokens):
        self.model.eval(tokens)
        last = self.cpp.llama_get_logits_ith(self.model.ctx, -1)
        return self.numpy.ctypeslib.as_array(last, (self.vocab,))

    def start(self, tokens):
        self.model.reset()
        return self.step(tokens)

    def step(self, tokens):
        return int(self.logits(tokens).argmax())


class Transformers:
    """A model in transformers."""

    def __init__(self, path, threads, context):
        import torch
        import transformers

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto").eval()
        self.vocab = self.model.config.vocab_size

    def start(self, tokens):
        self.cache = None
        return self.step(tokens)

    def step(self, tokens):
        with self.torch.inference_mode():
            ids = self.torch.tensor([tokens])
            out = self.model(ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
            self.cache = out.past_key_values
            return int(out.logits[0, -1].argmax())


def time_peer(model, prompt, new, clock):
    tokens = random_tokens(prompt, model.vocab)
    model.start(tokens[:32])
    start = clock()
    token = model.start(tokens)
    prefill = prompt / (clock() - start)
    token = model.step([token])
    start = clock()
    for _ in range(new):
        token = model.step([token])
    return {"prefill_tok_s": prefill, "decode_tok_s": new / (clock() - start)}


def cpu_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def time_ours(command, args):
    bench = lambda prompt, new: command + ["--bench-prompt", prompt, "--bench-new", new]
    if not args.cpu:
        return json.loads(output(bench(args.prompt, args.new)))
    least, prompt, new = (cpu_seconds(bench(*sizes)) for sizes in [(8, 1), (8 + args.prompt, 1), (8, 1 + args.new)])
    return {"prefill_tok_s": args.prompt / (prompt - least), "decode_tok_s": args.new / (new - least)}


def output(command):
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{command[0]} failed: {run.stderr.strip()[-400:]}")
    return run.stdout


def speed(args):
    figures = {}
    if args.figures and os.path.exists(args.figures):
        for line in pathlib.Path(args.figures).read_text().splitlines():
            path, by, run = json.loads(line)
            figures.setdefault((path, by), []).append(run)

    def keep(path, by, run):
        figures.setdefault((path, by), []).append(run)
        if args.figures:
            with open(args.figures, "a") as file:
                print(json.dumps([path, by, run]), file=file)

    for _ in range(args.rounds):
        for path in args.models:
            for binary in args.max:
                command = [binary, "generate", "--model", path, "--threads", args.threads]
                keep(path, binary, time_ours(command, args))
            name = "torch" if os.path.isdir(path) else "llama"
            if name in args.python:
                command = [args.python[name], HERE, "time", path, "--peer", name]
                command += ["--threads", args.threads, "--prompt", args.prompt, "--new", args.new]
                command += ["--cpu"] * args.cpu
                keep(path, name, json.loads(output(command).splitlines()[-1]))
    print("| model | run by | prefill | decode | load, ms | peak, MB |\n| --- | --- | --: | --: | --: | --: |")
    for (path, by), runs in figures.items():
        numbers = [key for key, value in runs[0].items() if isinstance(value, float)]
        median = {key: statistics.median(run[key] for run in runs) for key in numbers}
        rest = "".join(f" {median[key]:.0f} |" if key in median else " |" for key in ["load_ms", "peak_rss_mb"])
        name = os.path.basename(path.rstrip("/"))
        print(f"| {name} | {by} | {median['prefill_tok_s']:.1f} | {median['decode_tok_s']:.2f} |{rest}")


def read_logits(path):
    import numpy

    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + size])["logits"]
    begin, end = entry["data_offsets"]
    return numpy.frombuffer(data[8 + size + begin : 8 + size + end], "<f4").reshape(entry["shape"])


def perplexity_of(logits, tokens):
    import numpy

    logits = numpy.asarray(logits, dtype="f8")[:-1]
    logits = logits - logits.max(axis=1, keepdims=True)
    of_tokens = logits[range(len(logits)), tokens[1:]] - numpy.log(numpy.exp(logits).sum(axis=1))
    return float(numpy.exp(-of_tokens.mean()))


def perplexity(args):
    """Runs in llama.cpp's interpreter."""
    tokens = [int(token) for token in pathlib.Path(args.ids).read_text().split(",")]
    print("| model | llama.cpp | this project | ratio |\n| --- | --: | --: | --: |")
    for path in args.models:
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "logits.safetensors")
            ids = ",".join(map(str, tokens))
            output([args.max[0], "logits", "--model", path, "--ids", ids, "--out", file, "--threads", args.threads])
            ours = perplexity_of(read_logits(file), tokens)
        llama = Llama(path, args.threads, len(tokens), all_logits=True)
        llama.model.eval(tokens)
        theirs = perplexity_of(llama.model.scores[: len(tokens)], tokens)
        print(f"| {os.path.basename(path)} | {theirs:.3f} | {ours:.3f} | {ours / theirs:.5f} |")


def sample(args):
    """Runs in llama.cpp's interpreter."""
    import numpy

    llama, draw = Llama(args.models[0], args.threads, args.count), numpy.random.default_rng(0)
    tokens = [3, 14, 15, 92]
    logits = llama.logits(tokens)
    while len(tokens) < args.count:
        shares = numpy.exp(logits.astype("f8") - logits.max())
        tokens.append(int(draw.choice(llama.vocab, p=shares / shares.sum())))
        logits = llama.logits(tokens[-1:])
    pathlib.Path(args.ids).write_text(",".join(map(str, tokens)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "perplexity", "sample", "time"])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--max", action="append", metavar="PATH", help="the command of this project; may be repeated")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH")
    parser.add_argument("--peer", choices=["llama", "torch"], help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--ids", metavar="FILE")
    parser.add_argument("--figures", metavar="FILE")
    parser.add_argument("--cpu", action="store_true", help="the processor's time of one thread")
    args = parser.parse_args()
    args.max = args.max or [HERE.parents[2] / "target" / "release" / "max"]
    args.threads = 1 if args.cpu else args.threads
    args.python = dict(peer.split("=", 1) for peer in args.python)
    if args.what == "time":
        context = args.prompt + args.new + 2
        model = (Llama if args.peer == "llama" else Transformers)(args.models[0], args.threads, context)
        print(json.dumps(time_peer(model, args.prompt, args.new, time.process_time if args.cpu else time.perf_counter)))
    else:
        {"speed": speed, "perplexity": perplexity, "sample": sample}[args.what](args)


if __name__ == "__main__":
    main()
