"""What is checked before anything is started: the run directory, its disk, its config, that nobody else is there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from pipelines.config import Config, decisive, dump, evolution, hash_of, moved, parse, remember
from pipelines.run_dir import RunDir
from streaming.disk import file_lock, read_json, sync, write_text
from streaming.errors import BadInput, StreamingError

GB = 1 << 30


def prepare(
    config: Config,
    run_dir: RunDir,
    *,
    evolve: bool = False,
    drop: Collection[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Make a locked run directory ready, or say what stands in the way. Raises BadInput or StreamingError (disk).

    `evolve`: features may differ from those the run was started with, where there is a rule; those in `drop` may go.
    """
    _disk(run_dir.root, config.resources.min_free_disk_gb)
    _same_config(config, run_dir, evolve, drop, say)
    run_dir.logs.mkdir(exist_ok=True)
    write_text(run_dir.config, dump(config))
    sync(run_dir.root)


def writable(folder: Path, what: str = "the run directory", option: str = "--run-dir") -> None:
    """Make a folder, where there is none yet. Raises BadInput where nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise BadInput(
            f"cannot write into {what} {folder} ({error.strerror}); "
            f"give another one with {option}, or mend its permissions"
        ) from None


def _disk(root: Path, needed_gb: float) -> None:
    free = shutil.disk_usage(root).free / GB
    if free < needed_gb:
        raise StreamingError(
            f"{free:.1f} GB are free on the disk of {root}, {needed_gb:g} GB are wanted before a run starts "
            "(resources.min_free_disk_gb); free some, or give another disk with --run-dir"
        )


def _same_config(
    config: Config, run_dir: RunDir, evolve: bool, drop: Collection[str], say: Callable[[str], None]
) -> None:
    if not run_dir.config.exists():
        return
    written = _written(run_dir)
    before = moved(written)
    differing = list(_differences(decisive(before), config.decisive))
    if not differing and hash_of(written) == config.hash:
        return
    way = ""
    try:
        started_with = parse(before, str(run_dir.config))
        lines = evolution(started_with, config, drop)
    except BadInput as error:
        if evolve:
            way = f" --evolve cannot: {error}."
    else:
        if started_with.hash == config.hash:
            lines = ["an earlier release started this run; the settings that came since change nothing of it"]
        if evolve or started_with.hash == config.hash:
            for line in lines:
                say(line)
            remember(run_dir, hash_of(written), config.hash, lines)
            return
        way = f" Or go on from where it is with --evolve{': ' * bool(lines)}{'; '.join(lines)}."
    shown = "; ".join(differing[:5]) + ("; …" if len(differing) > 5 else "")
    raise BadInput(
        f"{run_dir.root} holds a run under another config ({shown}). Resume it with the config it was started with "
        f"({run_dir.config}), give another --run-dir, or start over with --fresh (deletes what is there).{way}"
    )


def _written(run_dir: RunDir) -> dict[str, Any]:
    """The config that the run has, in the words of the release that wrote it."""
    try:
        settings = yaml.safe_load(run_dir.config.read_text())
        if isinstance(settings, dict):
            return settings
        flaw = "no mapping of settings"
    except (yaml.YAMLError, ValueError) as error:
        flaw = str(error).splitlines()[0]
    raise BadInput(
        f"{run_dir.config} is no longer YAML ({flaw}); put back what the run was started with, give another --run-dir, "
        "or start over with --fresh (deletes what is there)"
    )


def _differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (a, b) in enumerate(zip(before, now, strict=True)):
            yield from _differences(a, b, f"{path}.{index}")
    elif before != now:
        yield f"{path} was {_short(before)}, is {_short(now)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "…"


def _pid(run_dir: RunDir) -> Any:
    try:
        value = read_json(run_dir.status)
    except StreamingError:
        value = None
    return value.get("pid", "unknown") if isinstance(value, dict) else "unknown"


@contextmanager
def locked(run_dir: RunDir) -> Iterator[None]:
    """One coordinator per run directory; the lock goes with the process, however it ends.

    Raises BadInput where another process has it, or the directory cannot be written.
    """
    writable(run_dir.root)
    with file_lock(run_dir.lock) as held:
        if not held:
            raise BadInput(
                f"{run_dir.root} is being run by another process (pid {_pid(run_dir)}); "
                f"see `exfm status --run-dir {run_dir.root}`, end it with `exfm stop --run-dir {run_dir.root}`"
            )
        yield
