"""Assignment of workers to shared processes."""

from __future__ import annotations

from itertools import count


class Slots:
    """Every process of a kind has the same number of slots. A worker gets one in the first process of its kind that has
    one free.

    >>> slots = Slots(2)
    >>> [slots.assign("students", name) for name in "abc"]
    ['students-0', 'students-0', 'students-1']
    >>> slots.release("a"), slots.release("c"), slots.assign("students", "d")
    (None, 'students-1', 'students-0')
    """

    def __init__(self, per_process: int) -> None:
        self._per_process = per_process
        self._workers: dict[str, set[str]] = {}  # by process

    def assign(self, kind: str, worker: str) -> str:
        """Assign the worker a slot, and return its process."""
        self.release(worker)
        for number in count():
            workers = self._workers.setdefault(f"{kind}-{number}", set())
            if len(workers) < self._per_process:
                workers.add(worker)
                return f"{kind}-{number}"
        raise AssertionError("unreachable")

    def release(self, worker: str) -> str | None:
        """Free the worker's slot, if it has one; returns the process if that leaves it empty."""
        for process, workers in self._workers.items():
            if worker in workers:
                workers.discard(worker)
                return None if workers else process
        return None

    def remove(self, process: str) -> None:
        """Remove an ended process and its workers."""
        self._workers.pop(process, None)
