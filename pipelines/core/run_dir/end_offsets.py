"""End offsets of external topics, recorded when a bounded run began or took a partition in, so that every restart
ends there too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from streaming.errors import DataLost
from streaming.position import Partition
from streaming.store.files import write_json
from streaming.store.seal import sealed, unsealed


def store_ends(path: Path, ends: Mapping[Partition, int]) -> None:
    """Record the offsets.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "end_offsets.json"
    >>> store_ends(path, {Partition("ads", 0): 17})
    >>> stored_ends(path)
    {Partition(topic='ads', partition=0): 17}
    """
    write_json(path, sealed({f"{p.topic}/{p.partition}": offset for p, offset in ends.items()}))


def stored_ends(path: Path) -> dict[Partition, int]:
    """The offsets recorded; empty where none were. Raises StreamingError when the file is damaged."""
    try:
        ends = {}
        for name, offset in unsealed(path.read_bytes()).items():
            topic, slash, partition = name.rpartition("/")
            if not slash or type(offset) is not int or offset < 0:
                raise ValueError(f"`{name}: {offset!r}` is no topic/partition with an offset")
            ends[Partition(topic, int(partition))] = offset
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataLost(
            f"{path} says where the input topics ended when this run began, and is damaged ({error}); put it back from "
            "a copy of the run directory, or delete it: the run then ends where the topics end now"
        ) from None
    return ends
