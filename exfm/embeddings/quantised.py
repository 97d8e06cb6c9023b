"""Quantised tables: each row as int8 or int4 with a scale and a bias of its own, looked up by FBGEMM's kernels.

    w_rj ≈ s_r · q_rj + b_r,   q in 0 … 255 or 0 … 15,   b_r = min_j w_rj,   s_r = (max_j w_rj − b_r) / (255 or 15)

Bytes of a row of D columns: D + 8 at int8 (s and b in fp32), ⌈D/2⌉ + 4 at int4 (in fp16), against 4 · D of fp32. Narrow
rows gain little: 16 against 32 at D = 8. (Guan et al., Post-Training 4-bit Quantization on Embedding Tables,
arXiv 1911.02079.)
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.served import ServedTables, stretches
from exfm.embeddings.weights import table_weights

Kind = Literal["int8", "int4"]


class QuantisedTables(nn.Module):
    """Quantised embedding tables for serving. `kind`: int8 or int4.

    >>> from exfm.features.features import FeatureSet
    >>> from exfm.features.sparse import SparseFeature
    >>> from exfm.embeddings.served import ServedTables
    >>> tables = ServedTables(FeatureSet(sparse=[SparseFeature(name="ad", rows=10)]), 8, seed=0)
    >>> QuantisedTables(tables, "int8").nbytes, QuantisedTables(tables, "int4").nbytes
    (160, 80)
    """

    def __init__(self, tables: ServedTables, kind: Kind) -> None:
        super().__init__()
        self.kind: Kind = kind
        ops = torch.ops.quantized
        pack = ops.embedding_bag_byte_prepack if kind == "int8" else ops.embedding_bag_4bit_prepack
        self._look_up = (
            ops.embedding_bag_byte_rowwise_offsets if kind == "int8" else ops.embedding_bag_4bit_rowwise_offsets
        )
        names = list(tables.embedding_bags)
        self._places = [names.index(name) for name in tables.keys]
        for n, weight in enumerate(table_weights(tables).values()):
            self.register_buffer(f"rows_{n}", pack(weight))

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.buffers())

    def forward(self, sparse: KeyedJaggedTensor) -> Tensor:
        """Sum-pooled rows, (B, E), as in `ServedTables`."""
        pooled = [
            self._look_up(self.get_buffer(f"rows_{n}"), ids, own, include_last_offset=True)
            for n, (ids, own) in zip(self._places, stretches(sparse), strict=True)
        ]
        return torch.cat(pooled, dim=1)
