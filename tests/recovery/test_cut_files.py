"""Any one state file of a run, emptied or cut short: the run ends as it did, or says in one line which file it is."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pipelines.cli import console as cli
from pipelines.core.config.settings import dump
from pipelines.core.run_dir.roster import Presence
from streaming.store.files import read_json
from tests.support.pipelines.small_runs import Finished, small, to_the_end

pytestmark = pytest.mark.broker

COMMANDS = (("status",), ("students",), ("lake", "status"), ("dead-letters", "list"))
NOT_STATE = {"logs", "quarantine", "mlflow"}
"""What nobody reads back."""


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory) -> Finished:
    config = small(broker.bootstrap_servers, source__impressions=1200, pace__block_rows=256)
    root = tmp_path_factory.mktemp("whole") / "run"
    (root.parent / "config.yaml").write_text(dump(config))
    finished = to_the_end(config, root)
    roster = finished.run_dir.roster
    roster.answer(roster.ask("clicks", Presence.RUNNING), "`clicks` is in the run")
    return finished


def state_files(root: Path) -> list[Path]:
    """Files that a start may read, by their places below `root`."""
    files = (path.relative_to(root) for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    return sorted(p for p in files if p.parts[0] not in NOT_STATE and p.suffix not in (".lock", ".png"))


def cuts(finished: Finished, count: int, seed: int) -> Iterator[tuple[Path, int]]:
    """A file of each kind before another of one kind, and so many bytes of it that are left."""
    draw = random.Random(seed)
    kinds: dict[str, list[Path]] = {}
    for path in state_files(finished.run_dir.root):
        kinds.setdefault("/".join([*path.parts[:2], path.suffix]), []).append(path)
    queue: list[Path] = []
    for _ in range(count):
        if not queue:
            queue = [draw.choice(paths) for paths in kinds.values()]
            draw.shuffle(queue)
        path = queue.pop()
        size = (finished.run_dir.root / path).stat().st_size
        yield path, draw.choice([0, draw.randrange(size), size - 1])


def cut_copy(finished: Finished, scratch: Path, path: Path, left: int) -> Path:
    root = scratch / "run"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(finished.run_dir.root, root)
    with (root / path).open("r+b") as file:
        file.truncate(left)
    return root


def said(capsys: Any, *arguments: str) -> tuple[int, str]:
    """The exit code of a command in this process, and what it said on stderr."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left, patch("pipelines.live.loop.conclusion.draw"):
        cli.main([*arguments])
    return int(left.value.code or 0), capsys.readouterr().err


def check_start(finished: Finished, root: Path, path: Path, capsys: Any) -> None:
    """A start that finds a summary has nothing left to do, and reads little; one without learns on, and concludes."""
    concluded = (root / "summary.json").exists()
    config = finished.run_dir.root.parent / "config.yaml"
    code, err = said(capsys, "stream", str(config), "--run-dir", str(root), "--until-end", "--local")
    if code:
        check_refusal(code, err, path)
        return
    summary = read_json(root / "summary.json")
    assert (summary["students"], summary["counts"]) == (finished.summary["students"], finished.summary["counts"])
    if not concluded:
        again = Finished(finished.config, root)
        assert again.rows.equals(finished.rows)
        for table in ("dead_letters", "late_feedback"):
            assert again.side_table(table) == finished.side_table(table)


def check_refusal(code: int, err: str, path: Path) -> None:
    assert code in (1, 2), err
    assert "Traceback" not in err
    assert path.name in err or path.parent.name in err, err[-1500:]


def check_cuts(finished: Finished, scratch: Path, capsys: Any, count: int, seed: int, *, concluded: bool) -> None:
    for path, left in cuts(finished, count, seed):
        root = cut_copy(finished, scratch, path, left)
        if not concluded:
            (root / "summary.json").unlink()
        try:
            for command in COMMANDS if concluded else ():
                code, err = said(capsys, *command, "--run-dir", str(root))
                if code:
                    check_refusal(code, err, path)
            check_start(finished, root, path, capsys)
        except BaseException as error:
            error.add_note(f"{path}, cut after {left} bytes, {concluded=}")
            raise


def test_a_run_with_a_file_cut_short_is_as_it_was_or_names_the_file(finished, tmp_path, capsys):
    check_cuts(finished, tmp_path, capsys, 8, 1, concluded=True)


def test_a_run_with_a_file_cut_short_ends_equal_or_names_the_file(finished, tmp_path, capsys):
    check_cuts(finished, tmp_path, capsys, 3, 2, concluded=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("concluded", [True, False])
def test_many_more_files_cut_short(finished, tmp_path, capsys, concluded):
    check_cuts(finished, tmp_path, capsys, 120, 3, concluded=concluded)
