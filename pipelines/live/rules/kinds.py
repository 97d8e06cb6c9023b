"""The kinds of workers, and what each one's end means to its run.

kind          gives up: the run ends      its last row ends the stream    may join and leave a run
ingest        always                      no                              no
augmentation  always                      yes: it writes the lake         no
teacher       in lockstep                 no                              no
student       never                       no                              yes
"""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    INGEST = "ingest"
    AUGMENTATION = "augmentation"
    TEACHER = "teacher"
    STUDENT = "student"

    def ends_run(self, pace: str) -> bool:
        """Whether a worker that has given up takes the run with it. Without a source, an augmentation, or, in lockstep,
        a teacher nothing can continue. Nothing depends on a student, and in free pace nothing waits for the teacher.

        >>> [kind.ends_run("free") for kind in Kind]
        [True, True, False, False]
        """
        return self is not Kind.STUDENT and (self is not Kind.TEACHER or pace == "lockstep")

    @property
    def writes_lake(self) -> bool:
        """Its position is the lake's; where it is done, the stream ends."""
        return self is Kind.AUGMENTATION

    @property
    def reads_lake(self) -> bool:
        """Its position is a row of the lake; it is done once it has learned the last one."""
        return self in (Kind.TEACHER, Kind.STUDENT)

    @property
    def has_lag(self) -> bool:
        """Rows of others wait for it, in topics or in the lake."""
        return self is not Kind.INGEST

    @property
    def publishes(self) -> bool:
        """Others use its snapshots and are informed when no more will come."""
        return self is Kind.TEACHER

    @property
    def may_leave(self) -> bool:
        """It may join a run and leave it while the run lives."""
        return self is Kind.STUDENT
