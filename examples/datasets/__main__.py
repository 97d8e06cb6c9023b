"""Write a public data set as one Parquet file in order of event time, and print the command that makes its config."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from examples.datasets.writing import DATASETS, init_arguments, write_dataset
from streaming.errors import BadInput
from streaming.program import command


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.datasets", description=__doc__)
    parser.add_argument("name", choices=sorted(DATASETS))
    parser.add_argument("path", type=Path, help="the published files: their folder, or the file of the impressions")
    parser.add_argument("-o", "--out", type=Path, help="the Parquet file to write; default: NAME.parquet")
    parser.add_argument("--force", action="store_true", help="overwrite that file")
    asked = parser.parse_args()
    out = asked.out or Path(f"{asked.name}.parquet")
    try:
        rows = write_dataset(asked.name, asked.path, out, force=asked.force)
    except BadInput as mistake:
        print(mistake, file=sys.stderr)
        raise SystemExit(2) from None
    print(f"{out}: {rows:,} rows in order of event time; a config of it:")
    print(f"  {command('exfm', *init_arguments(asked.name, out))}")


if __name__ == "__main__":
    main()
