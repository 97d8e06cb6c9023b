"""Erasure of a person from a run that is not running.

    1  what there is: places with rows, models, pins. Without `--yes` that is all
    2  the decision, `erasing.json`: from here on the run can only be erased from, and the same command completes it
    3  tables of models are asked to forget ids; older models, pins, logs, copies and a finished run's broker go
    4  every place is rewritten, the lake last
    5  the record, `erasures.json`, and `erasing.json` is deleted

Before 2 nothing is altered. Every later step finds out what was done before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.core.config.evolve import with_roster
from pipelines.core.config.kept_columns import with_kept_columns
from pipelines.core.config.settings import Config, load
from pipelines.core.run_dir.erasures import (
    BegunErasure,
    Erasure,
    begin_erasure,
    begun_erasure,
    end_erasure,
    erasures,
    now,
)
from pipelines.core.run_dir.forgotten import ask_to_forget
from pipelines.core.run_dir.moves import require_complete
from pipelines.core.run_dir.paths import RunDir
from pipelines.erasure.inventory import LEARNED, OUTSIDE
from pipelines.erasure.models import learned, older_models, pins, tables_of
from pipelines.erasure.person import Person
from pipelines.erasure.places import ErasurePlaces
from pipelines.live.loop.lake_watch import FOLLOWER
from pipelines.live.loop.preflight import locked
from pipelines.live.status.stored import last_status, run_lives
from pipelines.track.registry.ledger import Ledger
from streaming.broker.broker import LocalBroker
from streaming.delivery.requeue import REPLAYED
from streaming.errors import BadInput
from streaming.lake.erasure.holes import ranges_of
from streaming.lake.readers import Readers
from streaming.lake.withdrawn import record_of
from streaming.program import command
from streaming.store.files import remove_folder
from streaming.store.lock import file_lock
from streaming.store.working_copy import copy_of

MANY = 0.5
"""A condition that is true of more of the lake is hardly one person's."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class ErasurePlan:
    """Findings of an erasure.

    rows         of the person, by place; places without any are not in it
    share        of the lake's rows
    ranges       of `lake_seq`
    removed      paths below the run directory, and pins, that go
    tables       embedding tables that forget the person's ids
    kept         in words: what stays, and why
    outside      in words: what the command does not reach
    done         the record, once it is complete; None: nothing was changed
    """

    rows: dict[str, int]
    share: float
    ranges: tuple[tuple[int, int], ...]
    removed: tuple[str, ...]
    tables: tuple[str, ...]
    kept: tuple[str, ...]
    outside: tuple[str, ...] = OUTSIDE
    done: Erasure | None = None

    @property
    def nothing(self) -> bool:
        """True if no row is the person's."""
        return not any(self.rows.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "share_of_lake": self.share,
            "ranges": [list(each) for each in self.ranges],
            "removed": list(self.removed),
            "tables": list(self.tables),
            "stays": list(self.kept),
            "outside": list(self.outside),
            "done": None if self.done is None else self.done.model_dump(mode="json"),
        }


