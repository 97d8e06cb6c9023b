"""How many examples a costly property is tried with."""

import os

EVERY_EXAMPLE = "EXFM_EVERY_EXAMPLE"
"""The variable that `make check` and `make soak` set."""


def examples(count: int) -> int:
    """`count` in `make check`, a third of it in `make test`: other examples are drawn in each run."""
    return count if os.environ.get(EVERY_EXAMPLE) else count // 3
