"""Faults planted in the product, and how many histories it takes until the simulation alone has found each.

    python -m tests.simulation.planted            all of them, as a table
    python -m tests.simulation.planted NAME …     these only

They are the edits of tests/mutations that concern what lies between topics and lake, and further ones that crashes and
power cuts have to show. Each is made in a copy of the tree; nothing here is touched.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.mutations.attempts import copy_of_the_tree
from tests.mutations.edits import AUGMENTATION, COMMIT, MUTATIONS

MOST_HISTORIES = int(os.environ.get("HISTORIES", "10000"))
FEED = "pipelines/live/workers/augmentation/feed.py"

LISTED = (
    "newest snapshot in lockstep",
    "a logit for a label learned with another window",
    "another version recorded than the one that scored",
    "published before committed",
    "what a crash kept from being published is not made up",
    "a writer that another has followed goes on",
    "lake_seq not looked at again before a commit",
    "dead letters told again after a restart",
    "side tables do not know what they hold",
    "what a commit leaves behind is forgotten by a crash",
    "ties between topics go by arrival",
    "watermark over impressions only",
    "idle without the broker's word",
    "an idle partition is not asked again",
    "an outage leaves idle partitions idle",
    "no state before the first row",
    "where partitions begin is not kept",
    "a clock ahead moves event time",
    "too old impressions are let in",
    "late feedback counts",
    "feedback from outside its window counts",
    "conversions of rows that were not clicked",
    "a label that is unknown is negative",
    "every group waits for the longest window",
    "ids known are not known after a restart",
    "unread messages that retention deleted are skipped",
    "refused rows are dropped",
    "a new writer does not raise the epoch",
    "of duplicates the last one wins",
)
"""From tests/mutations/edits.py, by name."""


class Planted(NamedTuple):
    """`old` stands once in `file`; `new` is the fault."""

    name: str
    file: str
    old: str
    new: str


SHARD, SHARDS = "streaming/settlement/shard.py", "pipelines/live/workers/augmentation/shards.py"

FURTHER = (
    Planted(
        "a block takes one partition's rows before the other's are due",
        SHARD,
        "np.lexsort((numbers, deadlines))[:max_rows]",
        "np.lexsort((deadlines, numbers))[:max_rows]",
    ),
    Planted(
        "the cut is what the first rank has reached",
        SHARDS,
        "return Front(min(bounds), max(newest)",
        "return Front(bounds[0], max(newest)",
    ),
    Planted(
        "a row in another partition than its id's is taken", SHARD, "wrong = owner != number", "wrong = owner != owner"
    ),
    Planted(
        "files that ranks have written are committed before they are flushed",
        "streaming/lake/delta/table.py",
        "    flush_files(path / file.path for file in files)\n",
        "",
    ),
    Planted(
        "every rank numbers its rows from the block's first",
        SHARDS,
        '"first_seq": first_seqs[str(n)]',
        '"first_seq": how["first_seq"]',
    ),
    Planted(
        "the rows of a rank are committed, of the others only counted",
        "pipelines/live/workers/augmentation/shared_block.py",
        "            written += files\n",
        "            written = written or files\n",
    ),
    Planted(
        "a block's last part is published before the ranks have written theirs",
        "streaming/delivery/publisher.py",
        """        write(headers)
        for partition, header in enumerate(headers):
            self._out.write(partition, self._out.nothing, replace(header, part=parts[partition]))
""",
        """        for partition, header in enumerate(headers):
            self._out.write(partition, self._out.nothing, replace(header, part=parts[partition]))
        self._out.flush()
        write(headers)
