"""A small config as a file holds it, changes to it, where it is written, and how it is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pipelines.core.config.settings import parse
from streaming.errors import BadInput

SMALL = {
    "name": "small",
    "source": {
        "kind": "generated",
        "impressions": 1000,
        "verticals": [{"name": name, "share": 0.5, "base_rate": 0.1} for name in ("feed", "shop")],
    },
    "rows": {
        "columns": [{"name": "user_id"}, {"name": "ad_id"}, {"name": "bid", "type": "float32"}],
        "tasks": [{"name": "ctr", "window_s": 60}, {"name": "cvr", "window_s": 600, "given": "ctr"}],
    },
    "features": {
        "sparse": [{"name": "user_id", "rows": 100}, {"name": "ad_id", "rows": 20}],
        "dense": [{"name": "bid", "transform": "log1p"}],
    },
    "teacher": {"only": ["user_id"]},
    "students": [{"name": "feed"}, {"name": "shop", "tasks": ["ctr"]}],
}


def small(**changes):
    """SMALL with whole sections replaced."""
    return copy.deepcopy(SMALL) | changes


def changed(path: str, value: object) -> dict:
    """SMALL with the setting at a dotted path replaced; a path may lead where nothing was."""
    raw = small()
    node = raw
    *parents, last = path.split(".")
    for part in parents:
        node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
    node[int(last) if isinstance(node, list) else last] = value
    return raw


def file_at(path: Path) -> Callable[[str | dict], Path]:
    """What writes a config to `path`, given as its text or as its settings."""

    def write(text: str | dict) -> Path:
        path.write_text(text if isinstance(text, str) else yaml.safe_dump(text, sort_keys=False))
        return path

    return write


def refusal(raw: dict) -> str:
    with pytest.raises(BadInput) as refused:
        parse(raw)
    return str(refused.value)
