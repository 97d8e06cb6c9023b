"""Takeover: a decided candidate gets the place of a run's teacher, between two of the run's starts.

    1. the candidate learns what the lake has gained since, and publishes its last snapshots
    2. install.json says what is to happen                    from here on a start finishes what another began
    3. the teacher's checkpoints and snapshots move to teachers/<number>/, the candidate's to their place
    4. lineage, the run's config, and the records of takeovers and of what was forgotten say so
    5. the replacement's folder goes

The block after the last one of the lake is the first that the new teacher scores: one position, in takeovers.json. All
that was logged before stays as it is.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from exfm.errors import ModelError
from exfm.models.engine import TEACHER
from exfm.snapshots.checkpoint import checkpoint_names
from exfm.snapshots.manifest import read_manifest
from pipelines.core.config.identity import STUDENT
from pipelines.core.config.lineage import remember
from pipelines.core.config.settings import Config, dump, load
from pipelines.core.config.takeovers import takeovers, with_takeovers, with_teacher
from pipelines.core.run_dir.forgotten import take_places
from pipelines.core.run_dir.paths import RunDir
from pipelines.teacher.replace.replacement import INSTALL, Replacement, only_one
from pipelines.teacher.replace.revocation import next_row
from streaming.errors import BadInput, StreamingError
from streaming.lake.reader import LakeReader
from streaming.lake.withdrawn import end_open, record_of
from streaming.store.files import link_file, make_folder, move, read_json, sync, write_json, write_text

WAIT_S = 60.0
"""How long the process that decided may take to end."""
TAKES_OVER = "another teacher takes over"
"""Why a live run stops, and starts again at once."""


log = logging.getLogger(__name__)


def is_due(run_dir: RunDir) -> bool:
    """True if a candidate was promoted and waits for its place."""
    decided = read_json(run_dir.replacement / "decided.json")
    return bool(decided and decided["promoted"])


def take_over(config: Config, run_dir: RunDir, say: Callable[[str], None]) -> Config:
    """The config of a start, once a candidate that waits has its place. No worker of the run may be up.

    A candidate that cannot catch up is refused, and the run goes on with its teacher."""
    if is_due(run_dir):
        with only_one(run_dir, WAIT_S):
            _take_over(run_dir, say)
    return with_takeovers(config, run_dir)


def _take_over(run_dir: RunDir, say: Callable[[str], None]) -> None:
    entry = read_json(run_dir.replacement / INSTALL)
    if entry is None:
        replacement = Replacement(run_dir, load(run_dir.config))
        try:
            entry = _caught_up(replacement, run_dir, say)
        except (StreamingError, ModelError) as error:
            log.exception("the new teacher")
            replacement.decide(False, f"it could not catch up with the lake: {error}", {})
            if "rewind" in (replacement.begun or {}):
                end_open(run_dir.side_tables, next_row(run_dir))
            say(f"the teacher stays: the new one could not catch up with the lake ({error})")
            return
    _install(entry, run_dir)
    say(
        f"another teacher has taken over: it scores from block {entry['block']:,} (lake_seq {entry['lake_seq']:,}) on "
        f"({entry['why']})"
    )


def _caught_up(replacement: Replacement, run_dir: RunDir, say: Callable[[str], None]) -> dict[str, Any]:
    """Step 1 and 2."""
    begun, decided = replacement.begun, replacement.decided
    assert begun is not None
    assert decided is not None
    last = LakeReader(run_dir.lake, replacement.config.rows).last_lake_seq
    candidate = replacement.candidate()
    candidate.open()
    try:
        if missing := last - candidate.place.lake_seq:
            say(f"the new teacher learns {missing:,} rows that the lake has gained")
        candidate.learn_upto(last)
        block = candidate.place.version
    finally:
        candidate.close()
    entry = {
        "number": len(takeovers(run_dir)) + 1,
        "block": block,
        "lake_seq": last + 1,
        "was": begun["was"],
        "now": begun["now"],
        "why": decided.why,
        "evidence": decided.evidence,
        **({"rewind": begun["rewind"]} if "rewind" in begun else {}),
    }
    write_json(run_dir.replacement / INSTALL, entry)
    return entry


def _install(entry: dict[str, Any], run_dir: RunDir) -> None:
    """Steps 3 to 5; what a killed process has done of them is not done again."""
    candidate, former = RunDir(run_dir.replacement), run_dir.replaced_teacher(entry["number"])
    make_folder(former)
    end_open(run_dir.side_tables, entry["lake_seq"])
    if rewind := entry.get("rewind"):
        run_dir.summary.unlink(missing_ok=True)  # of a finished run: its students are others now
    moves = [
        (run_dir.checkpoints("teacher"), candidate.checkpoints("teacher"), "checkpoints"),
        (run_dir.snapshots, candidate.snapshots, "snapshots"),
    ]
    for student in rewind["students"] if rewind else ():
        moves += _of_student(run_dir, candidate, student)
    for student in _left_behind(run_dir, rewind) if rewind else ():
        moves += _of_student(run_dir, candidate, student)
    for own, others, name in moves:
        if own.exists() and not (former / name).exists():
            move_folder(own, former / name)
        if others.exists():
            move_folder(others, own)
    before = load(run_dir.config)
    after = with_teacher(before, entry["now"])
    if before.hash != after.hash:
        line = f"another teacher scores from block {entry['block']} on"
        remember(run_dir, before.model_dump(mode="json"), after, [line], anew=["teacher"])
        write_text(run_dir.config, dump(after))
        sync(run_dir.root)
    students = dict.fromkeys((STUDENT + name for name in rewind["students"]) if rewind else (), entry["lake_seq"])
    take_places(run_dir, candidate, {TEACHER: entry["block"]} | students)
    record = takeovers(run_dir)
    if len(record) < entry["number"]:
        write_json(run_dir.takeovers, [*record, entry])
    Replacement(run_dir, after).clear()


def _left_behind(run_dir: RunDir, rewind: dict[str, Any]) -> Iterator[str]:
    """Students that have learned, and began without knowing what the rewind leaves out: such as one that had no
    checkpoint yet. They begin anew."""
    for root in sorted(run_dir.checkpoints(STUDENT).parent.glob(f"{STUDENT}*/")):
        name, saved = root.name.removeprefix(STUDENT), checkpoint_names(root)
        if saved and name not in rewind["students"]:
            knows = read_manifest(root / saved[-1])["meta"]["past"].get("withdrawals", 0)
            if knows <= rewind["before"]:
                yield name


def _of_student(run_dir: RunDir, candidate: RunDir, name: str) -> Iterator[tuple[Path, Path, str]]:
    """Folders of a run's student, those of the rewound one that take their place, and where the first go."""
    worker = f"{STUDENT}{name}"
    yield run_dir.checkpoints(worker), candidate.checkpoints(worker), f"students/{name}/checkpoints"
    yield run_dir.predictions(name), candidate.predictions(name), f"students/{name}/predictions"
    yield run_dir.served(name), candidate.served(name), f"students/{name}/served"
    yield run_dir.served_twin(name), candidate.served_twin(name), f"students/{name}/served_twin"


