"""Quantised tables: each row as int8 or int4 with a scale and a bias of its own, looked up by FBGEMM's kernels.

    w_rj ≈ s_r · q_rj + b_r,   q in 0 … 255 or 0 … 15,   b_r = min_j w_rj,   s_r = (max_j w_rj − b_r) / (255 or 15)

Bytes of a row of D columns: D + 8 at int8 (s and b in fp32), ⌈D/2⌉ + 4 at int4 (in fp16), against 4 · D of fp32. Narrow
rows gain little: 16 against 32 at D = 8. (Guan et al., Post-Training 4-bit Quantization on Embedding Tables,
arXiv 1911.02079.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.served import slices_of
from exfm.embeddings.table import HasIds, Lookup, Table, Tables
from exfm.snapshots.delta import Codec, encoded
from exfm.snapshots.windows import TensorSource, whole_tensor


class QuantisedTables(nn.Module, Tables):
    """Quantised tables for serving, of `weights` by `<table>/weight`. Their tensors are `<table>/int8` or `…/int4`.

    >>> tables = [Table("ad", 10, 8, ("ad",))]
    >>> [QuantisedTables(tables, {"ad/weight": torch.zeros(10, 8)}, codec).nbytes for codec in ("int8", "int4")]
    [160, 80]
    """

    def __init__(self, tables: Sequence[Table], weights: Mapping[str, TensorSource], codec: Codec) -> None:
        super().__init__()
        self.tables, self.codec = tuple(tables), codec
        ops = torch.ops.quantized
        self._look_up = (
            ops.embedding_bag_byte_rowwise_offsets if codec == "int8" else ops.embedding_bag_4bit_rowwise_offsets
        )
        for n, table in enumerate(self.tables):
            self.register_buffer(f"rows_{n}", encoded(whole_tensor(weights[f"{table.name}/weight"]), codec))

    def tensors(self) -> dict[str, Tensor]:
        return {f"{table.name}/{self.codec}": self.get_buffer(f"rows_{n}") for n, table in enumerate(self.tables)}

    def send(self, batch: HasIds) -> KeyedJaggedTensor:
        return batch.sparse

    def lookup(self, sent: KeyedJaggedTensor) -> Lookup:
        return Lookup(self(sent))

    def forward(self, sparse: KeyedJaggedTensor) -> Tensor:
        """Sum-pooled rows, (B, E), as in `ServedTables`."""
        places = (n for n, table in enumerate(self.tables) for _ in table.keys)
        pooled = [
            self._look_up(self.get_buffer(f"rows_{n}"), ids, own, include_last_offset=True)
            for n, (ids, own) in zip(places, slices_of(sparse), strict=True)
        ]
        return torch.cat(pooled, dim=1)
