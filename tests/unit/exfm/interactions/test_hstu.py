"""HSTU against a dense reference, row by row with an explicit mask."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as nnf

from exfm.features.events import EventTokens
from exfm.features.sparse import EventFeature, SparseFeature
from exfm.interactions.hstu import HSTULayer, SequenceModel, SequenceNet, Sequences, bucket

D, LENGTH = 8, 6
FEATURE = EventFeature(
    name="seen", items=(SparseFeature(name="ad", rows=9),), tasks=("ctr",), windows_s=(60.0,), length=LENGTH
)


def made_up(lengths: list[int], seed: int = 0) -> tuple[torch.Tensor, EventTokens]:
    """Embeddings (N, D) and tokens of rows with so many tokens each."""
    generator = torch.Generator().manual_seed(seed)
    ages, actions = [], []
    for n in lengths:
        ages += [*sorted((torch.rand(n - 1, generator=generator) * 5000).tolist(), reverse=True), 0.0]
        actions += [*torch.randint(0, 3, (n - 1,), generator=generator).tolist(), FEATURE.actions - 1]
    embedded = torch.randn(sum(lengths), D, generator=generator)
    return embedded, EventTokens(None, torch.tensor(lengths), torch.tensor(actions), torch.tensor(ages))  # type: ignore[arg-type]


def net(kind: str = "hstu", layers: int = 2) -> SequenceNet:
    cfg = SequenceModel(kind=kind, of="user", events=("ad",), length=LENGTH, layers=layers, heads=2, width=D)
    made = SequenceNet(cfg, FEATURE, D, torch.Generator().manual_seed(1))
    for layer in made.layers:  # biases start at 0
        torch.nn.init.normal_(layer.place, generator=torch.Generator().manual_seed(2))
        torch.nn.init.normal_(layer.time, generator=torch.Generator().manual_seed(3))
    return made


def reference(model: SequenceNet, embedded: torch.Tensor, events: EventTokens) -> torch.Tensor:
    """One row after the other, every token of every layer, by the equations of the module."""
    out, start = [], 0
    for n in events.lengths.tolist():
        own = slice(start, start := start + n)
        age = events.age_s[own]
        X = model.enter(embedded[own]) + model.action[events.actions[own]] + model.age[bucket(age)]
        for layer in model.layers:
            V, K, Q, U = nnf.silu(layer.f1(layer.norm(X))).split(D, dim=1)
            mixed = torch.zeros(n, D)
            for h in range(layer.heads):
                part = slice(h * D // layer.heads, (h + 1) * D // layer.heads)
                for i in range(n):
                    rab = torch.stack(
                        [layer.place[h, i - j] + layer.time[h, bucket(age[j] - age[i])] for j in range(i + 1)]
                    )
                    scores = K[: i + 1, part] @ Q[i, part]
                    if layer.softmax:
                        A = torch.softmax(scores / math.sqrt(D // layer.heads) + rab, 0)
                    else:
                        A = nnf.silu(scores + rab) / LENGTH
                    mixed[i, part] = A @ V[: i + 1, part]
            X = layer.f2(layer.mixed_norm(mixed) * U) + X
        out.append(model.leave(model.norm(X[-1])))
    return torch.stack(out)


@pytest.mark.parametrize("kind", ["hstu", "attention"])
@pytest.mark.parametrize("layers", [1, 3])
def test_it_is_the_dense_reference(kind, layers):
    embedded, events = made_up([3, 1, 7, 2, 7, 4])
    model = net(kind, layers)
    torch.testing.assert_close(model(embedded, events), reference(model, embedded, events), rtol=1e-5, atol=1e-6)


def test_rows_in_another_order_or_company_say_the_same():
    embedded, events = made_up([3, 1, 7, 2])
    model = net()
    together = model(embedded, events)
    for row, (start, stop) in enumerate(pairwise([0, 3, 4, 11, 13])):
        alone = EventTokens(None, events.lengths[row : row + 1], events.actions[start:stop], events.age_s[start:stop])  # type: ignore[arg-type]
        torch.testing.assert_close(model(embedded[start:stop], alone)[0], together[row], rtol=1e-5, atol=1e-6)


def test_a_new_user_gets_what_the_ad_alone_says():
    embedded, events = made_up([1, 1, 4])
    embedded[1] = embedded[0]
    first, second, _ = net()(embedded, events)
    assert torch.equal(first, second)


def test_no_rows_have_no_output():
    empty = EventTokens(None, *(torch.zeros(0, dtype=t) for t in (torch.int64, torch.int64, torch.float32)))  # type: ignore[arg-type]
    assert net()(torch.zeros(0, D), empty).shape == (0, D)


def test_groups_of_near_lengths_give_back_the_order_of_rows(monkeypatch):
    embedded, events = made_up([5, 1, 3, 2, 7, 4, 1])
    whole = net()(embedded, events)
    monkeypatch.setattr("exfm.interactions.hstu.ROWS_TOGETHER", 2)
    torch.testing.assert_close(net()(embedded, events), whole, rtol=1e-5, atol=1e-6)


def test_every_weight_and_embedding_gets_a_gradient():
    embedded, events = made_up([3, 1, 7])
    model = net()
    embedded.requires_grad_()
    model(embedded, events).square().sum().backward()
    assert embedded.grad is not None
    assert (embedded.grad.abs().sum(1) > 0).all()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_ten_equal_events_weigh_ten_times_as_much_as_one():
    """After a softmax they would weigh the same."""
    layer = HSTULayer(D, heads=2, length=20, generator=torch.Generator().manual_seed(1))
    own, event = torch.randn(2, D, generator=torch.Generator().manual_seed(4))

    def mixed(times: int) -> torch.Tensor:
        V, K, Q, _ = nnf.silu(layer.f1(layer.norm(torch.stack([*[event] * times, own])))).split(D, dim=1)
        (rows,) = Sequences(torch.tensor([times + 1]), torch.zeros(times + 1)).groups
        return layer.attend(Q[-1:], K, V, rows, last=True)

    nothing = mixed(0)
    torch.testing.assert_close(mixed(10) - nothing, 10 * (mixed(1) - nothing), rtol=1e-4, atol=1e-6)
