"""Inventory of a run directory: every kind of file, what it can hold of a person, and what an erasure does with it.

The table is what the command goes by, what its words are made of, and what a test holds against
docs/reference/run-directory.md and the files of a run: a new kind of file is in it, or the test fails.
"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple


class Fate(StrEnum):
    """Treatment of a kind of file."""

    REWRITTEN = "rewritten"
    """The person's rows go, and every file that held them."""
    REMOVED = "removed"
    """It is made again without the person, or not needed."""
    OLDER_REMOVED = "older removed"
    """All but the newest goes: what a worker resumes from, and what is served, with what was learned."""
    STAYS = "stays"
    """It holds nothing of a person, or only what `why` says."""


class FileKind(NamedTuple):
    """One kind of file. `paths`: patterns below the run directory; a folder is all that is in it, where no later kind
    has a longer pattern for it."""

    paths: tuple[str, ...]
    holds: str
    fate: Fate
    why: str = ""


LEARNED = "what models have learned of all rows together stays: no weight is one person's"
POSITIONS = "positions, names and times"
SETTINGS: tuple[str, ...] = (
    "config.yaml",
    "kept_columns.json",
    "lineage.json",
    "follows.json",
    "source_files",
    "end_offsets.json",
    "moves.json",
    "move.json",
    "silences.json",
    "scaling.json",
    "place.json",
    "run.lock",
    ".object-store.json",
    ".pull",
)

KINDS = (
    FileKind(
        ("lake/augmented_examples",), "rows as they were received, labels, logits, histories of events", Fate.REWRITTEN
    ),
    FileKind(("lake/dead_letters",), "messages as they were received", Fate.REWRITTEN),
    FileKind(("lake/late_feedback",), "ids of impressions, with times", Fate.REWRITTEN),
    FileKind(("lake/replayed", "lake/replayed.json"), POSITIONS, Fate.STAYS),
    FileKind(("lake/asof_features", "lake/asof_features.lock"), "features of rows, by lake_seq", Fate.REWRITTEN),
    FileKind(("lake/logit_sets",), "logits of rows, by lake_seq", Fate.REWRITTEN),
    FileKind(
        ("lake/withdrawn.json", "lake/withdraw.json", "lake/.withdrawn.json.lock"),
        "conditions that people wrote",
        Fate.STAYS,
        "what has learned without these rows relies on the condition; it is named where it holds the person's value",
    ),
    FileKind(("lake/readers",), "how far readers are; pins of ranges", Fate.OLDER_REMOVED, "pins of erased rows go"),
    FileKind(("lake/erased.json",), "which lake_seq are gone, of nobody by name", Fate.STAYS),
    FileKind(("predictions",), "ids of impressions, labels, logits, hashes of columns", Fate.REWRITTEN),
    FileKind(("truth",), "ids of impressions, probabilities", Fate.REWRITTEN),
    FileKind(
        ("checkpoints/augmentation",),
        "pending impressions, feedback that waits, as-of features and events by key, letters of the last commit",
        Fate.REWRITTEN,
    ),
    FileKind(
        ("checkpoints", "teachers", "replacement"),
        "weights, optimizer state, counts by id",
        Fate.OLDER_REMOVED,
        LEARNED,
    ),
    FileKind(("snapshots",), "weights, counts by id", Fate.OLDER_REMOVED, LEARNED),
    FileKind(("snapshots/live",), "weights, and ids of some rows to check them by", Fate.REMOVED),
    FileKind(("registry",), "weights, counts by id", Fate.OLDER_REMOVED, LEARNED + "; versions with an alias stay"),
    FileKind(("students",), "what was asked of students; weights that one began with", Fate.STAYS, LEARNED),
    FileKind(("quarantine",), POSITIONS, Fate.STAYS),
    FileKind(("coordinators", "writers"), "machines and processes that work on the run", Fate.STAYS),
    FileKind(("forgotten.json", "forgotten.lock"), "rows of tables, by number, that models forget", Fate.STAYS),
    FileKind(("erasures.json", "erasing.json"), "what was erased, of nobody by name", Fate.STAYS),
    FileKind(("summary.json",), "lowest and highest values of columns, reasons of dead letters", Fate.REWRITTEN),
    FileKind(("status.json", ".status.json.spare"), "reasons of dead letters, words of errors", Fate.REWRITTEN),
    FileKind(("notices.json",), "words of alarms", Fate.REWRITTEN),
    FileKind(("logs",), "words of errors, which may quote a row", Fate.REMOVED),
    FileKind(
        ("source",), "copies of the source's files", Fate.REMOVED, "made again of the source, which is yours to clean"
    ),
    FileKind(
        ("broker",),
        "messages of all topics",
        Fate.REMOVED,
        "of a run that has ended; else messages stay until the topics let them go",
    ),
    FileKind(("mlflow.db", "mlartifacts"), "figures, and registered models", Fate.STAYS, LEARNED),
    FileKind(("ne.png",), "figures", Fate.STAYS),
    FileKind(SETTINGS, POSITIONS + ", settings", Fate.STAYS),
)

OUTSIDE = (
    "topics of Kafka (impressions, feedback, examples, dead letters, the log of served requests): they keep messages "
    "for as long as they are configured to",
    "files that a source plays, recordings, folders of replays (`exfm replay --out`) and sweeps",
    "models in another tracking server, exports and copies of served models",
    "copies of the run directory, backups, versions of objects in a bucket",
    "runs that follow this lake: give them the same command",
)
"""Places that the command does not reach."""


def kind_of(path: str) -> FileKind | None:
    """The kind of a file, by its path below the run directory: that of the longest pattern. None where it is of none.

    >>> kind_of("snapshots/live/feed/chain.bin").fate, kind_of("snapshots/teacher/v00000001/tensors.bin").fate
    (<Fate.REMOVED: 'removed'>, <Fate.OLDER_REMOVED: 'older removed'>)
    >>> kind_of("diary.txt") is None
    True
    """
    parents = [path, *(str(parent) for parent in Path(path).parents)][:-1] if path else []
    matches = [(len(p), kind) for kind in KINDS for p in kind.paths for at in parents if fnmatch(at, p)]
    return max(matches, key=lambda match: match[0])[1] if matches else None
