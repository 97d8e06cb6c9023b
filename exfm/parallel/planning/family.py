"""A family of teachers from one dial.

Wukong grows as its paper (arXiv 2403.02545) found best: layers first, then n_F, n_L, k and the MLPs together:

    layers = base · 2^min(dial, 2)              n_F, n_L, k, MLP = base · √2^max(0, dial − 2)

so that a step of the dial costs about twice the FLOPs, a little more when it widens. Teachers with another interaction
and the same FLOPs have its usual shape, as many times as wide as that takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, partial

from exfm.errors import ConfigError
from exfm.features.features import FeatureSet
from exfm.interactions.interaction import InteractionOptions, widen
from exfm.interactions.registry import INTERACTIONS
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.planning.cost import flops_per_example

DEEPER = 2  # steps of the dial that double the layers
LARGEST = 9  # steps of the dial that a budget may ask for
TOLERANCE = 0.05  # equal FLOPs are no further apart than this


def scaled_teacher(base: TeacherConfig, dial: float) -> TeacherConfig:
    """The Wukong teacher `dial` steps larger than `base`, which has dial 0; sizes are rounded.

    >>> [scaled_teacher(TeacherConfig(), dial).layers for dial in range(4)], scaled_teacher(TeacherConfig(), 4).num_fmb
    ([2, 4, 8, 8], 16)

    Raises ConfigError for a dial below 0, or a base with another interaction.
    """
    if dial < 0:
        raise ConfigError(f"a dial of {dial} would be smaller than its base, which is dial 0; make the base smaller")
    if base.interaction != "wukong":
        raise ConfigError(
            f"the family grows from a Wukong teacher, and the base's interaction is `{base.interaction}`; "
            "leave `interaction` out: teachers of the other interactions are compared with it at equal FLOPs"
        )
    wider = 2 ** (max(0, dial - DEEPER) / 2)
    return base.model_copy(
        update={
            "layers": round(base.layers * 2 ** min(dial, DEEPER)),
            "num_fmb": round(base.num_fmb * wider),
            "num_lcb": round(base.num_lcb * wider),
            "rank": round(base.rank * wider),
            "mlp": widen(base.mlp, wider),
        }
    )


def teacher_of_budget(base: TeacherConfig, times: float, features: FeatureSet, tasks: int) -> TeacherConfig:
    """The Wukong teacher of the family whose FLOPs per example are closest to `times` those of `base`.

    Raises ConfigError for fewer times than 1, or a base with another interaction.
    """
    if times < 1:
        raise ConfigError(f"{times:g} × the FLOPs would be a smaller teacher; make the base smaller")
    flops = partial(flops_per_example, features=features, tasks=tasks)
    target, sizes = times * flops(base), [scaled_teacher(base, dial / 4) for dial in range(4 * LARGEST)]
    at = bisect_left(sizes, target, key=flops)
    return min(sizes[max(0, at - 1) : at + 1], key=lambda model: abs(flops(model) - target))


def family(base: TeacherConfig, dials: Sequence[int]) -> dict[int, TeacherConfig]:
    """A Wukong teacher for each dial."""
    return {dial: scaled_teacher(base, dial) for dial in dials}


def teacher_of_equal_flops(interaction: str, like: TeacherConfig, features: FeatureSet, tasks: int) -> TeacherConfig:
    """A teacher of another interaction that costs as many FLOPs per example as `like`, all else the same.

    How an interaction is made wider is its own matter: `InteractionOptions.widened`.

    Raises ConfigError where its least, or the coarseness of whole sizes, leaves it more than 5 % away.
    """
    target = flops_per_example(like, features, tasks)
    inputs = features.unit_count(like.width) * like.width + len(features.dense_labels)
    usual = INTERACTIONS[interaction]()

    @cache
    def flops(options: InteractionOptions) -> int:
        return flops_per_example(like.with_interaction(interaction, options), features, tasks)

    low, high = 2.0**-12, 2.0**16
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if flops(usual.widened(middle, inputs)) < target else (low, middle)
    best = min((usual.widened(times, inputs) for times in (low, high)), key=lambda o: abs(flops(o) / target - 1))
    if abs(flops(best) / target - 1) > TOLERANCE:
        raise ConfigError(
            f"a {interaction} teacher of {target:,} FLOPs per example cannot be made: the nearest has "
            f"{flops(best):,}; compare larger teachers, or smaller heads"
        )
    return like.with_interaction(interaction, best)
