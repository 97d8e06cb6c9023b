"""Kinds of workers, and the consequence of each one's end for its run.

kind             gives up: the run ends  its last row ends the stream  may join and leave  where a lake is followed
ingest           always                  no                            no                  no
augmentation     always                  yes: it writes the lake       no                  no
teacher          in lockstep             no                            no                  no
further teacher  always: students wait   no                            no                  no
student          never                   no                            yes                 yes
"""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    INGEST = "ingest"
    AUGMENTATION = "augmentation"
    TEACHER = "teacher"
    FURTHER_TEACHER = "further teacher"
    STUDENT = "student"

    def ends_run(self, pace: str) -> bool:
        """True if a worker that has given up ends the run. Without a source, an augmentation, or, in lockstep, a
        teacher nothing can continue. Nothing depends on a student, and in free pace nothing waits for the teacher.

        >>> [kind.ends_run("free") for kind in Kind]
        [True, True, False, True, False]
        """
        always = (Kind.INGEST, Kind.AUGMENTATION, Kind.FURTHER_TEACHER)
        return self in always or (self is Kind.TEACHER and pace == "lockstep")

    @property
    def writes_lake(self) -> bool:
        """True if its position is the lake's end; when it is done, the stream ends."""
        return self is Kind.AUGMENTATION

    @property
    def reads_lake(self) -> bool:
        """True if its position is a row of the lake; it is done once it has learned the last one."""
        return self in (Kind.TEACHER, Kind.FURTHER_TEACHER, Kind.STUDENT)

    @property
    def has_lag(self) -> bool:
        """True if rows of others wait for it, in topics or in the lake."""
        return self is not Kind.INGEST

    @property
    def publishes(self) -> bool:
        """True if others use its snapshots and must learn when no more will come."""
        return self is Kind.TEACHER

    @property
    def follows(self) -> bool:
        """True if a run that only follows another's lake has such workers."""
        return self is Kind.STUDENT

    @property
    def may_leave(self) -> bool:
        """True if it may join and leave a live run."""
        return self is Kind.STUDENT
