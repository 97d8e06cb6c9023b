"""What the two workers that train models have in common: checkpoints written beside the training, and what follows.

    training ──copy──► [ queue ] ──► the writer's thread:   1. what belongs before the checkpoint (predictions)
                                                            2. the checkpoint
                                                            3. what is made of it (snapshot, export)
                                                            4. old ones pruned, the position told to the lake's readers

A crash between any two of these is made up at the next start: the checkpoint decides, what is made of it is made again
to the same bytes.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch import Tensor

from exfm.errors import Diverged, ModelError
from exfm.step import StepResult
from exfm.tensors import (
    Checkpoint,
    Storable,
    Together,
    checkpoint_names,
    open_checkpoint,
    prune_checkpoints,
    remove_leftovers,
    save_checkpoint,
)
from exfm.threads import set_threads
from pipelines.config import Config, accepted_identities
from pipelines.run_dir import RunDir
from pipelines.training import Found, Quarantine, Writer, last_checkpoint, needed_after, upgraded
from pipelines.workers.ranks import Ranks
from pipelines.workers.worker import Rendezvous, Report, Worker
from streaming.disk import file_lock, write_json
from streaming.errors import StreamingError
from streaming.lake import Readers
from streaming.position import NOTHING_YET

REGISTER_EVERY_S = 600.0
"""A worker that has nothing to save for so long tells the lake's readers that it still lives."""


