"""The loops over pairs give what torch's index of every pair gives, and so do values and gradients of a DLRM."""

import pytest
import torch

from exfm.interactions.dlrm import DLRM
from exfm.kernels.pairs import lower_triangle, symmetric


@pytest.mark.parametrize("B", [0, 1, 50])
@pytest.mark.parametrize("V", [2, 3, 27])
def test_the_triangle_is_taken_and_put_back_as_by_an_index(B, V):
    G = torch.randn(B, V, V)
    Z = lower_triangle(G)
    assert torch.equal(Z.double(), lower_triangle(G.double()))  # of doubles torch does it
    i, j = torch.tril_indices(V, V, offset=-1)
    assert torch.equal(Z, G[:, i, j])
    S = symmetric(Z, V)
    assert torch.equal(S.double(), symmetric(Z.double(), V))
    assert torch.equal(S, S.transpose(1, 2))
    assert torch.equal(S[:, i, j], Z)
    assert not S.diagonal(dim1=1, dim2=2).any()


@pytest.mark.parametrize("rows", [0, 1, 50])
@pytest.mark.parametrize("dense", [0, 2])
@pytest.mark.parametrize(("vectors", "width"), [(2, 1), (3, 4), (11, 8), (27, 16), (5, 20)])
def test_a_dlrm_has_the_values_and_gradients_of_the_equation_by_autograd(vectors, width, dense, rows):
    g = torch.Generator().manual_seed(1)
    bottom = (6, width) if dense else ()
    trunk = DLRM(vectors, width, dense, bottom=bottom, top=(5,), generator=g)
    e = torch.randn(rows, vectors, width, generator=g, requires_grad=True)
    floats, grad_h = torch.randn(rows, dense, generator=g), torch.randn(rows, 5, generator=g)
    x = trunk.bottom(floats) if dense else e[:, 0, :0]
    T = torch.cat([x.unsqueeze(1), e], dim=1) if dense else e
    i, j = torch.tril_indices(T.shape[1], T.shape[1], offset=-1)
    plain = trunk.top(torch.cat([x, torch.einsum("bid,bjd->bij", T, T)[:, i, j]], dim=1))
    h = trunk(e, floats)
    torch.testing.assert_close(h, plain, rtol=1e-5, atol=1e-5)
    of = [e, *trunk.parameters()]
    for mine, theirs in zip(torch.autograd.grad(h, of, grad_h), torch.autograd.grad(plain, of, grad_h), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