""",
    ),
    Planted(
        "rows of a full buffer leave before what is as old has come",
        SHARD,
        "if front.full and cut == front.bound:\n        cut += 1",
        "if front.full and cut == front.bound:\n        cut += 2",
    ),
    Planted(
        "further ranks begin again where their own topics begin",
        SHARD,
        "return [row for row in rows if row[1] in numbers]",
        "return [row for row in rows if row[1] in numbers and 0 in numbers]",
    ),
    Planted(
        "a block passes one row more than it takes",
        "streaming/settlement/emission.py",
        'passed = int(np.searchsorted(np.cumsum(leaves), rows, side="right"))',
        'passed = int(np.searchsorted(np.cumsum(leaves), rows + 1, side="right"))',
    ),
    Planted(
        "rows of an added partition come before those that were merged",
        "streaming/intake/merge.py",
        "earliest=max(feed.running_max, self.watermark_ms)",
        "earliest=feed.running_max",
    ),
    Planted(
        "positions are stored without leader epochs",
        "streaming/intake/intake.py",
        '"epochs": self._epochs.state()',
        '"epochs": []',
    ),
    Planted(
        "the files of a commit record are moved into place before they are flushed",
        "streaming/delivery/outbox.py",
        '            sync_all([folder / name for name in (*_TABLES, "meta.json")])\n',
        "",
    ),
    Planted(
        "the files of a settlement state are moved into place before they are flushed",
        "streaming/settlement/state.py",
        "            staged.flush()\n",
        "",
    ),
    Planted(
        "commits are not flushed",
        "streaming/lake/delta/table.py",
        "        flush(self.path, range(self._flushed + 1, newest + 1))\n",
        "",
    ),
    Planted(
        "the folder of a commit record is not flushed",
        "streaming/store/files.py",
        "        part.rename(path)\n        _sync(path.parent)\n",
        "        part.rename(path)\n",
    ),
    Planted(
        "a folder that another process made is taken for one that lasts",
        "streaming/store/files.py",
        "        _flush_name(lowest, inode)\n",
        "        _flush_name(lowest, inode) if missing else None\n",
    ),
    Planted(
        "the state of the last commit is deleted before the next commit",
        FEED,
        "keep=[str(keep)])",
        "keep=[])",
    ),
    Planted(
        "commit records are deleted too early",
        COMMIT,
        "before=record.number - 1)",
        "before=record.number + 1)",
    ),
    Planted(
        "delivered before committed",
        COMMIT,
        """        self._commit_rows(block, number, counts)  # 2
        self._deliver(record)  # 3
""",
        """        self._deliver(record)  # 3
        self._commit_rows(block, number, counts)  # 2
""",
    ),
    Planted(
        "the state is saved after the commit",
        COMMIT,
        """        self._save_state(record)  # 1
        self._commit_rows(block, number, counts)  # 2
""",
        """        self._commit_rows(block, number, counts)  # 2
        self._save_state(record)  # 1
