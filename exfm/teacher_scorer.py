"""A teacher that only scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from exfm.batch import Batch
from exfm.embeddings import copy_tables, load_weights
from exfm.features import FeatureSet
from exfm.teacher_net import TeacherConfig, TeacherNet


def snapshot_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What scoring needs of a teacher's state; the same tensors, not copies.

    >>> state = {"table/ad/weight": torch.ones(1), "table/ad/accumulator": torch.ones(1), "rng": torch.ones(1)}
    >>> list(snapshot_of(state))
    ['table/ad/weight']
    """
    kept = {name: t for name, t in state.items() if name.startswith("dense/")}
    return kept | {n: t for n, t in state.items() if n.startswith("table/") and n.endswith("/weight")}


class TeacherScorer:
    """A teacher that only scores: the network unsharded, with the weights of a snapshot.

    The same snapshot and batch give the same bits in every process on one CPU type, with the same number of threads.
    """

    def __init__(self, cfg: TeacherConfig, features: FeatureSet, tasks: Sequence[str]):
        self.tasks = tuple(tasks)
        self._net = TeacherNet(cfg, features, tasks, seed=0).eval()

    def load(self, snapshot: Mapping[str, Tensor]) -> None:
        """Score with these weights from now on. Raises ModelError where they are not of this configuration."""
        dense = {f"dense/{n}": p.detach() for n, p in self._net.named_parameters() if not n.startswith("tables.")}
        copy_tables(dense, {k: v for k, v in snapshot.items() if k.startswith("dense/")})
        load_weights(self._net.tables, tables_of(snapshot, "weight"))

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T) float32."""
        if not len(batch):  # TorchRec's unsharded collections cannot look up nothing
            return np.empty((0, len(self.tasks)), dtype=np.float32)
        with torch.inference_mode():
            return self._net(batch.sparse, batch.dense).numpy()


def tables_of(tensors: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """Of a state's tensors, those called `table/<name>/<what>`, by name."""
    return {k.split("/")[1]: v for k, v in tensors.items() if k.startswith("table/") and k.endswith(f"/{what}")}
