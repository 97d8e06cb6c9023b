"""Context manager that replaces attributes of third-party modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(owner: Any, **values: Any) -> Iterator[None]:
    """Set attributes of a module or class within a context. A name that it lacks, in another release, is left alone.

    >>> import math
    >>> with patched(math, pi=3, absent=1):
    ...     math.pi, hasattr(math, "absent")
    (3, False)
    >>> math.pi > 3
    True
    """
    before = {name: vars(owner)[name] for name in values if name in vars(owner)}
    try:
        for name in before:
            setattr(owner, name, values[name])
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
