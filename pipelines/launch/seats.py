"""Which workers share which process."""

from __future__ import annotations

from itertools import count


class Seats:
    """Each worker takes a seat in the first process of its kind that has one free, of `many`; a process that is empty
    is given up.

    >>> seats = Seats(2)
    >>> [seats.take("students", name) for name in "abc"]
    ['students-0', 'students-0', 'students-1']
    >>> seats.leave("a"), seats.leave("c"), seats.take("students", "d")
    (None, 'students-1', 'students-0')
    """

    def __init__(self, many: int) -> None:
        self._many = many
        self._taken: dict[str, set[str]] = {}

    def take(self, kind: str, worker: str) -> str:
        """The process in which the worker has its seat from now on."""
        self.leave(worker)
        for number in count():
            seated = self._taken.setdefault(f"{kind}-{number}", set())
            if len(seated) < self._many:
                seated.add(worker)
                return f"{kind}-{number}"
        raise AssertionError("unreachable")

    def leave(self, worker: str) -> str | None:
        """Free the worker's seat, if it has one; the process that is empty now, if one is."""
        for process, seated in self._taken.items():
            if worker in seated:
                seated.discard(worker)
                return None if seated else process
        return None

    def end(self, process: str) -> None:
        """The process has ended, and its workers with it."""
        self._taken.pop(process, None)
