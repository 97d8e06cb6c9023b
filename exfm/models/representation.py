"""A teacher's representation of a row: a projection of the layer before its heads, for its students.

    r = P·h        z_et = v_t·r + c_t + offset_t

P, v and c are trained on the labels by the teacher's own loss of z_e, and h is cut off there: nothing else of the
teacher depends on them, its logits have the same bits with and without. Only r leaves the teacher (LFM4Ads, arXiv
2508.14948: of a large model's layers the one before the heads is the best to export).

B examples, H width of the trunk's output, T tasks, k values.
"""

from __future__ import annotations

from torch import Tensor, nn

from exfm.randomness import named_generator, seeded_linear


class Representation(nn.Module):
    """(B, H) -> r (B, k); `logits` of it are (B, T)."""

    def __init__(self, inputs: int, width: int, tasks: int, seed: int) -> None:
        super().__init__()
        self.projection = seeded_linear(inputs, width, named_generator(seed, "representation"), bias=False)
        self.heads = nn.Linear(width, tasks, device="meta").to_empty(device="cpu")
        nn.init.zeros_(self.heads.weight)
        nn.init.zeros_(self.heads.bias)

    def forward(self, h: Tensor) -> Tensor:
        r: Tensor = self.projection(h.detach().to(self.projection.weight.dtype))
        return r

    def logits(self, r: Tensor) -> Tensor:
        z: Tensor = self.heads(r)
        return z
