"""Tables of whole numbers: each row as int8 or int4 with a scale and a bias of its own, looked up by FBGEMM's kernels.

    w_rj ≈ s_r · q_rj + b_r,   q in 0 … 255 or 0 … 15,   b_r = min_j w_rj,   s_r = (max_j w_rj − b_r) / (255 or 15)

Bytes of a row of D columns: D + 8 at int8 (s and b in fp32), ⌈D/2⌉ + 4 at int4 (in fp16), against 4 · D of fp32. Narrow
rows gain little: 16 against 32 at D = 8. (Guan et al., Post-Training 4-bit Quantization on Embedding Tables,
arXiv 1911.02079.)
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.tables import stretches

Kind = Literal["int8", "int4"]


class QuantisedTables(nn.Module):
    """The tables of a collection, to be looked up only. `kind`: int8 or int4.

    >>> from exfm.data import FeatureSet, SparseFeature
    >>> from exfm.embeddings import embedding_bags
    >>> tables = embedding_bags(FeatureSet(sparse=[SparseFeature(name="ad", rows=10)]), 8, seed=0)
    >>> QuantisedTables(tables, "int8").nbytes, QuantisedTables(tables, "int4").nbytes
    (160, 80)
    """

    def __init__(self, collection: EmbeddingBagCollection, kind: Kind) -> None:
        super().__init__()
        self.kind: Kind = kind
        ops = torch.ops.quantized
        pack = ops.embedding_bag_byte_prepack if kind == "int8" else ops.embedding_bag_4bit_prepack
        self._look_up = (
            ops.embedding_bag_byte_rowwise_offsets if kind == "int8" else ops.embedding_bag_4bit_rowwise_offsets
        )
        self._places = [
            (n, key) for n, config in enumerate(collection.embedding_bag_configs()) for key in config.feature_names
        ]
        for n, config in enumerate(collection.embedding_bag_configs()):
            self.register_buffer(f"rows_{n}", pack(collection.embedding_bags[config.name].weight.detach()))

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.buffers())

    def forward(self, sparse: KeyedJaggedTensor) -> Tensor:
        """Sum-pooled rows, (B, E), as `look_up` has them."""
        pooled = [
            self._look_up(self.get_buffer(f"rows_{n}"), ids, own, include_last_offset=True)
            for (n, _), (ids, own) in zip(self._places, stretches(sparse), strict=True)
        ]
        return torch.cat(pooled, dim=1)
