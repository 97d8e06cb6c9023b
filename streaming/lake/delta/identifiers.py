"""Names of the transaction identifiers in the logs of our tables; readers of these tables compare them."""

from __future__ import annotations

LAKE_SEQ = "exfm/lake_seq"
"""Of the lake's last row."""
BLOCK = "exfm/block"
"""The lake's last block."""
EPOCH = "exfm/epoch"
"""The lake's writers, counted: only the newest may commit."""
STATE = "exfm/state"
"""The number of the settlement state that belongs to the lake's last commit."""
FIRST_SEQ = "exfm/first_seq"
"""The lowest row that retention has left; absent: 0."""
NUMBER = "exfm/number"
"""Of a side table, the last state whose rows it has."""
HOUSEKEEPING = "exfm/housekeeping"
"""Replacements of files, counted: two at a time must not both succeed."""
