"""Files as other people publish them, made small: text with and without names, records, what is wrong with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BEGIN_S = 1_700_000_000


def clicks(rows: int = 4000, seed: int = 0, **changes: Any) -> pa.Table:
    """Shown ads in order of time, two surfaces; a click depends on user and ad. `changes`: columns by name, None for
    none."""
    rng = np.random.default_rng(seed)
    user, ad = rng.integers(0, rows // 20, rows), rng.integers(0, 50, rows)
    clicked = rng.random(rows) < np.where(ad % 5 == 0, 0.35, 0.08) + 0.1 * (user % 3 == 0)
    columns: dict[str, Any] = {
        "impression_id": np.arange(rows) + 10_000,
        "shown_at": BEGIN_S + np.sort(rng.integers(0, 30 * rows, rows)),
        "surface": rng.choice(["home", "search"], rows),
        "user_id": user + 100_000,
        "ad_id": ad,
        "price": np.round(rng.exponential(5, rows), 2),
        "clicked": clicked.astype(int),
    }
    return pa.table({name: values for name, values in (columns | changes).items() if values is not None})


def stored(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


def csv_of_strings(path: Path, rows: int = 4000) -> Path:
    """Ids that are texts, no time, one label."""
    table = clicks(rows, shown_at=None, impression_id=None, surface=None, price=None).to_pydict()
    lines = ["user,ad,site,label"]
    for n in range(rows):
        site = f"site-{(table['user_id'][n] * 7 + table['ad_id'][n]) % 12}.example"
        lines.append(f"u{table['user_id'][n]:x},creative_{table['ad_id'][n]},{site},{table['clicked'][n]}")
    path.write_text("\n".join(lines) + "\n")
    return path


def headerless_tsv(path: Path, rows: int = 4000, seed: int = 1) -> Path:
    """A label, 13 numbers and 26 texts of hexadecimal digits, many of them missing; packed where `path` says so."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2**32, (26, 40), dtype=np.uint64)
    taken = rng.integers(0, 40, (rows, 26)) % rng.integers(2, 41, 26)
    numbers = np.floor(rng.lognormal(1.0, 2.0, (rows, 13))).astype(int) - (np.arange(13) == 1)
    missing = rng.random((rows, 39)) < 0.2
    label = rng.random(rows) < np.where(taken[:, 0] % 3 == 0, 0.4, 0.1)
    lines = []
    for n in range(rows):
        cells = [str(v) for v in numbers[n]] + [f"{codes[k, taken[n, k]]:08x}" for k in range(26)]
        given = ("" if gone else cell for cell, gone in zip(cells, missing[n], strict=True))
        lines.append("\t".join([str(int(label[n])), *given]))
    text = "\n".join(lines) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def json_lines(path: Path, rows: int = 4000, seed: int = 2) -> Path:
    """Records inside records, lists of numbers and of texts, times as text."""
    table, rng = clicks(rows, seed).to_pydict(), np.random.default_rng(seed)
    with path.open("w") as file:
        for n in range(rows):
            at = np.datetime64(int(table["shown_at"][n]), "s")
            row = {
                "timestamp": f"{at}Z",
                "user": {"id": int(table["user_id"][n]), "geo": {"country": ["de", "fr", "it"][n % 3]}},
                "page": table["surface"][n],
                "item_id": int(table["ad_id"][n]),
                "clicked_items": rng.integers(0, 50, n % 7).tolist(),
                "tags": [f"t{k}" for k in rng.integers(0, 30, n % 4)],
                "click": bool(table["clicked"][n]),
            }
            file.write(json.dumps(row) + "\n")
    return path
