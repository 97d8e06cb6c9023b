"""An object store in memory, and machines whose folders are working copies of the run that lies there.

The store outlives machines. A request to it is a point, as a flush is; it may be refused, or be carried out and its
answer lost. A power cut takes a machine with all its files: the service starts again on an empty one. What is the
product's own: `WorkingCopy`, which says what is put, when, and who may put it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from hashlib import md5
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import streaming.store.working_copy as working_copy_module
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import StreamingError
from streaming.store.objects import StoredObject
from streaming.store.working_copy import MARKER, WorkingCopy, open_copy
from tests.simulation.scheduler import Process, Scheduler

URL = "memory://bucket/run"
FORGOTTEN_S = 2.0
"""After that time of the simulation's clock an object that is not on the machine is old."""
T = TypeVar("T")


class _Object(NamedTuple):
    content: bytes
    put_s: float


class Bucket:
    """`ObjectStore`."""

    url = URL

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._objects: dict[str, _Object] = {}
        self._refused, self._carried_out = 0, False
        self.refusals = 0

    def refuse(self, requests: int, *, carried_out: bool) -> None:
        """The next requests fail; `carried_out`: their answers alone are lost."""
        self._refused, self._carried_out = requests, carried_out

    def calm(self) -> None:
        """No request fails any more."""
        self._refused = 0

    def holds(self, key: str) -> bool:
        return key in self._objects

    def read(self, key: str) -> bytes:
        return self._request(f"read {key}", lambda: self._at(key).content)

    def fetch(self, key: str, path: Path) -> None:
        path.write_bytes(self.read(key))

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        now_s = self._scheduler.clock()
        yield from self._request(
            f"list {prefix}",
            lambda: [
                StoredObject(key, len(found.content), _tag(found.content), now_s - found.put_s)
                for key, found in sorted(self._objects.items())
                if key.startswith(prefix)
            ],
        )

    def put(self, key: str, content: bytes | Path) -> str:
        value = content if isinstance(content, bytes) else content.read_bytes()
        self._request(f"put {key}", lambda: self._store(key, value))
        return _tag(value)

    def tag_of(self, path: Path) -> str:
        return _tag(path.read_bytes())

    def put_if_absent(self, key: str, content: bytes) -> bool:
        def store() -> bool:
            if key not in self._objects:
                self._store(key, content)
            return self._objects[key].content == content

        return self._request(f"put {key} if it is absent", store)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._request(f"delete {key}", lambda key=key: self._objects.pop(key, None))

    def delta_options(self) -> dict[str, str]:
        return {}

    def _at(self, key: str) -> _Object:
        if key not in self._objects:
            raise FileNotFoundError(key)
        return self._objects[key]

    def _store(self, key: str, content: bytes) -> None:
        self._objects[key] = _Object(content, self._scheduler.clock())

    def _request(self, what: str, carry_out: Callable[[], T]) -> T:
        self._scheduler.point(what)
        fails = self._refused > 0 and self._scheduler.process is not None
        if not fails or self._carried_out:
            result = carry_out()
        if fails:
            self._refused -= 1
            self.refusals += 1
            raise StreamingError(f"the store did not answer: {what}")
        self._scheduler.point(f"{what}: done")
        return result


class Machines:
    """The machines of a run at the store, one after another; each process has a working copy of its own object, as
    processes have."""

    def __init__(self, scheduler: Scheduler, folder: Path) -> None:
        self.bucket = Bucket(scheduler)
        self._scheduler, self._folder = scheduler, folder
        self._number = 0
        self._copies: dict[tuple[int | None, Path], WorkingCopy] = {}
        self._of: dict[int, Path] = {}
        self._coordinator: WorkingCopy | None = None
        self._starting: set[Path] = set()
        self.root = self._new()

    def _new(self) -> Path:
        self._number += 1
        root = self._folder / f"machine-{self._number}"
        root.mkdir()
        self._coordinator = None
        return root

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.root)

    def place(self, process: Process) -> None:
        """Choose the machine of a process that starts: mostly the last one's, unless a coordinator stands still there
        in the middle of its start, and holds the run's lock."""
        if self._scheduler.random.random() < 0.15 or self.root in self._starting:
            self.root = self._new()
        self._of[process.number] = self.root

    def begin(self, process: Process, tables: Iterable[str]) -> None:
        """Start it: by the coordinator that is there, or by one that takes the run over."""
        root = self._of[process.number]
        if self._coordinator is None or self._scheduler.random.random() < 0.5:
            self._starting.add(root)
            if root == self.root:  # where it fails, another one starts
                self._coordinator = None
            try:
                copy = open_copy(root, URL)
                copy.take_over()
                copy.pull()
            finally:
                self._starting.discard(root)
            if root == self.root:  # it did not stand still until another machine had the run
                self._coordinator = WorkingCopy(root, URL, copy.epoch)
        for table in tables:  # which have logs, and so have folders where the store is followed
            (root / table).mkdir(parents=True, exist_ok=True)

    def mirror(self) -> None:
        """As the coordinator does it now and then."""
        if self._coordinator is not None:
            self._coordinator.mirror()

    def lose(self) -> None:
        """The machine is gone, with all its files."""
        shutil.rmtree(self.root)
        self.root = self._new()

    def is_here(self, process: Process) -> bool:
        return self._of.get(process.number) == self.root

    def key(self, path: str | Path) -> str:
        """The key of a file, folder or table, on whatever machine, or at the store."""
        text = str(path)
        if text.startswith(URL):
            return text.removeprefix(URL + "/")
        return "/".join(Path(text).relative_to(self._folder).parts[1:])

    def stand_ins(self) -> list[tuple[Any, str, Any]]:
        """What stands where the product looks for a store, for processes, and for time."""
        return [
            (working_copy_module, "store_at", lambda url: self.bucket),
            (working_copy_module, "_opened", lambda root, process: self._copy(root)),
            (working_copy_module, "_is_gone", lambda who: True),  # silent for long enough
            (working_copy_module, "_putting", lambda process: SimpleNamespace(map=lambda work, all: [*map(work, all)])),
            (working_copy_module, "FORGOTTEN_S", FORGOTTEN_S),
        ]

    def _copy(self, root: Path) -> WorkingCopy:
        process = self._scheduler.process
        key = (None if process is None else process.number, root)
        if key not in self._copies:
            marked = json.loads((root / MARKER).read_text())
            self._copies[key] = WorkingCopy(root, marked["url"], marked["epoch"])
        return self._copies[key]


def _tag(content: bytes) -> str:
    return md5(content, usedforsecurity=False).hexdigest()
