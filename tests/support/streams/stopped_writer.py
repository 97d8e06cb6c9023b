"""A process that is stopped (SIGSTOP) inside a commit, at a place that its caller names.

    python -m tests.support.streams.stopped_writer lake   PATH COMMITS PLACE TABLE NTH
    python -m tests.support.streams.stopped_writer worker RUN_DIR -     PLACE TABLE NTH

PLACE is `before` (all is checked, nothing written), `after` (Delta has the commit, we do not know yet) or `never`;
TABLE the table that is written to, NTH which of its commits. Says `open`, then `end`, or what stopped it, on stdout.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streaming.errors import StreamingError
from streaming.lake.delta import table as delta_table


def stop_at(place: str, table: str, nth: int) -> None:
    """Stop this process at its `nth` commit of rows to `table`."""
    write, seen = delta_table.append_rows, 0

    def stopping(handle: Any, rows: Any, **given: Any) -> None:
        nonlocal seen
        mine = Path(handle.table_uri.removeprefix("file://")).name == table and rows.num_rows > 0
        seen += mine
        here = mine and seen == nth
        if here and place == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        write(handle, rows, **given)
        if here and place == "after":
            os.kill(os.getpid(), signal.SIGSTOP)

    if place != "never":
        delta_table.append_rows = stopping  # type: ignore[assignment]


def write_lake(path: str, commits: int) -> None:
    """The same rows, letters and numbers, whoever runs it."""
    from streaming.lake.side_tables import DEAD_LETTERS, SideTable
    from streaming.lake.writer import LakeTable
    from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
    from tests.support.streams.lake_rows import SCHEMA, rows

    writer = LakeTable(path, SCHEMA).open_writer()
    letters = SideTable(Path(path).parent, DEAD_LETTERS, DEAD_LETTER_SCHEMA)
    print("open", flush=True)

    def deliver(number: int) -> None:
        letter = DeadLetter("impression", "undecodable", "ads", 0, number, 0, "", b"?")
        letters.append(letters_to_batch([letter]), number=number)

    if writer.state >= 0:
        deliver(writer.state)
    while writer.state + 1 < commits:
        number, first = writer.state + 1, writer.last_lake_seq + 1
        writer.commit(rows(first, 100), state=number, metadata={})
        deliver(number)


def run_worker(root: str) -> None:
    from pipelines.core.config.settings import load
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.live.workers.augmentation.worker import AugmentationWorker

    run_dir = RunDir(Path(root))
    worker = AugmentationWorker(load(run_dir.config), run_dir, until_end=True)
    worker.open()
    print("open", flush=True)
    while not worker.done:
        worker.step()
    worker.close()


def main() -> None:
    what, path, commits, place, table, nth = sys.argv[1:]
    stop_at(place, table, int(nth))
    work: Callable[[], None] = (lambda: write_lake(path, int(commits))) if what == "lake" else lambda: run_worker(path)
    try:
        work()
    except StreamingError as error:
        print(error, flush=True)
        sys.exit(1)
    print("end", flush=True)


if __name__ == "__main__":
    main()
