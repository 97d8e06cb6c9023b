"""Object stores: whole files under keys, without folders and without renaming.

One interface with two implementations: a local folder, and a bucket of S3 or of what speaks its protocol (`s3.py`).
Whoever needs "only if nobody was there before me" has `put_if_absent`, of which one of several callers succeeds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

from streaming.errors import BadInput

PART_SUFFIX = ".part"
"""Ends the temporary name of an unfinished file or folder. One that a killed process left behind may be deleted."""


class StoredObject(NamedTuple):
    """An object in a listing. `tag` changes with its content: the store's `tag_of` it, or another text where the store
    makes its own; `age_s`: seconds since it was put, by the store's clock."""

    key: str
    bytes: int
    tag: str
    age_s: float


class ObjectStore(Protocol):
    """Objects below one address. Keys are relative, parts separated by `/`.

    Every method raises StreamingError where the store does not answer, and BadInput where it refuses us.
    """

    url: str

    def read(self, key: str) -> bytes:
        """Content of an object. Raises FileNotFoundError."""
        ...

    def fetch(self, key: str, path: Path) -> None:
        """Write an object's content to the file `path`. Raises FileNotFoundError."""
        ...

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Objects whose keys begin with `prefix`, ordered by key."""
        ...

    def put(self, key: str, content: bytes | Path) -> str:
        """Store bytes, or the content of a file, over any object of that key; returns its tag. It is whole or not
        there."""
        ...

    def tag_of(self, path: Path) -> str:
        """The tag that the content of a file has here."""
        ...

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Store bytes unless the key is taken by other content; False then. Of several callers one succeeds."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are passed over."""
        ...

    def delta_options(self) -> dict[str, str]:
        """Storage options of delta-rs to reach the store, beyond those that it finds itself."""
        ...


class FolderStore:
    """Objects as files below a folder.

    >>> import tempfile
    >>> store = FolderStore(Path(tempfile.mkdtemp()))
    >>> _ = store.put("a/b", b"one")
    >>> store.put_if_absent("a/b", b"two"), store.put_if_absent("a/b", b"one")
    (False, True)
    >>> [(found.key, found.bytes) for found in store.list("a/")], store.read("a/b")
    ([('a/b', 3)], b'one')
    >>> store.delete(["a/b", "a/c"])
    >>> list(store.list())
    []
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = root.as_uri()

    def read(self, key: str) -> bytes:
        return (self._root / key).read_bytes()

    def fetch(self, key: str, path: Path) -> None:
        shutil.copyfile(self._root / key, path)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        now_s = self._now_s() if self._root.is_dir() else 0.0
        for path in sorted((self._root / prefix.rpartition("/")[0]).rglob("*"), key=Path.as_posix):
            key = path.relative_to(self._root).as_posix()
            if not key.startswith(prefix) or path.name.endswith(PART_SUFFIX) or not path.is_file():
                continue
            with suppress(FileNotFoundError):  # deleted since
                stat = path.stat()
                tag = _tag_at(path, stat.st_mtime_ns, stat.st_ino)
                yield StoredObject(key, stat.st_size, tag, now_s - stat.st_mtime)

    def put(self, key: str, content: bytes | Path) -> str:
        part = self._written(key, content)
        tag = md5_of(part)
        part.replace(self._root / key)
        return tag

    def tag_of(self, path: Path) -> str:
        return md5_of(path)

    def put_if_absent(self, key: str, content: bytes) -> bool:
        part = self._written(key, content)
        try:
            os.link(part, self._root / key)
        except FileExistsError:
            return self.read(key) == content
        finally:
            part.unlink()
        return True

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            (self._root / key).unlink(missing_ok=True)

    def delta_options(self) -> dict[str, str]:
        return {}

    def _written(self, key: str, content: bytes | Path) -> Path:
        """The content, flushed, under a name of its own."""
        place = self._root / key
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".{place.name}.{uuid4().hex}{PART_SUFFIX}")
        with part.open("wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())
        return part

    def _now_s(self) -> float:
        """The clock of the folder's file system, which may be another machine's."""
        probe = self._root / f".now.{uuid4().hex}{PART_SUFFIX}"
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)


def md5_of(path: Path) -> str:
    """MD5 of a file's content, in hex: what most stores call an object's tag."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@lru_cache(maxsize=1 << 16)
def _tag_at(path: Path, changed_ns: int, inode: int) -> str:
    """MD5 of a file that is never written in place, read once."""
    return md5_of(path)


def is_url(text: str | os.PathLike[str]) -> bool:
    """True for an address with a scheme, also one that went through `Path`, which takes a slash away.

    >>> is_url("s3://bucket/runs/x"), is_url(Path("s3://bucket/x")), is_url("runs/x"), is_url("./a:b/c")
    (True, True, False, False)
    """
    scheme, colon, _ = os.fspath(text).partition(":/")
    return bool(colon) and scheme.isalnum() and len(scheme) > 1


def normalised(url: str | os.PathLike[str]) -> str:
    """An address in its one spelling: scheme, bucket and path without a slash at the end.

    >>> normalised(Path("s3://bucket/runs/x/")), normalised("file:///mnt/runs/x")
    ('s3://bucket/runs/x', 'file:///mnt/runs/x')

    Raises BadInput for a scheme that is not supported, and for one without bucket or path.
    """
    scheme, _, rest = os.fspath(url).partition(":/")
    text = f"{scheme.lower()}:/{'/' * (scheme.lower() == 'file')}/{rest.strip('/')}"
    parts = urlsplit(text)
    if parts.scheme not in ("s3", "file"):
        raise BadInput(
            f"{text}: storage by `{parts.scheme}://` is not supported; a run directory is a folder, s3://BUCKET/PATH "
            "(S3, and what speaks its protocol: MinIO, Ceph, R2, …), or file:///PATH of a folder that several machines "
            "share"
        )
    if parts.scheme == "s3" and (not parts.netloc or not parts.path.strip("/")):
        missing = "bucket" if not parts.netloc else "path in the bucket"
        raise BadInput(f"{text} names no {missing}; a run on object storage is s3://BUCKET/PATH, as s3://ads/runs/demo")
    if parts.scheme == "file" and not parts.path.strip("/"):
        raise BadInput(f"{text} names no folder; give file:///PATH")
    return text


def store_at(url: str) -> ObjectStore:
    """The store at an address as `normalised` gives it. Raises BadInput as that does, and where a package is
    missing."""
    parts = urlsplit(normalised(url))
    if parts.scheme == "file":
        return FolderStore(Path(parts.path))
    from streaming.store.s3 import S3Store

    return S3Store(parts.netloc, parts.path.strip("/"))
