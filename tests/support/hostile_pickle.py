"""A pickle that leaves a trace where anybody reads it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class _Hostile:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@contextmanager
def unread_pickle(folder: Path) -> Iterator[bytes]:
    """Bytes of a pickle that nobody may read while the context lasts; what a reader leaves in `folder` is seen then."""
    trace = folder / "its-code-ran"
    payload = pickle.dumps(_Hostile(trace))
    pickle.loads(payload)
    assert trace.exists()  # it would be seen
    trace.unlink()
    yield payload
    assert not trace.exists()
