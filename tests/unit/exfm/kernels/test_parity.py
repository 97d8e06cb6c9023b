"""Every differentiable fast form has the values and the gradients of its torch twin, in double or by the equation.

Loops over tables' rows update in place and are held to torch in test_tables.py; hashes have no gradient
(test_hashing.py, test_siphash.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from exfm.interactions.dlrm import DLRM
from exfm.interactions.wukong import Wukong
from exfm.kernels.pairs import lower_triangle, symmetric
from exfm.kernels.wukong import embeddings_last


class Pair(NamedTuple):
    """A fast form and its twin, of the same inputs; `learned`: all that gradients are taken of."""

    fast: Callable[..., Tensor]
    twin: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    learned: tuple[Tensor, ...] = ()
    tolerance: float = 0.0  # of values
    of_gradients: float = 0.0


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_index(G: Tensor) -> Tensor:
    i, j = torch.tril_indices(G.shape[1], G.shape[1], offset=-1)
    return G[:, i, j]


def mirrored(Z: Tensor, V: int) -> Tensor:
    i, j = torch.tril_indices(V, V, offset=-1)
    S = Z.new_zeros(len(Z), V, V)
    S[:, i, j] = S[:, j, i] = Z
    return S


def triangles() -> Iterator[tuple[str, Pair]]:
    for B in (0, 1, 50):
        for V in (2, 3, 27):
            G = torch.randn(B, V, V, generator=rng(V))
            Z = by_index(G)
            yield f"triangle {B} {V}", Pair(lower_triangle, by_index, (G,))
            yield f"triangle of doubles {B} {V}", Pair(lower_triangle, by_index, (G.double(),))
            yield f"symmetric {B} {V}", Pair(lambda Z, V=V: symmetric(Z, V), lambda Z, V=V: mirrored(Z, V), (Z,))
            again = Pair(lambda Z, V=V: symmetric(Z, V), lambda Z, V=V: mirrored(Z, V), (Z.double(),))
            yield f"symmetric of doubles {B} {V}", again


def equation(trunk: DLRM, e: Tensor, floats: Tensor) -> Tensor:
    """A DLRM's equation, by autograd."""
    x = e[:, 0, :0] if trunk.bottom is None else trunk.bottom(floats)
    T = e if trunk.bottom is None else torch.cat([x.unsqueeze(1), e], dim=1)
    return trunk.top(torch.cat([x, by_index(torch.einsum("bid,bjd->bij", T, T))], dim=1))


def dlrms() -> Iterator[tuple[str, Pair]]:
    for rows in (0, 1, 50):
        for dense in (0, 2):
            for vectors, width in ((2, 1), (3, 4), (11, 8), (27, 16), (5, 20)):
                g = rng(1)
                bottom = (6, width) if dense else ()
                trunk = DLRM(vectors, width, dense, bottom=bottom, top=(5,), generator=g)
                e = torch.randn(rows, vectors, width, generator=g, requires_grad=True)
                floats, learned = torch.randn(rows, dense, generator=g), (e, *trunk.parameters())
                twin = lambda e, floats, trunk=trunk: equation(trunk, e, floats)  # noqa: E731
                yield f"dlrm {rows} {dense} {vectors} {width}", Pair(trunk, twin, (e, floats), learned, 1e-5, 1e-4)


SHAPES: dict[str, dict[str, object]] = {
    "residual maps": {},
    "identities": {"num_fmb": 4, "num_lcb": 3},
    "no dense features": {"num_dense": 0},
    "several dense units": {"dense_units": 2},
    "attentive": {"attentive": True},
    "without norms": {"layer_norm": False},
    "without hidden layers": {"hidden": ()},
    "two hidden layers": {"hidden": (8, 6)},
}


def made(*, num_dense=3, rows=5, seed=0, **options):
    """A Wukong in double whose norms are not the identity, and its inputs, from torch's global generator."""
    sizes = {"layers": 2, "num_fmb": 3, "num_lcb": 2, "rank": 2, "hidden": (8,)} | options
    trunk = Wukong(6, 4, num_dense, generator=rng(seed), **sizes).double()
    for norm in (part for part in trunk.modules() if isinstance(part, nn.LayerNorm)):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
    return trunk, torch.randn(rows, 6, 4).double(), torch.randn(rows, num_dense).double()


def wukongs() -> Iterator[tuple[str, Pair]]:
    for name, options in SHAPES.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            trunk, e, dense = made(**options)
        e.requires_grad_()
        fast = lambda e, dense, trunk=trunk: embeddings_last(trunk, e, dense)  # noqa: E731
        yield f"wukong {name}", Pair(fast, trunk, (e, dense), (e, *trunk.parameters()), 1e-7, 1e-7)


PAIRS = dict([*triangles(), *dlrms(), *wukongs()])


@pytest.mark.parametrize("name", PAIRS)
def test_a_fast_form_has_the_values_and_gradients_of_its_twin(name):
    fast, twin, inputs, learned, tolerance, of_gradients = PAIRS[name]
    value, wanted = fast(*inputs), twin(*inputs)
    assert value.shape == wanted.shape
    assert value.dtype == wanted.dtype
    torch.testing.assert_close(value, wanted, rtol=tolerance, atol=tolerance)
    if learned:
        grad = torch.randn(wanted.shape, generator=rng(2), dtype=wanted.dtype)
        grads, wanted_grads = (torch.autograd.grad(h, learned, grad) for h in (value, wanted))
        for grad_fast, grad_twin in zip(grads, wanted_grads, strict=True):
            torch.testing.assert_close(grad_fast, grad_twin, rtol=of_gradients, atol=of_gradients)


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES.keys())
def test_in_bf16_it_is_as_near_to_fp32_as_the_interaction_is(options):
    """Each rounds at other places, so one network says little."""
    eager = code = 0.0
    for seed in range(12):
        torch.manual_seed(seed)
        trunk, e, dense = (part.float() for part in made(rows=100, seed=seed, **options))
        exact = found(trunk, trunk, e, dense)
        with torch.autocast("cpu", torch.bfloat16):
            eager += off(found(trunk, trunk, e, dense), exact)
            code += off(found(trunk, trunk.exportable, e, dense), exact)
    assert 0 < code < 1.25 * eager


def found(trunk, way, e, dense):
    """The representation, and its gradients."""
    units = e.clone().requires_grad_()
    h = way(units, dense)
    with torch.autocast("cpu", enabled=False):
        return [h.detach(), *torch.autograd.grad(h.float().square().mean(), [units, *trunk.parameters()])]


def off(found, exact):
    """Relative, the mean of all tensors."""
    return float(torch.stack([(a - b).norm() / b.norm() for a, b in zip(found, exact, strict=True)]).mean())


@pytest.mark.parametrize("level", [0.0, 1.0, 13.0, 73.0, 1e6])
def test_in_bf16_what_does_not_vary_has_a_norm_and_gradients(level):
    """mean(x²) − mean(x)² may come out below 0 then."""
    trunk, _, _ = made(rows=1, num_dense=0, rank=101)
    trunk = trunk.float()
    torch.nn.init.ones_(trunk.layers[0].Y_T)
    e, dense = torch.full((9, 6, 4), level), torch.empty(9, 0)
    with torch.autocast("cpu", torch.bfloat16):
        found_there = found(trunk, trunk.exportable, e, dense)
    assert all(bool(tensor.isfinite().all()) for tensor in found_there)
