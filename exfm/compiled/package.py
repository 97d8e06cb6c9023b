"""A served student's machine code: one package for all versions of a shape.

A request costs the calls of some sixty operators more than what they compute; compiled it is one call. The weights are
inputs of the code, as ids and floats are, so one package (exfm/machine_code.py) serves all versions of the same
features, tasks, trunk and width, and is kept for later processes.

Sums are in another order, so a compiled version is compared with the student it is of before it answers.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.compiled.graph import Function, Graph, probe, weights_of
from exfm.errors import ModelError
from exfm.machine_code import MachineCode, machine_code
from exfm.models.served import ServedStudent

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
        run = Compiled(self._loaded[shape], weights_of(graph))
        for rows in PROBED:
            ids, dense = probe(served, rows)
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
        function, weights = Function(graph), [tensor.detach() for tensor in weights_of(graph)]
        return machine_code(
            lambda ids, dense, *weights: [function(ids, dense, list(weights))],
            lambda rows: [*probe(served, rows), *weights],
            [1, 0, *[None] * len(weights)],
            ["served", served.meta],
            "--compile",
            folder=self._folder,
            at_once=AT_ONCE,
        )


class Compiled:
    """((K, B) ids, (B, W)) -> logits (B, T), of one student; a copy of the student has one with the copy's weights."""

    def __init__(self, code: MachineCode, weights: list[Tensor]) -> None:
        self._code, self._weights = code, weights

    def __call__(self, ids_KB: Tensor, dense: Tensor) -> Tensor:
        (found,) = self._code([ids_KB, dense, *self._weights])
        return found


def _jagged(served: ServedStudent, ids_KB: Tensor) -> KeyedJaggedTensor:
    lengths = torch.ones(ids_KB.numel(), dtype=torch.int64)
    keys = list(served.features.keys)
    return KeyedJaggedTensor(keys=keys, values=ids_KB.reshape(-1), lengths=lengths, stride=ids_KB.shape[1])
