#!/usr/bin/env python3
"""Times works in this project and in its peers, in turn, in one run, and prints ratios.

    python3 benches/peers/compare.py [WORK ...] [--device gpu] [--python torch=PATH] [--json FILE] [--record]
    python3 benches/peers/compare.py --sweep [--seed N] [--count N]

Peers: max, torch, torch-compile, jax; each in an interpreter of its own (`--python`; without it, this one). A peer that
is not installed is left out and named. All get the same processors: the first `--threads` of this process's.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import record  # noqa: E402
from works import PEERS  # noqa: E402


class Peer:
    """A process that times works in one peer."""

    def __init__(self, name, python, threads, device):
        self.name = name
        self.process = subprocess.Popen(
            [python, str(HERE / "works.py"), name, str(threads), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.missing = self.answer().get("error")

    def answer(self):
        """The next answer; an error if the process has ended."""
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "its process ended"}

    def time(self, work):
        """The result of a work."""
        try:
            self.process.stdin.write(work + "\n")
            self.process.stdin.flush()
        except OSError:
            return {"error": "its process ended"}
        return self.answer()

    def end(self):
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()


def ours(binary, work, threads, device):
    """The result of a work in this project."""
    command = [binary, "bench", "--json", "--threads", str(threads), "--device", device, work]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    result = json.loads(run.stdout) if run.stdout else {"error": run.stderr.strip().splitlines()[-1]}
    return {"error": result["missing"]} if "missing" in result else result


def listed(binary, *options):
    """The works that `max bench` lists, with such options, and that peers have."""
    text = subprocess.run([binary, "bench", "--list", *options], check=True, capture_output=True, text=True).stdout
    names = [line.split()[0] for line in text.split("\n\n")[0].splitlines()]
    return [name for name in names if not name.startswith("load_graph")]


def row(work, results, peers):
    """A row of the table: our time, its part of the floor, each peer's time with our time over it, and the largest of those."""
    mine = results["ours"]
    ratio = over_best(results)
    if "error" in mine:
        cells = [work, "–", ""]
    else:
        median, floor = mine["median_ns"], mine["floor_ns"]
        cells = [work, record.time(median), f"{100 * floor / median:.0f}%" if floor else ""]
    for peer in peers:
        theirs = results[peer.name]
        if "error" in theirs:
            cells.append("–")
        elif "error" in mine:
            cells.append(record.time(theirs["median_ns"]))
        else:
            cells.append(f"{record.time(theirs['median_ns'])} ({mine['median_ns'] / theirs['median_ns']:.2f})")
    return [*cells, f"{ratio:.2f}" if ratio else ""]


def over_best(results):
    """Our time over that of the fastest peer, if there is one."""
    theirs = [result["median_ns"] for name, result in results.items() if name != "ours" and "error" not in result]
    return results["ours"]["median_ns"] / min(theirs) if theirs and "error" not in results["ours"] else None


# Our time over that of the best peer, from which on a work counts as behind.
BEHIND = 1.3
# Works that a summary names.
WORST = 10


def summary(ratios):
    """What the ratios of works come to, given by name: how far off they are on the whole, and the worst of them."""
    if not ratios:
        return "No work ran in a peer."
    mean = statistics.geometric_mean(ratios.values())
    behind = sum(ratio > BEHIND for ratio in ratios.values())
    worst = sorted(ratios, key=ratios.get, reverse=True)[:WORST]
    return (
        f"{len(ratios)} works: geometric mean of our time over the best peer's {mean:.2f}; above {BEHIND}: {behind} "
        f"({100 * behind / len(ratios):.0f} %); the worst: " + ", ".join(f"{work} {ratios[work]:.2f}" for work in worst)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", help="the works, by name [default: all that `max bench` lists]")
    parser.add_argument("--sweep", action="store_true", help="works of random shapes, as `max bench --sweep` draws them")
    parser.add_argument("--seed", default="0", help="what the random shapes follow from")
    parser.add_argument("--count", default="120", help="how many works to draw")
    parser.add_argument("--max", help="the `max` binary [default: that of the release build]")
    parser.add_argument("--peers", default="max,torch,torch-compile,jax", help="the peers, comma-separated")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="a peer's interpreter")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", default="cpu", help="cpu, gpu or gpu:1; of the peers, PyTorch has works on a GPU")
    parser.add_argument("--json", metavar="FILE", help="also write every result into this file, one object a line")
    parser.add_argument("--record", action="store_true", help="write the table into benches/RESULTS.md")
    args = parser.parse_args()
    if unknown := set(args.peers.split(",")) - PEERS.keys():
        parser.error(f"no peer is named {', '.join(sorted(unknown))}; they are {', '.join(PEERS)}")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    pythons = dict(item.split("=", 1) for item in args.python)
    # Compiled or not, it is the same installation.
    pythons.setdefault("torch-compile", pythons.get("torch", sys.executable))
    binary = record.command(args.max)

    peers = []
    for name in args.peers.split(","):
        peer = Peer(name, pythons.get(name, sys.executable), args.threads, args.device)
        if peer.missing:
            print(f"left out: {name} ({peer.missing})", file=sys.stderr)
        else:
            peers.append(peer)
    rows, lines, ratios = [], [], {}
    sweep = ["--sweep", "--seed", args.seed, "--count", args.count] if args.sweep else []
    for work in args.works or listed(binary, *sweep):
        results = {"ours": ours(binary, work, args.threads, args.device)} | {peer.name: peer.time(work) for peer in peers}
        for system, result in results.items():
            lines.append(json.dumps({"system": system, "work": work} | result))
            if "error" in result:
                print(f"{work} in {system}: {result['error']}", file=sys.stderr)
        rows.append(row(work, results, peers))
        if ratio := over_best(results):
            ratios[work] = ratio
        print("  ".join(rows[-1]), flush=True)
    for peer in peers:
        peer.end()

    table = record.table(["work", "ours", "of floor", *(peer.name for peer in peers), "over the best"], rows)
    table = f"{summary(ratios)}\n\n{table}"
    print("\n" + table)
    if args.json:
        pathlib.Path(args.json).write_text("\n".join(lines) + "\n")
    if args.record:
        words, level = record.machine(binary, args.device)
        command = " ".join(["compare.py", "--peers", args.peers, *sweep])
        head = f"{record.datetime.date.today().isoformat()}, {words}: `{command}`"
        record.section(f"{'sweep' if args.sweep else 'peers'} {level}", f"{head}\n\n{table}")


if __name__ == "__main__":
    main()
