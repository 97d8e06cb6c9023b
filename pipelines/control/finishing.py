"""The end of a run whose workers are done: its summary is written, and a full disk is waited for."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.rules import Cause, Death, GiveUp, Patience, cause_of, verdict


class Finishing:
    """Calls `finish` until it succeeds. `waiting` says why it has to be called again, `given_up` why it will not be.

    >>> finishing = Finishing(lambda: None, Patience(0, 1.0, 1.0, 1.0), clock=lambda: 0.0)
    >>> finishing.attempt()
    True
    """

    def __init__(self, finish: Callable[[], None], patience: Patience, clock: Callable[[], float]) -> None:
        self._finish, self._patience, self._clock = finish, patience, clock
        self._deaths: list[Death] = []
        self._next_at = float("-inf")
        self.waiting: str | None = None
        self.given_up: str | None = None

    def attempt(self) -> bool:
        """Whether the run is finished now. Raises what `finish` raises unless that is a full disk."""
        now = self._clock()
        if now < self._next_at:
            return False
        try:
            self._finish()
        except Exception as error:
            if cause_of(error) is not Cause.DISK_FULL:
                raise
            self._deaths.append(Death(now, Cause.DISK_FULL, str(error)))
            decision = verdict(self._deaths, now, self._patience)
            if isinstance(decision, GiveUp):
                self.given_up = f"writing the summary: {decision.reason}"
                return False
            self._next_at = now + decision.delay_s
            self.waiting = f"disk full: the summary waits for room ({error})"
            return False
        return True