class ModelWorker(Worker):
    """Base of the teacher's and the students' workers."""

    _rereads = 0
    """So many of the rows it has learned, the last ones, a start reads again."""

    def __init__(self, name: str, config: Config, run_dir: RunDir) -> None:
        super().__init__(name)
        self._ranks = Ranks(Rendezvous())
        self._config = config
        self._run_dir = run_dir
        self._seq = NOTHING_YET
        self._saved_seq = NOTHING_YET
        self._writer: Writer | None = None
        self._lock = ExitStack()
        self._quarantines: dict[str, Quarantine] = {}
        self._note: str | None = None
        self._ending = self._done = False
        self._registered_at = 0.0

    # --- beginning ---------------------------------------------------------------------------------------------

    def _begin(self, rng: Mapping[str, Tensor]) -> Checkpoint | None:
        """Threads, the writer, and the checkpoint to go on from; `rng`: of the models as they start, by its names.

        Rank 0 holds the lock, clears up, and decides which checkpoint it is; the others touch nothing before.
        """
        set_threads(self._config.resources.threads)
        self._checkpoints = self._run_dir.checkpoints(self.name)
        self._readers = Readers(self._run_dir.readers)
        found = Found(None, None)
        if self._ranks.first:
            self._take_lock()
            remove_leftovers(self._checkpoints)
            accepted = accepted_identities(self._run_dir, self._config, self.name)
            found = last_checkpoint(self._checkpoints, self._config.identity(self.name), accepted)
            self._note = found.note
        # What is newer and cannot be used was set aside: the last one is the one found.
        name = self._ranks.say(lambda: checkpoint_names(self._checkpoints)[-1] if found.stored else "")
        stored = found.stored if self._ranks.first or not name else open_checkpoint(self._checkpoints / name)
        self._writer = Writer(self.name, self._config.resources.checkpoint_queue, self.watch)
        if stored is not None:
            stored = upgraded(stored, rng)
            self._seq = self._saved_seq = stored.meta["lake_seq"]
        if self._ranks.first:
            self._register()
        return stored

    def _take_lock(self) -> None:
        """A predecessor that is only out of reach must be gone before its work is taken up: two would write into one
        folder. The lock goes with its process, however that ends."""
        self._checkpoints.parent.mkdir(parents=True, exist_ok=True)
        path = self._checkpoints.with_name(f"{self.name}.lock")
        if not self._lock.enter_context(file_lock(path)):
            raise StreamingError(f"another process still works as `{self.name}` (it holds {path}); it has to end first")

    def _let_go(self) -> None:
        self._lock.close()

    def _go_on(self, mine: bool) -> bool:
        return bool(self._ranks.lead(mine))

    def _set_up_quarantine(self, models: Sequence[str], tasks: tuple[str, ...], stored: Checkpoint | None) -> None:
        """What each of `models` has left out so far, kept up in every checkpoint from now on."""
        limit = self._config.resources.max_quarantined_in_a_row
        states = stored.meta["quarantine"] if stored is not None else {}
        self._quarantines = {m: Quarantine(m, tasks, in_a_row=limit, state=states.get(m)) for m in models}
        self._tell_quarantine()

    def step(self) -> bool:
        assert self._writer is not None
        self._writer.check()  # also while there is nothing to learn: others may wait for what could not be written
        return self._train()

    @abstractmethod
    def _train(self) -> bool:
        """Learn one batch, or fetch what comes next; False when there was nothing to do."""

    # --- writing -----------------------------------------------------------------------------------------------

    def _put(self, write: Callable[[], None]) -> None:
        """Have it written beside the work; all ranks together. While one of them has to wait for its disk all do, step
        by step: none is left alone in a collective for as long as a disk may take."""
        assert self._writer is not None
        if self._ranks.count > 1:
            with self.watch("wait for disk"):
                while not self._ranks.all(self._writer.has_room):
                    time.sleep(0.02)
        self._writer.put(write)

    def _checkpoint_meta(self, trained: Mapping[str, int], rows: int) -> dict[str, Any]:
        """What every model's checkpoint says. Raises ModelError unless trained + quarantined rows = rows."""
        for model, quarantine in self._quarantines.items():
            if trained[model] + quarantine.rows != rows:
                raise ModelError(
                    f"{model} trained {trained[model]} rows and left out {quarantine.rows}, and was given {rows} up "
                    f"to lake_seq {self._seq}; that is a fault of ExFM: nothing of it is saved, a restart goes on from "
                    "the checkpoint before"
                )
        return {
            "config_hash": self._config.identity(self.name),
            "lake_seq": self._seq,
            "rows": rows,
            "trained_rows": dict(trained),
            "quarantine": {model: quarantine.state() for model, quarantine in self._quarantines.items()},
        }

    def _save_checkpoint(self, name: str, tensors: Mapping[str, Storable], meta: Mapping[str, Any]) -> None:
        """In the writer's thread."""
        self._save(self._checkpoints, name, tensors, meta, kind=f"{self.kind}-checkpoint")
        self._store_quarantine(meta["quarantine"])

    def _save(
        self,
        root: Path,
        name: str,
        tensors: Mapping[str, Storable],
        meta: Mapping[str, Any],
        *,
        kind: str,
        alone: bool = False,
    ) -> None:
        """In every rank's writer's thread, of all ranks the same names in the same order: each writes what it holds."""
        group = None if alone else self._ranks.group
        together = None if group is None else Together(group.rank, group.world_size, group.token)
        save_checkpoint(root, name, tensors, meta, kind=kind, together=together)

    def _finish_checkpoint(self) -> None:
        """In the writer's thread, last."""
        if self._ranks.first:
            prune_checkpoints(self._checkpoints, keep=self._kept_checkpoints)
            self._register()

    @property
    def _kept_checkpoints(self) -> int:
        return 2  # the one before is what a damaged one falls back to

    def _register(self) -> None:
        position = max(NOTHING_YET, needed_after(self._checkpoints) - self._rereads)
        self._readers.register(self.name, position)
        self._registered_at = time.monotonic()

    # --- what was left out -------------------------------------------------------------------------------------

    def _judge_step(self, model: str, rows: pa.Table, result: StepResult) -> None:
        with self._told_if_hopeless():
            self._quarantines[model].judge(rows, result)

    @contextmanager
    def _told_if_hopeless(self) -> Iterator[None]:
        """Where there is no going on, people find what was left out, though no checkpoint has it."""
        try:
            yield
        except Diverged:
            self._tell_quarantine()
            raise

    def _tell_quarantine(self) -> None:
        self._store_quarantine({model: quarantine.state() for model, quarantine in self._quarantines.items()})

    def _store_quarantine(self, state: Mapping[str, Any]) -> None:
        """For people; exact is what the checkpoint says, of which this is a copy, made again at every start."""
        path = self._run_dir.quarantine(self.name)
        if self._ranks.first and (path.exists() or any(model["rows"] for model in state.values())):
            write_json(path, state)

    # --- ending ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _save_last(self) -> None:
        """Put what is not saved yet at the end of the stream."""

    def _end(self) -> bool:
        """A step at the end of a bounded stream: done once everything is on disk."""
        assert self._writer is not None
        if not self._ending:
            self._save_last()
            self._ending = True
        self._done = self._ranks.all(self._writer.idle)
        return self._done

    @property
    def done(self) -> bool:
        return self._done

    def close(self) -> None:
        """What was put is on disk when this returns."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._let_go()

    def abandon(self) -> None:
        try:
            if self._writer is not None:
                self._writer.abandon()
        finally:
            self._let_go()

    def describe(self, report: Report) -> None:
        report.lake_seq = self._seq
        notes = [self._note, *(quarantine.note for quarantine in self._quarantines.values())]
        report.note = "; ".join(filter(None, notes)) or None
        report.counts = self._counts()
        if not self._ranks.first:
            return
        if self._writer is not None and time.monotonic() - self._registered_at > REGISTER_EVERY_S and self._writer.idle:
            self._writer.put(self._register)

    @abstractmethod
    def _counts(self) -> dict[str, Any]:
        """What the models learned and left out."""
