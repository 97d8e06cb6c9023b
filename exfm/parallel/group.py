"""The ranks of one model: processes that hold it together and step in lockstep.

Every method that says "a collective" must be called by all ranks, in the same order.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, ClassVar, Literal
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor

from exfm.errors import ConfigError


class RankGroup:
    """The ranks that hold one model together: a process group, with gloo on CPU, and with NCCL and gloo on CUDA.

    `device`: what this rank computes on. "cuda" is the GPU of its number, modulo those it sees.

    With one rank nothing is opened to the network. With more, rank 0 listens on `master_addr:master_port`, and all wait
    `join_s` for the last of them to come; a collective that takes longer than `timeout_s` fails. Groups of one process
    share its only process group, which is destroyed when the last of them is closed.

    Raises ConfigError for a rank outside its world, a missing port, or a second group of another shape.

    >>> with RankGroup() as group:
    ...     group.sum(torch.tensor([1.0]))
    tensor([1.])
    """

    _opened: ClassVar[int] = 0
    _store: ClassVar[dist.Store]
    _token: ClassVar[str] = ""
    _broadcasts: ClassVar[int] = 0

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        *,
        master_addr: str = "127.0.0.1",
        master_port: int | None = None,
        timeout_s: float = 30.0,
        join_s: float = 300.0,
        device: Literal["cpu", "cuda"] = "cpu",
    ):
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} is not in a world of {world_size}; ranks go from 0 to {world_size - 1}")
        if world_size > 1 and master_port is None:
            raise ConfigError(f"a world of {world_size} ranks needs a master_port they all know")
        self.rank, self.world_size = rank, world_size
        self.device = torch.device("cpu")
        if device == "cuda":
            if not torch.cuda.is_available():
                raise ConfigError("device cuda was asked for, but no GPU is seen here; use cpu")
            self.device = torch.device("cuda", rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        if dist.is_initialized():
            if (dist.get_rank(), dist.get_world_size()) != (rank, world_size):
                raise ConfigError(
                    f"rank {rank} of {world_size} was asked for in a process that is rank {dist.get_rank()} of "
                    f"{dist.get_world_size()}; close its other models first, or use another process"
                )
        else:
            if master_addr == "127.0.0.1":
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo resolves the host name, which may hang
            timeout = timedelta(seconds=timeout_s)
            store: dist.Store = dist.HashStore()
            if world_size > 1:
                assert master_port is not None
                join = timedelta(seconds=join_s)
                store = dist.TCPStore(master_addr, master_port, world_size, is_master=rank == 0, timeout=join)
            RankGroup._store, RankGroup._broadcasts, RankGroup._opened = store, 0, 0
            backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
            # Over the store, so that it is no collective: a word of this start of these ranks and of no other.
            if rank == 0:
                store.set("token", uuid4().hex)
            RankGroup._token = store.get("token").decode()
        RankGroup._opened += 1
        self._closed = False

    @property
    def token(self) -> str:
        """A word shared by all ranks of this group and unknown to earlier groups."""
        return RankGroup._token

    @property
    def process_group(self) -> dist.ProcessGroup:
        assert dist.group.WORLD is not None
        return dist.group.WORLD

    def sum(self, values: Tensor) -> Tensor:
        """The sum over ranks, on every rank; a collective."""
        if self.world_size > 1:
            values = values.clone()
            dist.all_reduce(values, group=self.process_group)
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """Values of every rank, alike in shape, on rank 0; nothing on the others. A collective."""
        if self.world_size == 1:
            return [values]
        gathered = [torch.empty_like(values) for _ in range(self.world_size)] if self.rank == 0 else None
        dist.gather(values, gathered, 0, group=self.process_group)
        return gathered or []

    def all_gather(self, values: Tensor) -> list[Tensor]:
        """Values of every rank, alike in shape, on every rank; a collective."""
        if self.world_size == 1:
            return [values]
        flat = values.reshape(-1)
        gathered = flat.new_empty(self.world_size * len(flat))  # gloo takes it in this shape only
        dist.all_gather_into_tensor(gathered, flat.contiguous(), group=self.process_group)
        return list(gathered.view(self.world_size, *values.shape))

    def tell(self, name: str, text: str) -> None:
        """Post a note for the other ranks. No collective: no rank waits, and `hear` may be called at any time."""
        self._store.set(f"note/{name}", text)

    def hear(self, name: str) -> str:
        """Wait for the note of this name and return it. Fails when rank 0, which keeps the notes, is gone.

        It may wait for hours, unlike a collective."""
        key = f"note/{name}"
        while True:
            try:
                self._store.wait([key], timedelta(seconds=60))  # in turns, so that an interrupt gets through
                return self._store.get(key).decode()
            except dist.DistNetworkError:
                raise
            except dist.DistStoreError:
                continue

    def broadcast(self, objects: list[Any]) -> None:
        """Replace the list's contents by rank 0's, anything that pickles. A collective, in which the others wait for
        rank 0 however long it takes to have it."""
        if self.world_size > 1:
            RankGroup._broadcasts += 1
            ready = f"broadcast/{RankGroup._broadcasts}"
            if self.rank == 0:
                self.tell(ready, "")
            self.hear(ready)
            dist.broadcast_object_list(objects, src=0, group=self.process_group, device=torch.device("cpu"))

    def close(self) -> None:
        """Leave the group. Further calls do nothing."""
        if not self._closed:
            self._closed = True
            RankGroup._opened -= 1
            if RankGroup._opened == 0:
                from torchrec.distributed import collective_utils  # here: a single rank needs nothing of it

                forget_hosts()
                collective_utils._INITIALIZED = False  # else TorchRec skips, in the next group, a collective of its own
                dist.destroy_process_group()

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def forget_hosts() -> None:
    """Drop the process groups (of one host's ranks, and across hosts) that TorchRec would keep beyond their parent's
    life."""
    from torchrec.distributed import comm

    comm._INTRA_PG = comm._CROSS_PG = None
