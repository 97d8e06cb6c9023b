"""A served student's machine code: one package for all versions of a shape.

A request costs the calls of some sixty operators more than what they compute; compiled it is one call. The weights are
inputs of the code, as ids and floats are, so one package (exfm/kernels/machine_code.py) serves all versions of the same
features, tasks, trunk and width, and is kept for later processes.

Sums are in another order, so a compiled version is compared with the student it is of before it answers.

K keys, B examples, W floats of dense features, T tasks.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.composed import ServedComposed
from exfm.embeddings.served import ServedTables
from exfm.errors import ModelError
from exfm.interactions.interaction import Interaction
from exfm.kernels.machine_code import MachineCode, machine_code
from exfm.models.served import ServedStudent
from exfm.models.stack import stacked

PROBED = (1, 100)
ROUNDING = 4e-6
"""How much of itself, or of 1 where it is smaller, a logit may differ by: float32 is exact to 1e-7 of a number."""
AT_ONCE = 2
"""Threads that run code of one shape without waiting: one answers, another compares a version that comes."""


class Packages:
    """Compiled code in a folder, by default in the user's cache; loaded code stays in memory, so another version of
    the same shape loads nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._loaded: dict[str, MachineCode] = {}

    def compile(self, served: ServedStudent) -> None:
        """Make the student score rows with one id of every key by compiled code; other rows are scored as before. The
        package is taken from the folder, or made, which takes a minute.

        Raises ModelError where there is no compiler, the student has what cannot be compiled, or the code differs.
        """
        graph = Graph(served).eval()
        shape = json.dumps(served.meta, sort_keys=True)
        if shape not in self._loaded:
            self._loaded[shape] = self._code(graph, served)
        run = partial(_run, self._loaded[shape], list(graph.tensors().values()))
        for rows in PROBED:
            ids, dense = _probe(served, rows)
            with torch.inference_mode():
                logits = served(_jagged(served, ids), dense)
                difference = ((run(ids, dense) - logits).abs() / logits.abs().clamp(min=1)).max().item()
            if not difference <= ROUNDING:
                raise ModelError(
                    f"the compiled student differs in a logit of {rows} rows by {difference:.3g} of it, and may by "
                    f"{ROUNDING:g}; serve it without --compile"
                )
        served.compiled = run

    def _code(self, graph: Graph, served: ServedStudent) -> MachineCode:
        tensors = graph.tensors()
        weights = [tensor.detach() for tensor in tensors.values()]
        return machine_code(
            lambda ids, dense, *new: [functional_call(graph, dict(zip(tensors, new, strict=True)), (ids, dense))],
            lambda rows: [*_probe(served, rows), *weights],
            [1, 0, *[None] * len(weights)],
            ["served", served.meta],
            "--compile",
            folder=self._folder,
            at_once=AT_ONCE,
        )


def _run(code: MachineCode, weights: list[Tensor], ids_KB: Tensor, dense: Tensor) -> Tensor:
    (logits_BT,) = code([ids_KB, dense, *weights])
    return logits_BT


class Graph(nn.Module):
    """The part that is compiled: `ServedStudent.forward` without anything that depends on a batch's values.

    ((K, B) ids, (B, W)) -> logits (B, T), of rows that have one id of every key.

    Raises ModelError for a student that has more than that.
    """

    def __init__(self, served: ServedStudent) -> None:
        super().__init__()
        features = served.features
        parts = {
            "tables of whole numbers": served.tables.codec != "fp32",
            "a table that is not `full`": isinstance(served.tables, ServedComposed),
            "sequences": features.sequence,
            "features of a history": features.history,
            "features whose statistics are learned": features.online,
        }
        for name, present in parts.items():
            if present:
                raise ModelError(f"the student cannot be compiled: it has {name}; serve it without --compile")
        assert isinstance(served.trunk, Interaction)
        self.trunk = served.trunk
        self.tables, self.serving, self.prior = served.tables, served.serving, served.prior
        self.wide, self._width = served.wide, served.cfg.width

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

    def tensors(self) -> dict[str, Tensor]:
        """The weights themselves, not copies, by name."""
        return dict(self.named_parameters()) | dict(self.named_buffers())


def _probe(served: ServedStudent, rows: int) -> tuple[Tensor, Tensor]:
    """Ids (K, B) within their tables, and floats (B, W), from a seed."""
    generator = torch.Generator().manual_seed(rows)
    tables = [table.rows for table in served.tables.tables for _ in table.keys]
    ids = torch.stack([torch.randint(0, int(most), (rows,), generator=generator) for most in tables])
    return ids, torch.rand(rows, len(served.features.dense_labels), generator=generator)


def _jagged(served: ServedStudent, ids_KB: Tensor) -> KeyedJaggedTensor:
    lengths = torch.ones(ids_KB.numel(), dtype=torch.int64)
    keys = list(served.features.keys)
    return KeyedJaggedTensor(keys=keys, values=ids_KB.reshape(-1), lengths=lengths, stride=ids_KB.shape[1])
