"""Predictions made by hand, of a student, its twin and its teacher, and figures of them by their definition."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streaming.sources.synthetic.truth import Truth

ROWS = 8000


def logit(p):
    return np.log(p) - np.log1p(-p)


def predictions(rows=ROWS, seed=0, first_seq=0, noise=None, twin=True):
    """A stream of known probabilities; the student guesses them a little off, its twin further off."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.02, 0.6, rows)
    noise = noise or {"student": 0.3, "no_teacher": 0.8, "teacher": 0.1}
    columns = {
        "lake_seq": np.arange(first_seq, first_seq + rows),
        "impression_id": np.arange(rows) * 7,
        "event_time_ms": np.arange(rows),
        "label_ctr": pa.array((rng.random(rows) < p).astype(np.int8)),
    }
    for model, off in noise.items():
        if twin or model != "no_teacher":
            columns[f"{model}_ctr"] = (logit(p) + rng.normal(0, off, rows)).astype(np.float32)
    return pa.table(columns), p


def with_column(table, name, values):
    return table.set_column(table.schema.get_field_index(name), name, values)


def naive_ne(logits, labels):
    q = 1 / (1 + np.exp(-np.asarray(logits, np.float64)))
    loss = -np.mean(np.where(labels == 1, np.log(q), np.log(1 - q)))
    base = np.mean(labels)
    return loss / -(base * np.log(base) + (1 - base) * np.log(1 - base))


def truth_of(table, p):
    truth = Truth()
    truth.add(pa.table({"impression_id": table["impression_id"], "p_settled_ctr": p.astype(np.float32)}))
    return truth
