"""What `exfm bench` runs: the speed of this machine at the work of a run, next to its limits and to bare torch."""

from __future__ import annotations

import argparse
import json
import sys
import time

import psutil

from exfm.errors import ConfigError
from tests.benchmarks.suite.catalogue import chosen, estimated_s, figures, make_code, slowness
from tests.benchmarks.suite.text import figures_table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", help="a benchmark, or the beginning of names; default: all")
    parser.add_argument("--runs", type=int, default=7, help="how often each is measured")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON list")
    asked = parser.parse_args()
    try:
        entries = chosen(asked.name)
    except ConfigError as mistake:
        print(mistake, file=sys.stderr)
        raise SystemExit(2) from None
    for name, entry in entries.items():
        if entry.missing is not None:
            print(f"{name}: skipped, {entry.missing}", file=sys.stderr)
    started_s = time.time() - psutil.Process().create_time()
    if any(entry.compiled and entry.missing is None for entry in entries.values()):
        print("loading the teacher's machine code; a compiler makes it once, in minutes", file=sys.stderr, flush=True)
        make_code(entries)
    seconds = estimated_s(entries, asked.runs, slowness(started_s))
    print(f"measuring takes about {seconds:.0f} s", file=sys.stderr, flush=True)
    start = time.perf_counter()
    measured = []
    for figure in figures(entries, asked.runs):
        measured.append(figure)
        print(f"{figure.name}: {figure.value:,.4g} {figure.unit}", file=sys.stderr, flush=True)
    print(f"it took {time.perf_counter() - start:.0f} s", file=sys.stderr)
    print(json.dumps([figure.model_dump() for figure in measured], indent=2) if asked.json else figures_table(measured))


if __name__ == "__main__":
    main()
