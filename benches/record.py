#!/usr/bin/env python3
"""Runs `max bench` and writes its results into benches/RESULTS.md, with the date, the machine and the command.

    cargo build --release -p max-cli
    python3 benches/record.py                       # every listed work
    python3 benches/record.py softmax_77x1000       # these works; other rows of the table are kept

Only the standard library is needed. `section` and `machine` are for the other scripts too.
"""

import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benches" / "RESULTS.md"
HEADER = ["work", "median", "min", "floor", "of floor", "level", "threads", "date"]


def command(binary):
    """The `max` binary: the one named, or that of the release build."""
    return binary or str(ROOT / "target" / "release" / "max")


def machine(binary, device="cpu"):
    """The machine in words, and its level or `gpu`, of which each has its tables: as `max info` says it, or `max bench`."""
    if device != "cpu":
        bench = [binary, "bench", "--json", "--device", device, "--runs", "1", "relu_5"]
        said = subprocess.run(bench, check=True, capture_output=True, text=True).stderr
        return said.splitlines()[0], "gpu"
    rows = {}
    for line in subprocess.run([binary, "info"], check=True, capture_output=True, text=True).stdout.splitlines():
        name, _, value = line.partition("  ")
        rows.setdefault(name, value.strip())
    level = rows.get("CPU level", "").split(",")[0]
    words = f"{rows.get('CPU', 'unknown')}, level {level}, {rows.get('threads', '?').split(',')[0]} threads"
    return words, level


def section(name, text, path=RESULTS):
    """Replaces what stands between the marks of a section."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    old = path.read_text()
    if begin not in old or end not in old:
        sys.exit(f"{path} has no section `{name}`: put `{begin}` and `{end}` where it belongs")
    start, rest = old.split(begin, 1)
    path.write_text(f"{start}{begin}\n{text.strip()}\n{end}{rest.split(end, 1)[1]}")


def rows_of(name, path=RESULTS):
    """The cells of a section's table, by work."""
    found = re.search(f"<!-- begin {name} -->(.*?)<!-- end {name} -->", path.read_text(), re.S)
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in found[1].splitlines() if line.startswith("|")]
    return {row[0]: row for row in cells[2:]} if found else {}


def table(header, rows):
    """A Markdown table; all columns but the first stand at the right."""
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def time(ns):
    """A time in three digits or a little more."""
    for limit, unit, digits in [(1e3, 1, "{:.0f} ns"), (1e6, 1e3, "{:.2f} us"), (1e9, 1e6, "{:.2f} ms")]:
        if ns < limit:
            return digits.format(ns / unit)
    return f"{ns / 1e9:.2f} s"


def cells(result, date):
    """A row of the table."""
    if "missing" in result:
        return [result["work"], "missing", *[""] * (len(HEADER) - 3), date]
    floor, median = result["floor_ns"], result["median_ns"]
    part = [time(floor), f"{100 * floor / median:.0f}%"] if floor else ["", ""]
    return [result["work"], time(median), time(result["min_ns"]), *part, result["isa"], str(result["threads"]), date]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", help="the works [default: all that `max bench --list` names]")
    parser.add_argument("--max", help="the `max` binary [default: that of the release build]")
    parser.add_argument("--threads", help="passed on to `max bench`")
    parser.add_argument("--device", help="passed on to `max bench`; each but `cpu` has a table of its own")
    args = parser.parse_args()
    binary = command(args.max)
    options = [("--threads", args.threads), ("--device", args.device)]
    bench = ["bench", "--json", *(word for option in options if option[1] for word in option), *args.works]
    words, level = machine(binary, args.device or "cpu")
    rows = rows_of(f"works {level}")
    date = datetime.date.today().isoformat()
    with subprocess.Popen([binary, *bench], stdout=subprocess.PIPE, text=True) as run:
        for line in run.stdout:
            result = json.loads(line)
            rows[result["work"]] = cells(result, date)
            print(line, end="", flush=True)
    head = f"{date}, {words}: `max {' '.join(bench)}`"
    section(f"works {level}", f"{head}\n\n{table(HEADER, rows.values())}")
    sys.exit(run.returncode)


if __name__ == "__main__":
    main()
