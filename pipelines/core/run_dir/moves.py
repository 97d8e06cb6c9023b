"""Moves of a run to other topics: the one that was begun, and those that are done.

move.json     {to, state, merge, sources, ends, config, entry}: a move that is decided; its command completes it
moves.json    [{from, to, at, lake_seq, read: [[topic, partition, offset]]}, …]: from which address to which, and up
              to which offsets the topics were read there
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pipelines.core.run_dir.object_storage import shown
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput, DataLost
from streaming.position import Partition
from streaming.program import command
from streaming.store.files import read_json, remove_file, write_json
from streaming.store.seal import sealed, unsealed


def begun_move(run_dir: RunDir) -> dict[str, Any] | None:
    """The move that was decided and is not complete. Raises DataLost where its record is damaged."""
    try:
        return unsealed(run_dir.move.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataLost(
            f"{run_dir.move} holds a move that was begun, and is damaged ({error}); put it back from a copy of the run "
            "directory"
        ) from None


def begin_move(run_dir: RunDir, move: dict[str, Any]) -> None:
    """Decide a move: from here on it can only be completed. Raises DiskFull."""
    write_json(run_dir.move, sealed(move))


def end_move(run_dir: RunDir, entry: dict[str, Any]) -> None:
    """Record that a move is complete."""
    entries = moves(run_dir)
    if entry not in entries:
        write_json(run_dir.moves, [*entries, entry])
    with suppress(FileNotFoundError):
        remove_file(run_dir.move)


def moves(run_dir: RunDir) -> list[dict[str, Any]]:
    """Completed moves, first to last."""
    return read_json(run_dir.moves) or []


def read_elsewhere(run_dir: RunDir) -> dict[Partition, int]:
    """Offsets of partitions below which a position names a record of topics that the run has moved away from."""
    below: dict[Partition, int] = {}
    for entry in moves(run_dir):
        for topic, number, offset in entry["read"]:
            place = Partition(topic, number)
            below[place] = max(offset, below.get(place, 0))
    return below


def require_complete(run_dir: RunDir) -> None:
    """Raise BadInput where a move was begun and is not complete."""
    if (move := begun_move(run_dir)) is not None:
        again = command("exfm", "broker", "move", shown(run_dir), "--to", move["to"])
        raise BadInput(
            f"a move of {shown(run_dir)} to {move['to']} was begun and is not complete; `{again}` completes it"
        )


def require_moved(run_dir: RunDir, servers: str | None) -> None:
    """Raise BadInput where a move is not complete, or `servers` are those that the run has moved away from."""
    require_complete(run_dir)
    if not (done := moves(run_dir)) or servers == done[-1]["to"]:
        return
    if servers in [entry["from"] for entry in done]:
        raise BadInput(
            f"the config names {servers or 'the embedded broker'}, and this run was moved to {done[-1]['to']} "
            f"({done[-1]['at']}); set kafka.bootstrap_servers to that ({run_dir.config} has it)"
        )