def move_folder(source: Path, target: Path) -> None:
    """Move a folder to its place, durably."""
    make_folder(target.parent)
    move(source, target)
    sync(target.parent)
    sync(source.parent)


def roll_back(run_dir: RunDir, why: str) -> None:
    """Return the place to the teacher before the last takeover, which learns from the lake what it missed.

    Raises BadInput where there was none, or a replacement is under way."""
    record = takeovers(run_dir)
    if not record:
        raise BadInput(f"no teacher of {run_dir.root} was ever replaced: there is none to go back to")
    if run_dir.replacement.exists():
        raise BadInput(
            f"{run_dir.replacement} holds a replacement; let it end, or drop it: exfm teacher replace --drop"
        )
    former, part = run_dir.replaced_teacher(len(record)), run_dir.root / ".replacement"
    shutil.rmtree(part, ignore_errors=True)
    for name in ("checkpoints", "snapshots"):
        for path in (former / name).rglob("*"):
            target = part / name / "teacher" / path.relative_to(former / name)
            make_folder(target if path.is_dir() else target.parent)
            if path.is_file():
                link_file(path, target)
    withdrawals = len(record_of(run_dir.side_tables))
    begun = {"was": record[-1]["now"], "now": record[-1]["was"], "judge_from": 0, "space": 0}
    begun["withdrawals"] = withdrawals
    write_json(part / "begun.json", begun)
    write_json(part / "decided.json", {"promoted": True, "why": why, "evidence": {}})
    move_folder(part, run_dir.replacement)
