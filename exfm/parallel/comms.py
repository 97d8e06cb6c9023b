"""Communication between a model's ranks: precision, and bytes sent.

Look-up sends ids one way and pooled embeddings back, backward the gradients of those embeddings. Under `fp16` the
embeddings travel as float16, cut to its range of ±65504, and their gradients as bfloat16, which has float32's (Neo,
arXiv 2104.05158); both are float32 again before anything is added up. Ids, the dense part's gradients and replicated
tables travel as they are.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.types import CommOp, QuantizedCommCodecs

from exfm.parallel.layout import Comms


def codecs(comms: Comms) -> dict[str, QuantizedCommCodecs] | None:
    """TorchRec codecs for pooled embeddings and their gradients; None for no encoding.

    Not by TorchRec's own registry: it still replaces bfloat16 by float16 on gloo, which has learned it since.
    """
    if comms == "fp32":
        return None
    halves = QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.BF16)
    pooled = (CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL, CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER)
    return {op.name: get_qcomm_codecs(halves) for op in pooled}


class SentBytes(TorchDispatchMode):
    """Counts the bytes that this rank sends to others within a context, by collective and type. Slow: to measure, not
    to run.

    An all-reduce counts as what a ring of ranks sends, 2·(n − 1)/n of the tensor. Protocol overhead is left
    out. Raises NotImplementedError for a collective that it does not know, rather than ignore it.

    >>> import torch
    >>> from exfm.parallel.group import RankGroup
    >>> with RankGroup() as group, SentBytes() as sent:
    ...     dist.all_reduce(torch.ones(100))
    >>> sent.by_kind
    Counter({('allreduce', 'float32'): 0})
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_kind: Counter[tuple[str, str]] = Counter()

    @property
    def embeddings(self) -> int:
        """The part of the total that is pooled embeddings and their gradients."""
        return sum(n for (collective, kind), n in self.by_kind.items() if collective != "allreduce" and "float" in kind)

    @property
    def total(self) -> int:
        return sum(self.by_kind.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._count(func.overloadpacket.__name__, args)
        elif func.namespace == "_c10d_functional" and func.overloadpacket.__name__ != "wait_tensor":
            raise NotImplementedError(f"the bytes of {func} are not counted; teach SentBytes its arguments")
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: Any) -> None:
        if name in ("barrier", "monitored_barrier_", "check_for_nan"):
            return
        group = dist.ProcessGroup.unbox(next(a for a in args if not isinstance(a, (Tensor, list, tuple))))
        n, rank = group.size(), group.rank()
        tensors = [t for t in tree_flatten(args[0] if name in ("allreduce_", "broadcast_") else args[1])[0]]
        size = sum(map(_bytes, tensors))
        if name == "allreduce_":
            sent = size * 2 * (n - 1) // n
        elif name == "broadcast_":
            sent = size * (n - 1) if args[2] == rank else 0
        elif name in ("_allgather_base_", "allgather_"):
            sent = size * (n - 1)
        elif name == "_reduce_scatter_base_":
            sent = size * (n - 1) // n
        elif name in ("reduce_scatter_", "alltoall_"):
            sent = size - _bytes(tensors[rank])
        elif name == "alltoall_base_":
            rows = args[4] or [len(tensors[0]) // n] * n
            sent = size - (size * rows[rank] // sum(rows) if sum(rows) else 0)
        else:
            raise NotImplementedError(f"the bytes of c10d.{name} are not counted; teach SentBytes its arguments")
        self.by_kind[name.strip("_"), str(tensors[0].dtype).removeprefix("torch.")] += sent


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