class PersonErasure:
    """An erasure of the rows of the run in `root` that `where` is true of.

    Raises BadInput where `root` holds no run that is at rest, or for a condition that is none.
    """

    def __init__(self, root: Path, where: str) -> None:
        self._run_dir = RunDir(root)
        if not self._run_dir.config.exists():
            raise BadInput(f"no run in {root} (no config.yaml there); give the folder of one")
        if copy_of(root) is not None:
            raise BadInput(
                f"{root} is on object storage, whose older objects this command does not reach: it does not work there "
                "yet; fetch the run to a folder, erase there, and put it back to a new address"
            )
        config = with_kept_columns(load(self._run_dir.config, None), self._run_dir)
        self._config: Config = with_roster(config, self._run_dir.roster)
        self._person = Person(where, self._config.rows)

    def erase(self, *, yes: bool, much: bool = False, say: Say = lambda text: None) -> ErasurePlan:
        """Find the person and, with `yes`, erase; complete what was begun. `much`: although most of the lake is meant.
        `say` hears each step."""
        with self._at_rest():
            begun = begun_erasure(self._run_dir)
            if begun is not None and not begun.is_of(self._person.condition):
                raise BadInput(
                    f"erasure {begun.erasure.number} of {self._run_dir.root}, of another condition, was begun at "
                    f"{begun.erasure.asked_at} and is not complete; complete it first, with --yes"
                )
            places = ErasurePlaces(self._run_dir, self._config, self._person)
            places.look(None if begun is None else begun.ids)
            plan = self._plan(places)
            if begun is None:
                if plan.nothing or not yes:
                    return plan
                self._require_few(places, much=much)
                begun = self._begin(plan)
            elif not yes:
                return plan
            self._ask_tables(begun)
            for name in plan.removed:
                say(f"removed: {name}")
                self._remove(name, places.found)
            for place in places.all():
                say(f"rewritten: {place.name}")
                place.erase()
            done = end_erasure(self._run_dir, begun_erasure(self._run_dir).erasure)  # type: ignore[union-attr]
            return ErasurePlan(**{**vars(plan), "done": done})

    # --- whether it may be -------------------------------------------------------------------------------------------

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Context in which no process of the run is up, nor one of a run that follows it. Raises BadInput otherwise."""
        run_dir = self._run_dir
        with ExitStack() as stack:
            stack.enter_context(locked(run_dir))
            require_complete(run_dir)
            if (run_dir.side_tables / f"{REPLAYED}.json").exists():
                again = command("exfm", "dead-letters", "replay", "--run-dir", run_dir.root)
                raise BadInput(f"dead letters are being put back onto their topics; complete that first: `{again}`")
            for path in sorted((run_dir.root / "checkpoints").glob("*.lock")):
                if not stack.enter_context(file_lock(path)):
                    raise BadInput(f"a process of the run still works as `{path.stem}` (it holds {path}); end it first")
            for path in sorted(run_dir.readers.glob(f"*/{FOLLOWER}")):
                follower = Path(path.read_text().strip())
                if follower.is_dir() and run_lives(follower):
                    stop = command("exfm", "stop", follower)
                    raise BadInput(f"{follower} follows this lake, and runs; stop it first: `{stop}`")
            if self._run_dir.follows and run_lives(run_dir.leader.root):
                stop = command("exfm", "stop", run_dir.leader.root)
                raise BadInput(
                    f"{run_dir.root} follows the lake of {run_dir.leader.root}, which runs; stop it: `{stop}`"
                )
            yield

    def _require_few(self, places: ErasurePlaces, *, much: bool) -> None:
        if not much and places.of and places.rows > MANY * places.of:
            raise BadInput(
                f"`{self._person.where.text}` is true of {places.rows:,} of {places.of:,} rows of the lake "
                f"({places.rows / places.of:.0%}): hardly one person's. Nothing was changed; "
                "if they are to go, add --much"
            )

    # --- what there is -----------------------------------------------------------------------------------------------

    @property
    def _ended(self) -> bool:
        """True of a bounded run that has come to its end."""
        status = last_status(self._run_dir.root)
        return status is not None and status.state == "done"

    def _plan(self, places: ErasurePlaces) -> ErasurePlan:
        run_dir, root = self._run_dir, self._run_dir.root
        rows = {place.name: count for place in places.all() if (count := place.rows())}
        tables, crosses = tables_of(self._config, self._person.values)
        removed = [str(path.relative_to(root)) for path in older_models(run_dir, self._config, ended=self._ended)]
        removed += [f"pin {name}" for name in pins(run_dir, places.found)]
        gone = [run_dir.logs, run_dir.copies, *([run_dir.broker] if self._ended else [])]
        removed += [str(path.relative_to(root)) for path in gone if path.exists()]
        return ErasurePlan(
            rows=rows,
            share=places.rows / places.of if places.of else 0.0,
            ranges=tuple(ranges_of(places.found)),
            removed=tuple(removed) if any(rows.values()) or begun_erasure(run_dir) else (),
            tables=tuple(sorted(tables)),
            kept=tuple(self._kept(places, crosses, tables)),
        )

    def _kept(self, places: ErasurePlaces, crosses: Sequence[str], tables: Collection[str]) -> Iterator[str]:
        """The rest, which stays, in words."""
        yield (
            f"checkpoints and served versions, the newest of each: {LEARNED}; their tables forget the ids above before "
            "the next row that each model learns, and what is saved after that holds nothing of them"
        )
        if crosses:
            yield f"rows of {', '.join(crosses)}: made of several columns, or shared by many ids"
        if tables:
            yield (
                "forgotten.json: by number, the rows of these tables, since a model that starts again forgets again; "
                "of a column of numbers under `index` that is the value"
            )
        if any(isinstance(value, int) for values in self._person.values.values() for value in values):
            yield "reasons and texts of refused rows that quote a number of the condition: which number cannot be told"
        if not self._person.values:
            yield "tables of models: a condition that is no equality names no ids for them to forget"
        if places.unreadable:
            yield (
                f"{places.unreadable:,} dead letters that cannot be decoded, nor searched: `exfm dead-letters list` "
                "counts them by reason; delete lake/dead_letters if they are to go"
            )
        if self._run_dir.broker.exists() and not self._ended:
            yield (
                "broker/: messages that the run has read or will read. Once it has ended, the same command removes "
                "them; what is read until then comes into the lake again"
            )
        for each in record_of(self._run_dir.side_tables):
            if each.where is not None and self._person.in_text(each.where):
                yield f"a withdrawal whose condition names the person (lake/withdrawn.json, asked at {each.asked_at})"

    # --- done, whatever was done of it before ------------------------------------------------------------------------

    def _begin(self, plan: ErasurePlan) -> BegunErasure:
        erasure = Erasure(
            number=len(erasures(self._run_dir)) + 1,
            asked_at=now(),
            rows=plan.rows,
            ranges=plan.ranges,
            learned=learned(self._run_dir),
            removed=plan.removed,
        )
        begun = BegunErasure.of(erasure, self._person.condition, self._person.ids.to_pylist())
        begin_erasure(self._run_dir, begun)
        return begun

    def _ask_tables(self, begun: BegunErasure) -> None:
        """Ask the models to forget the ids, once."""
        tables, _ = tables_of(self._config, self._person.values)
        if begun.erasure.forgotten or not tables:
            return
        numbers = tuple(
            ask_to_forget(self._run_dir, table, None, rows).number for table, rows in sorted(tables.items())
        )
        erasure = begun.erasure.model_copy(update={"forgotten": numbers})
        begin_erasure(self._run_dir, begun.model_copy(update={"erasure": erasure}))

    def _remove(self, name: str, found: np.ndarray) -> None:
        """Remove what the plan names; what is gone is gone."""
        if name.startswith("pin "):
            Readers(self._run_dir.readers).retire(name.removeprefix("pin "))
            return
        path = self._run_dir.root / name
        if path == self._run_dir.broker:
            LocalBroker(path).stop()
        if path.parent.parent == self._run_dir.registry:
            with Ledger(self._run_dir, path.parent.name).writing():
                remove_folder(path)
        elif path.exists():
            remove_folder(path)
