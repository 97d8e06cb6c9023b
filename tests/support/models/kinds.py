"""Settings of every kind of table, small ones, for tests that ask something of each."""

from __future__ import annotations

from typing import Any

KINDS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "hash": {"kind": "hash", "rows": 17},
    "qr": {"kind": "qr"},
    "qr added": {"kind": "qr", "partitions": 3, "op": "add"},
    "qr side by side": {"kind": "qr", "op": "concat"},
    "mixed": {"kind": "mixed", "width": 4},
    "mixed in blocks": {"kind": "mixed", "width": 4, "blocks": [{"share": 0.2, "width": 8}], "every": 2},
    "fiited": {"kind": "fiited", "chunks": 2, "keep": 0.5, "every": 3},
    "managed": {"kind": "managed", "rows": 30, "fallback_rows": 3},
    "managed from the second sight on": {"kind": "managed", "rows": 30, "min_count": 2, "fallback": "zero"},
}
