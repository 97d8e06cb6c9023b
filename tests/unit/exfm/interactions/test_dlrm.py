import math

import pytest
import torch

from exfm.errors import ConfigError
from exfm.interactions.dlrm import DLRM
from exfm.randomness import seeded_linear


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_top_mlp_sees_the_dense_vector_and_every_pair_once():
    trunk = DLRM(3, 4, 2, bottom=(8, 4), top=(5,), generator=rng())
    trunk.top = torch.nn.Identity()
    e, dense = torch.randn(6, 3, 4, generator=rng(1)), torch.randn(6, 2, generator=rng(2))
    x = trunk.bottom(dense)
    vectors = [x, e[:, 0], e[:, 1], e[:, 2]]
    dots = [(vectors[i] * vectors[j]).sum(1) for i in range(4) for j in range(i)]
    torch.testing.assert_close(trunk(e, dense), torch.cat([x, torch.stack(dots, 1)], 1))


def test_without_dense_features_only_pairs_of_embeddings_remain():
    trunk = DLRM(3, 4, 0, bottom=(), top=(5,), generator=rng())
    assert trunk.top[0].in_features == 3
    assert trunk(torch.randn(6, 3, 4), torch.empty(6, 0)).shape == (6, 5)


def test_linear_layers_start_as_in_the_paper():
    layer = seeded_linear(300, 200, rng())
    assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / 500), rel=0.02)
    assert layer.bias.std().item() == pytest.approx(math.sqrt(1 / 200), rel=0.2)


def test_initial_weights_come_from_the_generator_alone():
    one, two = (DLRM(3, 4, 2, bottom=(4,), top=(5,), generator=rng(s)) for s in (7, 7))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize(
    ("shape", "sizes", "message"),
    [
        ((3, 4, 2), {"bottom": (8,), "top": (5,)}, r"bottom MLP \[8\] must end in the embedding width 4"),
        ((3, 4, 0), {"bottom": (4,), "top": (5,)}, "needs dense features, and there are 0"),
        ((1, 4, 0), {"bottom": (), "top": (5,)}, "there are 1; add a feature"),
        ((3, 4, 0), {"bottom": (), "top": ()}, "top MLP has 0 layers"),
    ],
)
def test_sizes_that_cannot_work_are_refused(shape, sizes, message):
    with pytest.raises(ConfigError, match=message):
        DLRM(*shape, **sizes, generator=rng())


def test_gradients_are_those_of_the_pairs():
    trunk = DLRM(4, 3, 0, bottom=(), top=(5,), generator=rng())
    trunk.top = torch.nn.Identity()
    e = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda e: trunk(e, e.new_empty(2, 0)), e)


@pytest.mark.parametrize("rows", [0, 1, 50])
@pytest.mark.parametrize(("vectors", "width"), [(2, 1), (3, 4), (11, 8), (6, 10), (27, 16), (5, 20)])
def test_single_precision_has_the_pairs_of_double(vectors, width, rows):
    trunk = DLRM(vectors, width, 0, bottom=(), top=(5,), generator=rng())
    trunk.top = torch.nn.Identity()
    e = torch.randn(rows, vectors, width, generator=rng(1), requires_grad=True)
    of_Z = torch.randn(rows, vectors * (vectors - 1) // 2, generator=rng(2))
    Z, exact = trunk(e, e[:, 0, :0]), trunk(e.double(), e[:, 0, :0].double())
    torch.testing.assert_close(Z, exact.float(), rtol=1e-5, atol=1e-5)
    (of_e,), (of_exact,) = torch.autograd.grad(Z, e, of_Z), torch.autograd.grad(exact, e, of_Z.double())
    torch.testing.assert_close(of_e, of_exact, rtol=1e-5, atol=1e-5)
