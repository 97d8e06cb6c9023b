"""Manual choice of a student's champion, on a live run or a finished one.

The decision is an entry of the ledger (pipelines/track/registry), added under its lock. A live run's worker finds it
there before its next batch; where the worker is down, at its next start. Nothing has to be alive for it, and whoever is
killed leaves either a whole entry or none.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.identity import STUDENT
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.conclusion import tracker_of
from pipelines.live.status.stored import last_status
from pipelines.track.mirror import mirror_of
from pipelines.track.registry.aliases import Action
from pipelines.track.registry.ledger import HAND, Ledger, LedgerWriter
from streaming.errors import BadInput

MLFLOW_WAIT_S = 60.0
SHOWN = 8
"""So many versions are named where one that was asked for is not there."""


def promote(root: Path, student: str, version: str | None, reason: str) -> dict[str, Any]:
    """Make a version champion; None: the candidate. Asked for again, it changes nothing.

    Raises BadInput where there is no such run, student or version, or no reason.
    """
    ledger = _ledger(root, student, reason)
    with ledger.writing() as writing:
        there = _there(ledger, writing)
        chosen = version or writing.aliases.candidate
        if chosen is None:
            raise BadInput(
                f"`{student}` has no candidate now; name a version with --version: {', '.join(there[-SHOWN:])}"
            )
        if chosen == writing.aliases.champion:
            return _answer(student, writing, changed=False)
        if chosen not in there:
            raise BadInput(f"`{student}` has no version `{chosen}` on the disk; it has {', '.join(there[-SHOWN:])}")
        writing.add(Action.PROMOTED, chosen, by=HAND, reason=reason)
        return _answer(student, writing, changed=True)


def rollback(root: Path, student: str, reason: str) -> dict[str, Any]:
    """Restore the previous champion. Asked for again, it changes nothing: there is no way further back but to promote a
    version by its name.

    Raises BadInput where there is no such run or student, no previous champion, or no reason.
    """
    ledger = _ledger(root, student, reason)
    with ledger.writing() as writing:
        there, aliases = _there(ledger, writing), writing.aliases
        if aliases.previous is None:
            changes = [e for e in writing.entries if e["action"] in (Action.PROMOTED, Action.ROLLED_BACK)]
            if changes and changes[-1]["action"] == Action.ROLLED_BACK:
                return _answer(student, writing, changed=False)
            raise BadInput(
                f"`{student}` has had one champion, {aliases.champion}, and none before it to go back to; "
                f"`exfm promote {student} --version …` chooses another: {', '.join(there[-SHOWN:])}"
            )
        if aliases.previous not in there:
            raise BadInput(
                f"the champion before, {aliases.previous}, is not on the disk any more; "
                f"`exfm promote {student} --version …` chooses another: {', '.join(there[-SHOWN:])}"
            )
        writing.add(Action.ROLLED_BACK, aliases.previous, by=HAND, reason=reason)
        return _answer(student, writing, changed=True)


def mirrored(root: Path, student: str) -> str:
    """Mirror the ledger of a finished run into MLflow, and describe the result; a live run does so by itself."""
    run_dir = RunDir(root)
    if (status := last_status(root)) is not None and status.lives:
        return "the run has MLflow follow"
    config = config_of(run_dir)
    if not config.tracking.enabled:
        return "off (tracking.enabled)"
    if student not in {each.name for each in config.students}:
        return f"not followed: `{student}` is no student of the run any more"
    tracker = tracker_of(config, run_dir)
    assert tracker is not None
    tracker.mirror(STUDENT + student, mirror_of(config, run_dir, student))
    ended = {"done": "FINISHED", "failed": "FAILED"}.get("" if status is None else status.state, "KILLED")
    for worker in ("teacher", *(STUDENT + each.name for each in config.students)):
        tracker.finish(worker, ended)  # a tracker marks those that it finds as running
    tracker.close(MLFLOW_WAIT_S)
    return f"not followed yet: {tracker.problem}" if tracker.problem else "follows"


def _ledger(root: Path, student: str, reason: str) -> Ledger:
    run_dir = RunDir(root)
    if not reason.strip():
        raise BadInput("--reason is empty; it stays in the ledger: say why, in a few words")
    if not run_dir.config.exists():
        raise BadInput(f"{root} holds no run (it has no config.yaml); give the folder of one with --run-dir")
    ledger = Ledger(run_dir, student)
    if ledger.path.exists():
        return ledger
    published = sorted(path.stem for path in run_dir.registry.glob("*.jsonl"))
    if not published:
        raise BadInput(
            f"no student of {root} has published a version yet; they do so every registry.publish_every_rows rows, and "
            "at the end of the run"
        )
    close = get_close_matches(student, published, 1)
    meant = f"; did you mean `{close[0]}`?" if close else ""
    raise BadInput(f"no student `{student}` of {root} has published a version; {', '.join(published)} have{meant}")


def _there(ledger: Ledger, writing: LedgerWriter) -> list[str]:
    """The versions that can be chosen, oldest first."""
    published = [entry["version"] for entry in writing.entries if entry["action"] == Action.PUBLISHED]
    return [version for version in dict.fromkeys(published) if ledger.folder(version).is_dir()]


def _answer(student: str, writing: LedgerWriter, *, changed: bool) -> dict[str, Any]:
    """The champion now, and the entry that made it so."""
    last = next(e for e in reversed(writing.entries) if e["action"] in (Action.PROMOTED, Action.ROLLED_BACK))
    since = {key: last[key] for key in ("at", "by", "reason")}
    return {"student": student, "changed": changed, **writing.aliases.as_json(), **since}
