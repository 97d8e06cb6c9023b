"""JSON objects with a checksum of all other fields as a field of their own, which reveals alterations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SEAL = "sha256"


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """`value` with its seal.

    >>> unsealed(json.dumps(sealed({"rows": 5})))
    {'rows': 5}
    """
    plain = json.loads(json.dumps(dict(value)))
    return {**plain, SEAL: _digest(plain)}


def unsealed(text: str | bytes) -> dict[str, Any]:
    """The value of a sealed JSON object. Raises ValueError where it is none, or not the one that was sealed."""
    value = json_object(text)
    if SEAL not in value:
        raise ValueError("it has no checksum: it was cut off or altered")
    if value.pop(SEAL) != _digest(value):
        raise ValueError("it was altered: its checksum differs")
    return value


def json_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object, sealed or not. Raises ValueError where it is none."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("not JSON: nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, not an object")
    return value


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
