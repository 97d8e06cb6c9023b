"""The trace that the reference implementation of DLRM prints (tests/fixtures/dlrm_reference_trace.json)."""

import itertools
import json

import pyarrow as pa
import pytest
import torch
from torch import nn

from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.interactions.registry import TrunkConfig, build_trunk
from exfm.models.units import Units
from tests.support.models.collections import embedding_bags
from tests.support.places import FIXTURES

TRACE = json.loads((FIXTURES / "dlrm_reference_trace.json").read_text())
FEATURES = FeatureSet(
    sparse=[SparseFeature(name=f"c{f}", rows=rows, transform="index") for f, rows in enumerate((4, 3, 2))],
    dense=[DenseFeature(name=f"i{d}") for d in range(4)],
)


class Reference(nn.Module):
    """Our tables, units and DLRM trunk as a student has them, with the reference's last layer as its head."""

    def __init__(self):
        super().__init__()
        self.tables = embedding_bags(FEATURES, 2, seed=0)
        self.units = Units(FEATURES, 2, seed=0)
        self.trunk = build_trunk(TrunkConfig(name="dlrm", bottom=(3,), mlp=(4, 2)), FEATURES, 2, seed=0)
        self.head = nn.Linear(2, 1)

    def forward(self, batch):
        e = self.units(self.tables(batch.sparse).values(), batch.sparse)
        return torch.sigmoid(self.head(self.trunk(e, batch.dense)))[:, 0]

    def weights(self):
        layers = [m for m in (*self.trunk.bottom, *self.trunk.top, self.head) if isinstance(m, nn.Linear)]
        return [bag.weight for bag in self.tables.embedding_bags.values()] + [
            p for m in layers for p in (m.weight, m.bias)
        ]


def printed(when):
    """The printed weights in the order of `Reference.weights`."""
    trace = TRACE[when]
    return [
        torch.tensor(w) for w in (*trace["tables"], *(p for layer in trace["bottom"] + trace["top"] for p in layer))
    ]


def batch_of(step):
    columns = {f"i{d}": pa.array([row[d] for row in step["dense"]], pa.float32()) for d in range(4)}
    columns |= {f"c{f}": pa.array(bags, pa.list_(pa.int64())) for f, bags in enumerate(step["ids"])}
    return BatchBuilder(FEATURES, [])(pa.table(columns))


def follow(change=lambda model: None):
    """Three steps of SGD: how far, at most, our losses and then our weights are from those printed."""
    model = Reference()
    with torch.no_grad():
        for mine, theirs in zip(model.weights(), printed("initial"), strict=True):
            mine.copy_(theirs)
    change(model)
    sgd = torch.optim.SGD(model.parameters(), lr=TRACE["learning_rate"])
    apart = []
    for step in TRACE["batches"]:
        loss = nn.functional.mse_loss(model(batch_of(step)), torch.tensor(step["target"]))
        apart.append(abs(loss.item() - step["loss"]))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    updated = zip(model.weights(), printed("updated"), strict=True)
    return max(apart), max((mine.detach() - theirs).abs().max().item() for mine, theirs in updated)


def test_three_steps_of_sgd_give_the_losses_and_weights_that_the_reference_prints():
    losses, weights = follow()
    assert losses < 1e-5
    assert weights < 1e-5


@pytest.mark.parametrize(("i", "j"), itertools.combinations(range(6), 2))
def test_two_pairs_in_each_others_place_are_seen(i, j):
    def exchange(model):
        first = model.trunk.top[0].in_features - 6  # behind x
        places = list(range(first + 6))
        places[first + i], places[first + j] = first + j, first + i
        model.trunk.top.register_forward_pre_hook(lambda top, given: (given[0][:, places],))

    losses, weights = follow(exchange)
    assert losses > 1e-5
    assert weights > 3e-5