""",
    ),
    Planted(
        "a message that was read in part is passed over",
        "streaming/intake/merge.py",
        "SourcePosition(last.offset, last.row + 1) if rest else SourcePosition(last.offset + 1)",
        "SourcePosition(last.offset + 1)",
    ),
    Planted(
        "a message that was read in part is read again",
        "streaming/intake/merge.py",
        "        if feed.next_position is not None:\n            batch, refused",
        "        if False:\n            batch, refused",
    ),
    Planted(
        "event time begins anew after a restart",
        "streaming/intake/merge.py",
        'self.watermark_ms, self._next_order = state["watermark_ms"], state["next_order"]',
        'self._next_order = state["next_order"]',
    ),
    Planted(
        "event time is stored as far as it was read, not as far as it was settled",
        "streaming/intake/merge.py",
        "[*partition, *feed.next_position, feed.popped_max]",
        "[*partition, *feed.next_position, feed.running_max]",
    ),
    Planted(
        "labels are not restored",
        "streaming/settlement/settlement.py",
        "            marks.restore(segments, self._pending.stop)\n",
        "            marks.append(np.zeros(self._pending.stop - self._pending.first, marks.dtype))\n",
    ),
    Planted(
        "claimed feedback is claimed again after a restart",
        "streaming/settlement/orphans.py",
        "        self.claimed.restore(claimed, self.rows.stop)\n",
        "        self.claimed.append(np.zeros(self.rows.stop - self.rows.first, np.uint8))\n",
    ),
    Planted(
        "counts begin anew after a restart",
        "streaming/settlement/settlement.py",
        'self._counts = Counter(meta["counts"])',
        "self._counts = Counter()",
    ),
    Planted(
        "windows close a millisecond early",
        "streaming/settlement/emission.py",
        "pending.key_time.search(watermark_ms - group.window_ms - self._lateness)",
        "pending.key_time.search(watermark_ms - group.window_ms - self._lateness + 1)",
    ),
    Planted(
        "transactions are read before they are decided",
        "streaming/kafka/reader.py",
        '        isolation_level="read_committed",\n',
        "",
    ),
    Planted(
        "a block that was published in part counts as published",
        "streaming/delivery/publisher.py",
        "if header.part == header.parts - 1:",
        "if True:",
    ),
    Planted(
        "the states of a writer's own epoch are deleted with those of earlier ones",
        COMMIT,
        "            if states < self.states:",
        "            if states <= self.states:",
    ),
    Planted(
        "labels change after they were stored and are not stored again",
        "streaming/settlement/marks.py",
        "        self._deltas.change(numbers, self.stop - self.first)\n",
        "",
    ),
    Planted(
        "feedback waits for its impression for a window only",
        "streaming/settlement/orphans.py",
        "waited = keys[query] - self.rows.key_time[number] <= self._horizon",
        "waited = keys[query] - self.rows.key_time[number] <= self._horizon // 2",
    ),
    Planted(
        "rows that are due are held back for good at the end",
        FEED,
        "return self._at_end and not self._more",
        "return self._at_end",
    ),
    Planted(
        "what was flushed is not put to the store",
        "streaming/store/files.py",
        "    list(_flushing(os.getpid()).map(flush, paths))\n    put_flushed(paths)\n",
        "    list(_flushing(os.getpid()).map(flush, paths))\n",
    ),
    Planted(
        "a folder that is moved into place is not put to the store",
        "streaming/store/files.py",
        "        put_moved(part, path)\n        shutil.rmtree",
        "        shutil.rmtree",
    ),
    Planted(
        "the last dead letters of a stream are not delivered",
        AUGMENTATION,
        "            self._commit(rows)  # scored → committed; at the end, what came after the last row\n",
        "            if not ended:\n                self._commit(rows)\n",
    ),
)


def all_planted() -> list[Planted]:
    listed = {mutation.name: mutation for mutation in MUTATIONS}
    return [*(Planted(m.name, m.file, m.old, m.new) for m in map(listed.__getitem__, LISTED)), *FURTHER]


def found_after(planted: Planted, tree: Path, jobs: int) -> tuple[int | None, str]:
    """After how many histories the simulation finds it, and its words; None: it does not."""
    path = tree / planted.file
    text = path.read_text()
    assert text.count(planted.old) == 1, f"{planted.name}: its place in {planted.file} is gone"
    path.write_text(text.replace(planted.old, planted.new))
    options = ["--histories", str(MOST_HISTORIES), "--jobs", str(jobs), "--first"]
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.simulation", *options],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    finally:
        path.write_text(text)
    found = re.search(r"^seed (\d+): (.*)", ran.stdout, re.MULTILINE)
    if found is None:
        return None, (ran.stdout + ran.stderr).replace("\n", " ")[-400:]
    return int(found[1]) + 1, found[2]


def main(wanted: list[str]) -> int:
    chosen = [each for each in all_planted() if not wanted or each.name in wanted]
    jobs, missed = int(os.environ.get("JOBS", "1")), 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_of_the_tree(tree)
        for planted in chosen:
            histories, words = found_after(planted, tree, jobs)
            missed += histories is None
            said = words[:160] if histories is not None else words[-400:]
            print(f"| {planted.name} | {histories or 'not found'} | {said} |", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
