"""The part of a served student that is compiled: `ServedStudent.forward` without anything that depends on a batch's
values.

K keys, B examples, W floats of dense features, T tasks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from exfm.embeddings.served import ServedTables
from exfm.errors import ModelError
from exfm.features.features import FeatureSet
from exfm.interactions.interaction import Interaction
from exfm.models.served import ServedStudent
from exfm.models.stack import stacked


class Graph(nn.Module):
    """((K, B) ids, (B, W)) -> logits (B, T), of rows that have one id of every key.

    Raises ModelError for a student that has more than that.
    """

    def __init__(self, served: ServedStudent) -> None:
        super().__init__()
        if why := not_compiled(served):
            raise ModelError(f"the student cannot be compiled: it has {why}; serve it without --compile")
        assert isinstance(served.trunk, Interaction)
        self.trunk = served.trunk
        self.tables, self.serving, self.prior = served.tables, served.serving, served.prior
        self.wide, self._width = served.wide, served.width

    def forward(self, ids_KB: Tensor, dense: Tensor) -> Tensor:
        offset = self.prior.offset()
        assert isinstance(self.tables, ServedTables)
        e_BND = self.tables.single(ids_KB).unflatten(1, (-1, self._width))
        z_S = self.serving(self.trunk.exportable(e_BND, dense))
        z_S = z_S + offset.to(z_S.dtype)
        if self.wide is None:
            return z_S
        linear = self.wide.linear.single(ids_KB, dense)
        return stacked(self.wide.theta, offset.float(), z_S, linear + offset.float())


class Function(nn.Module):
    """The same of any weights: ((K, B) ids, (B, W), `weights_of` a graph) -> logits (B, T)."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._of, self._names = [graph], list(_state(graph))  # in a list it is no part of this

    def forward(self, ids_KB: Tensor, dense: Tensor, weights: list[Tensor]) -> Tensor:
        named = dict(zip(self._names, weights, strict=True))
        return functional_call(self._of[0], named, (ids_KB, dense))


def weights_of(graph: Graph) -> list[Tensor]:
    """The tensors themselves, not copies."""
    return list(_state(graph).values())


def _state(graph: Graph) -> dict[str, Tensor]:
    return dict(graph.named_parameters()) | dict(graph.named_buffers())


def not_compiled(served: ServedStudent) -> str | None:
    """Name the parts of a student that cannot be compiled; None if all can."""
    features: FeatureSet = served.features
    parts = {
        "tables of whole numbers": served.tables.codec != "fp32",
        "a table that is not `plain`": not all(table.plain for table in served.tables.tables),
        "sequences": features.sequence,
        "features of a history": features.history,
        "features whose statistics are learned": features.online,
    }
    return next((name for name, there in parts.items() if there), None)


def probe(served: ServedStudent, rows: int) -> tuple[Tensor, Tensor]:
    """Ids (K, B) within their tables, and floats (B, W), from a seed."""
    generator = torch.Generator().manual_seed(rows)
    tables = [table.rows for table in served.tables.tables for _ in table.keys]
    ids = torch.stack([torch.randint(0, int(most), (rows,), generator=generator) for most in tables])
    return ids, torch.rand(rows, len(served.features.dense_labels), generator=generator)
