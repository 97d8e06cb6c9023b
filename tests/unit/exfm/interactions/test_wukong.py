import pytest
import torch
from torch import nn

from exfm.errors import ConfigError
from exfm.interactions.wukong import Norm, Wukong, WukongLayer


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def layer(n=6, d=4, num_fmb=3, num_lcb=2, rank=2, hidden=(8,), **options):
    return WukongLayer(n, d, num_fmb=num_fmb, num_lcb=num_lcb, rank=rank, hidden=hidden, generator=rng(), **options)


def stack(layers, hidden=(8,), num_dense=0, **options):
    return Wukong(
        6, 4, num_dense, layers=layers, num_fmb=3, num_lcb=2, rank=2, hidden=hidden, generator=rng(), **options
    )


def test_the_optimised_factorisation_machine_is_all_pairs_projected():
    one = layer()
    X = torch.randn(5, 6, 4, generator=rng(1))
    expected = torch.matmul(torch.bmm(X, X.transpose(1, 2)), one.Y_T.T)
    torch.testing.assert_close(one.fm(X), expected, rtol=0, atol=1e-5)


def test_the_attentive_factorisation_machine_uses_its_own_projection_per_example():
    one = layer(attentive=True)
    X = torch.randn(5, 6, 4, generator=rng(1))
    Y = one.attend(X)
    assert Y.shape == (5, 6, 2)
    assert not torch.equal(Y[0], Y[1])
    torch.testing.assert_close(one.fm(X), torch.bmm(torch.bmm(X, X.transpose(1, 2)), Y), rtol=0, atol=1e-5)


def test_a_layer_is_norm_of_blocks_plus_residual():
    one = layer()
    X = torch.randn(5, 6, 4, generator=rng(1))
    lcb = torch.stack([one.W_L @ x for x in X])
    residual = torch.stack([one.W_R @ x for x in X])
    expected = one.norm(torch.cat([one.fmb(X), lcb], 1) + residual)
    torch.testing.assert_close(one(X), expected)


def test_the_residual_is_the_identity_when_the_number_of_embeddings_stays():
    same = layer(n=5)
    assert same.W_R is None
    nn.init.zeros_(same.W_L)
    nn.init.zeros_(same.fm_mlp[-1].weight)
    nn.init.zeros_(same.fm_mlp[-1].bias)
    X = torch.randn(7, 5, 4, generator=rng(1))
    torch.testing.assert_close(same(X), same.norm(X))


def along(model, X, points):
    """The stack's output at t·X_0 for `points` values of t, evenly spaced: (points, out)."""
    t = torch.linspace(-1, 1, points, dtype=torch.float64)
    return model(t.view(-1, 1, 1) * X, torch.empty(len(t), 0, dtype=torch.float64))


def degree_along(y):
    """The highest d whose d-th finite difference is not zero: the degree of a polynomial sampled at d + 2 points."""
    size, degree = y.abs().max(), 0
    for order in range(1, len(y)):
        y = y.diff(dim=0)
        if y.abs().max() > 1e-10 * size:
            degree = order
    return degree


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_stack_of_l_layers_without_norms_is_a_polynomial_of_degree_2_to_the_l(layers):
    """With layer norm as the identity, linear MLPs, and Y a constant: layer i covers interactions up to order 2^i."""
    model = stack(layers, hidden=(), layer_norm=False).double()
    X = torch.randn(1, 6, 4, generator=rng(1), dtype=torch.float64)
    assert degree_along(along(model, X, 2**layers + 3)) == 2**layers


def test_an_attentive_projection_adds_the_degree_of_its_own():
    """Y is linear in X then: X Xᵀ Y(X) is of degree 3, and the second layer's of 9."""
    X = torch.randn(1, 6, 4, generator=rng(1), dtype=torch.float64)
    for layers in (1, 2):
        model = stack(layers, hidden=(), layer_norm=False, attentive=True).double()
        assert degree_along(along(model, X, 3**layers + 3)) == 3**layers


def test_with_norms_or_hidden_layers_it_is_no_polynomial():
    X = torch.randn(1, 6, 4, generator=rng(1), dtype=torch.float64)
    for options in ({"hidden": ()}, {"hidden": (8,), "layer_norm": False}):
        assert degree_along(along(stack(1, **options).double(), X, 9)) == 8


def test_without_layer_norm_a_layer_is_the_sum_that_would_be_normalised():
    one = layer(layer_norm=False)
    X = torch.randn(5, 6, 4, generator=rng(1))
    fm = torch.bmm(torch.bmm(X, X.transpose(1, 2)), one.Y_T.T.expand(5, -1, -1))
    fmb = one.fm_mlp(fm.flatten(1)).view(5, 3, 4)
    torch.testing.assert_close(one(X), torch.cat([fmb, one.W_L @ X], 1) + one.W_R @ X)
    assert not [name for name, _ in one.named_parameters() if "norm" in name]


def test_shapes_with_dense_features_as_embeddings():
    model = stack(2, num_dense=3, dense_units=2)
    assert model.layers[0].W_L.shape == (2, 8)
    assert model.layers[1].W_L.shape == (2, 5)
    out = model(torch.randn(7, 6, 4), torch.randn(7, 3))
    assert out.shape == (7, model.out_width) == (7, 20)
    assert model(torch.randn(0, 6, 4), torch.randn(0, 3)).shape == (0, 20)


def test_hidden_sizes_set_the_depth_of_the_mlps():
    linears = [m for m in layer(hidden=(16, 12)).fm_mlp if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linears] == [(12, 16), (16, 12), (12, 12)]


def test_every_parameter_learns():
    for attentive in (False, True):
        model = stack(2, num_dense=3, attentive=attentive)
        model(torch.randn(7, 6, 4, generator=rng(1)), torch.randn(7, 3, generator=rng(2))).square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_empty_blocks_are_refused():
    with pytest.raises(ConfigError, match="they are 3, 0 and 2"):
        layer(num_lcb=0)


def test_a_norm_of_bf16_sums_its_weights_gradients_over_all_rows():
    """torch's own sums them in bf16, where a sum of ones ends at 512."""
    norm = Norm(4)
    norm(torch.randn(5000, 4, generator=torch.Generator().manual_seed(1)).bfloat16()).sum().backward()
    assert norm.bias.grad.tolist() == [5000.0] * 4
