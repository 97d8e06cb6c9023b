"""List of a run's students, a line each: state, quality, and since when."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from exfm.errors import ModelError
from exfm.snapshots.checkpoint import checkpoint_names
from exfm.snapshots.manifest import read_manifest
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.evolve import with_roster
from pipelines.core.config.identity import STUDENT
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.run_dir.roster import Presence, Roster
from pipelines.live.status.stored import StoredWorker, last_status
from pipelines.track.registry.aliases import Action
from pipelines.track.registry.ledger import Ledger


@dataclass(frozen=True)
class Listed:
    """One student.

    state      of its worker; or `asked` (it waits for the run, or for its row), `paused`, `retired`, `refused`,
               `stopped` (as the run is)
    tables     bytes of the champion's tables in fp32, int8 and int4, and by how much of itself those change its NE
    versions   that are candidate, champion and previous in its registry; null where there is none
    """

    name: str
    state: str
    reason: str | None
    verticals: tuple[str, ...]
    where: str | None
    tasks: tuple[str, ...]
    spawned_at_seq: int
    rows: int
    lake_seq: int | None
    lag_rows: int | None
    ne: dict[str, float | None] | None
    teacher_version: int | None
    logit_age_s: float | None
    host: int | None
    rss_bytes: int | None
    versions: dict[str, str | None]
    tables: dict[str, Any] | None

    def as_json(self) -> dict[str, Any]:
        value = asdict(self)
        value["filter"] = {"verticals": list(value.pop("verticals")) or "all", "where": value.pop("where")}
        return value | {"tasks": list(self.tasks)}


def listed_students(run_dir: RunDir) -> list[Listed]:
    """Every student that the run has, had, or is to have, in the config's order, then by name.

    Raises BadInput where no run lies there.
    """
    before = config_of(run_dir)
    config = with_roster(before, run_dir.roster)
    status = last_status(run_dir.root)
    lives = status is not None and status.lives
    workers = {} if status is None else status.workers
    names = list(dict.fromkeys([*(s.name for s in config.students), *(s.name for s in before.students)]))
    names += [desired.name for desired in run_dir.roster.desired_states if desired.name not in names]
    return [_listed(name, config, before, run_dir, workers.get(STUDENT + name), lives) for name in names]


def _listed(
    name: str, config: Config, before: Config, run_dir: RunDir, worker: StoredWorker | None, lives: bool
) -> Listed:
    settings = {student.name: student for each in (before, config) for student in each.students}.get(name)
    state, reason = _state(name, run_dir.roster, worker, lives, settings.joins_at_rows if settings is not None else 0)
    rows, lake_seq = _saved(run_dir, name) if worker is None else (worker.rows, worker.lake_seq)
    ledger = Ledger(run_dir, name)
    return Listed(
        name=name,
        state=state,
        reason=reason,
        verticals=settings.row_filter if settings is not None else (),
        where=settings.where if settings is not None else None,
        tasks=config.student_tasks(settings) if settings is not None else (),
        spawned_at_seq=settings.first_seq if settings is not None else 0,
        rows=rows,
        lake_seq=lake_seq,
        lag_rows=None if worker is None else worker.lag_rows,
        ne=None if worker is None else worker.ne,
        teacher_version=None if worker is None else worker.teacher_version,
        logit_age_s=None if worker is None else worker.logit_age_s,
        host=worker.pid if worker is not None and lives else None,
        rss_bytes=worker.rss_bytes if worker is not None and lives else None,
        versions=ledger.aliases().as_json(),
        tables=_tables(ledger),
    )


def _tables(ledger: Ledger) -> dict[str, Any] | None:
    """Cost of the served tables as stated when the champion was published; None if no row could tell."""
    champion = ledger.aliases().champion
    published = (e for e in ledger.entries() if e["action"] == Action.PUBLISHED and e["version"] == champion)
    return next((entry["tables"] for entry in published if "tables" in entry), None)


def _saved(run_dir: RunDir, name: str) -> tuple[int, int | None]:
    """Rows and position in the newest checkpoint of a student that no run has had yet: one that learned offline."""
    root = run_dir.checkpoints(STUDENT + name)
    saved = checkpoint_names(root)
    if not saved:
        return 0, None
    try:
        meta = read_manifest(root / saved[-1])["meta"]
        return meta["rows"], meta["lake_seq"]
    except ModelError:  # its worker will say so
        return 0, None


def _state(
    name: str, roster: Roster, worker: StoredWorker | None, lives: bool, joins_at: int
) -> tuple[str, str | None]:
    desired, outcome = roster.desired(name), roster.outcome(name)
    if desired is not None:
        answered = outcome is not None and outcome.answers(desired)
        if answered and outcome is not None and outcome.refused:
            return "refused", outcome.words
        if not answered and lives:
            return "asked", f"to be {desired.wanted}"
        if desired.wanted is not Presence.RUNNING:
            return str(desired.wanted), None
        if worker is None:
            return "asked", "joins when the run starts"
    if worker is None and lives and joins_at:
        return "asked", f"joins once the lake has {joins_at:,} rows"
    if worker is None:
        return "stopped", None
    return (worker.state, worker.reason) if lives or worker.state in ("done", "failed") else ("stopped", None)
