"""A served student that takes up increments while another answers: two copies, one of them written at a time.

    answers ──► copy A, as number 12          spare ──► copy B, as number 11
    13 comes:   B takes up 12 and 13, is probed, and answers from then on; A is the spare once nobody asks it any more

Nobody ever writes into what answers, and no table is copied for an increment: only its rows are written, twice. It
costs the memory of a second copy. A copy is free when the value that held it is gone, so a request keeps what it began
with for as long as it takes; where none is free in time, what answers is copied once.

An increment that is missing, damaged, out of order or unlike the student is refused: what answers stays, and the next
full version is where it goes on.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections import deque
from pathlib import Path
from typing import Any

from exfm.errors import ModelError
from exfm.models.served import ServedStudent
from exfm.snapshots.increments.chain import Chain, Head
from exfm.snapshots.increments.increment import Increment, take_up

MOST_COPIES = 4
"""More are in use only where requests hold old ones; then increments wait."""
REMEMBERED = 64
"""Increments that are kept for a copy that comes free; one that is further behind is let go."""

log = logging.getLogger(__name__)

Step = tuple[Increment, str]
"""An increment, and the digest of the state that it leads to."""


class ServedState:
    """An immutable state of the student: whoever holds it holds an unchanging `served`. `passed`: what is said
    `about` every increment since the value before, this one's last; empty for a full version."""

    def __init__(
        self,
        served: ServedStudent,
        number: int,
        digest: str,
        version: str,
        about: dict[str, Any],
        passed: tuple[dict[str, Any], ...] = (),
    ) -> None:
        self.served, self.number, self.digest = served, number, digest
        self.version, self.about, self.passed = version, about, passed


class Follower:
    """Follows the chain in a folder. `value`: the newest state that was taken up. `refused`: which state is not, and
    why; None where nothing is wrong. One thread calls `look`."""

    def __init__(self, root: Path) -> None:
        self.chain = Chain(root)
        self.value: ServedState | None = None
        self.refused: tuple[str, str] | None = None
        self._barred = 0  # up to a full version of this number at least, nothing is tried again
        self._free: deque[tuple[int, ServedStudent, int]] = deque()
        self._life = self._copies = 0  # of full versions read; of copies since the last
        self._steps: list[Increment] = []  # the newest that were taken up

    def look(self) -> bool:
        """Read new states; returns True if `value` changed."""
        before = self.value
        try:
            head = self.chain.head()
            if head is not None:
                self._go_on(head)
        except ModelError as error:
            self.refused = "the newest state", str(error)
        return self.value is not before

    def _go_on(self, head: Head) -> None:
        while self.value is None or self.value.digest != head.digest:
            if head.full < self._barred <= head.number:
                return
            before = self.value
            if steps := self._way(head):
                self._take(steps)
            elif before is None or head.full > before.number or head.number <= before.number:
                self._begin(head)
            if self.value is before:
                return
        self.refused, self._barred = None, 0

    def _way(self, head: Head) -> list[Step]:
        """The increments that lead on from here; up to the first that does not, where no full version is behind it.
        There is no way past one that was refused."""
        if self.value is None or self._barred:
            return []
        digest, found = self.value.digest, list[Step]()
        for n in range(self.value.number + 1, head.number + 1):
            try:
                increment, after = self.chain.increment(n)
                if increment.parent != digest:
                    raise ModelError("it leads on from another state; the next full version is waited for")
            except (ModelError, FileNotFoundError) as error:
                if n <= head.full:
                    return []
                missing = isinstance(error, FileNotFoundError)  # it may still come: it is looked for again
                self._refuse(n, "it is missing; it or a full version is waited for" if missing else str(error))
                self._barred = 0 if missing else n
                break
            found.append((increment, after))
            digest = after
        return found

    def _take(self, steps: list[Step]) -> None:
        value, copied = self.value, self._spare()
        if value is None or copied is None:
            return
        served, number = copied
        last, digest = steps[-1]
        behind = [increment for increment in self._steps if increment.number > number]
        try:
            for increment in (*behind, *(step for step, _ in steps)):
                take_up(served, increment)
            last.probe.check(served, last.version)
        except ModelError as error:
            self._copies -= 1  # it is no state of the student: it is let go
            self._refuse(last.number, str(error))
            self._barred = last.number
            return
        self._steps = [*self._steps, *(step for step, _ in steps)][-REMEMBERED:]
        passed = tuple(step.about for step, _ in steps)
        self._answer(ServedState(served, last.number, digest, last.version, last.about, passed))

    def _spare(self) -> tuple[ServedStudent, int] | None:
        """A copy that nobody asks, and its number; None where there are too many in use."""
        assert self.value is not None
        while self._free:
            life, served, number = self._free.popleft()
            known = {increment.number for increment in self._steps}
            if life == self._life and known.issuperset(range(number + 1, self.value.number + 1)):
                return served, number
            self._copies -= life == self._life
        if self._copies >= MOST_COPIES:
            return None
        self._copies += 1
        return copy.deepcopy(self.value.served), self.value.number

    def _begin(self, head: Head) -> None:
        try:
            begun = self.chain.full(head.full)
        except ModelError as error:
            self._refuse(head.full, str(error))
            self._barred = head.full + 1
            return
        self._life, self._copies, self._steps = self._life + 1, 1, []
        self.refused, self._barred = None, 0
        self._answer(ServedState(*begun))

    def _answer(self, value: ServedState) -> None:
        given_back = weakref.finalize(value, self._free.append, (self._life, value.served, value.number))
        given_back.atexit = False
        self.value = value

    def _refuse(self, number: int, why: str) -> None:
        self.refused = f"number {number}", why
