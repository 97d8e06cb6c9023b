"""Conditions: the source of students' logits, faults of logits and labels, and a student's start."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from pipelines.core.config.topics import Frozen


class TeacherSpec(Frozen):
    """A further teacher on the same rows, named by conditions and compared with every arm."""

    features: tuple[str, ...] | Literal["students"] = Field(
        default=(),
        description="`students`: those of a student that names none; empty: those of the config's teacher",
    )
    dial: int = Field(
        default=0,
        ge=0,
        description="steps of the scaling family (`exfm scale` has the FLOPs of each), about twice the FLOPs a step",
    )
    model: dict[str, Any] = Field(default={}, description="merged into `teacher.model`")

    @property
    def privileged(self) -> bool:
        """True if it knows of the user's history what came after a row was shown; figures say so."""
        return (self.model.get("sequence") or {}).get("as_of") == "settlement"


class Stored(NamedTuple):
    """Choice of a run's stored snapshot for a row: this `version`; or the newest one behind the row by at least
    `rows` of the lake and `seconds` of event time; or the one that is `snapshots` older than that. Or the logit set of
    this name, by whatever teacher."""

    version: int | None = None
    rows: int = 0
    seconds: float = 0.0
    snapshots: int = 0
    logit_set: str | None = None


class LogitSource(NamedTuple):
    """Source of logits: a teacher (None: the config's) that begins to learn `born` blocks after the stream, by its
    snapshots `behind` blocks older than the pace's; or a run's `stored` snapshots."""

    teacher: str | None = None
    born: int = 0
    behind: int = 0
    stored: Stored | None = None


TWIN = "twin"
"""The teacher of a condition whose students get the logits of a student like them, of another draw, that has none."""

LAKE_ALONE = ("snapshot", "stale_rows", "stale_s", "stale_snapshots", "logit_set")


class Condition(Frozen):
    """Logged logits that students get, faults of labels, and a student's start."""

    teacher: str | None = Field(
        default=None,
        description=(
            "a name in `teachers`; `twin`: another draw of the same student without a teacher (the first baseline), "
            "which learns the same rows: a teacher that knows nothing more; null: the config's teacher"
        ),
    )
    behind: int = Field(default=0, ge=0, description="scored by a snapshot this many blocks older than the pace's")
    born: int = Field(
        default=0,
        ge=0,
        description=(
            "the teacher begins to learn this many whole blocks after the stream begins: as few rows as one that is as "
            "many blocks `behind`, and the newest ones"
        ),
    )
    snapshot: int | None = Field(
        default=None,
        ge=1,
        description="of a run's lake: rows are scored again by this stored snapshot; those that it has learned have no "
        "logit",
    )
    stale_rows: int = Field(
        default=0,
        ge=0,
        description="of a run's lake: rows are scored again by the newest stored snapshot that had learned nothing of "
        "so many rows before them",
    )
    stale_s: float = Field(default=0.0, ge=0, description="the same in seconds of event time")
    stale_snapshots: int = Field(default=0, ge=0, description="the same in stored snapshots: 1: by the one before")
    logit_set: str | None = Field(
        default=None,
        description="of a run's lake: the logits of this set (`exfm rescore`); of rows outside it those logged",
    )
    scale: float = Field(default=1.0, allow_inf_nan=False, description="students see scale · logit + shift")
    shift: float = Field(default=0.0, allow_inf_nan=False, description="see scale")
    missing: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of impressions whose logits are missing, by their ids; 1: there is no teacher",
    )
    lost: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of positives whose feedback never comes, or too late, by their ids: students learn label 0, "
        "and are judged by the label that was logged",
    )
    window_s: float | None = Field(
        default=None,
        gt=0,
        description="a shorter attribution window, seconds, of all tasks that have a longer one: students learn label "
        "0 where feedback came later, and are judged by the label that was logged. Rows keep their order: what earlier "
        "labels would gain is not in it",
    )
    late_s: float = Field(
        default=0.0,
        ge=0,
        description="seconds, after their labels have settled, by which rows reach students later, logits and all: "
        "what a slower pipeline or a longer window costs. The teacher keeps its pace, and labels are those logged",
    )
    unknown: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of impressions whose labels students do not get, by their ids; they are judged on all",
    )
    start: float = Field(
        default=0.0, ge=0, lt=0.95, description="share of the stream that has passed when a student starts"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Condition:
        if self.teacher == TWIN and (self.behind or self.born):
            raise ValueError("the twin's logits have no snapshots; leave `behind` and `born` out, or name a teacher")
        if self.stored is not None and (self.teacher is not None or self.behind or self.born):
            given = next(name for name in LAKE_ALONE if getattr(self, name))
            raise ValueError(
                f"`{given}` is of the run's own snapshots; leave out `teacher`, `behind` and `born`, or `{given}`"
            )
        if self.snapshot is not None and (self.stale_rows or self.stale_s or self.stale_snapshots):
            raise ValueError("`snapshot` says which one; leave `stale_rows`, `stale_s` and `stale_snapshots` out")
        if self.logit_set is not None and self.stored != Stored(logit_set=self.logit_set):
            raise ValueError("`logit_set` has its own teacher; leave the settings of stored snapshots out")
        return self

    @property
    def honest(self) -> bool:
        """True if students see unscaled logits."""
        return (self.scale, self.shift) == (1.0, 0.0)

    @property
    def as_logged(self) -> bool:
        """True if students see logits and labels as logged."""
        return self.honest and not self.missing and not self.label_faults

    @property
    def label_faults(self) -> dict[str, float]:
        """Faults of labels, by name; empty without any."""
        named = {name: getattr(self, name) for name in ("lost", "window_s", "unknown")}
        return {name: value for name, value in named.items() if value}

    @property
    def stored(self) -> Stored | None:
        """Choice of stored snapshots that score the rows again; None if none do."""
        choice = Stored(self.snapshot, self.stale_rows, self.stale_s, self.stale_snapshots, self.logit_set)
        return None if choice == Stored() else choice

    @property
    def logit_source(self) -> LogitSource | None:
        """Source of the logits; None for the twin."""
        return None if self.teacher == TWIN else LogitSource(self.teacher, self.born, self.behind, self.stored)

    def controls(self) -> dict[str, Condition]:
        """Control conditions that show the cost of a fault: the same teacher without the fault, and for old snapshots
        the newest ones of a teacher that has learned as many rows.

        >>> controls = Condition(behind=3, start=0.5).controls()
        >>> controls["fresh"] == Condition(start=0.5), controls["as mature"] == Condition(born=3, start=0.5)
        (True, True)
        >>> Condition().controls()
        {}
        """
        fresh = Condition(teacher=self.teacher, start=self.start)
        controls = {"fresh": fresh} if fresh != self else {}
        if self.behind and not self.born:
            controls["as mature"] = self.model_copy(update={"behind": 0, "born": self.behind})
        return controls
