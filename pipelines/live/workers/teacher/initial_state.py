"""The state that a teacher begins with where it was trained before."""

from __future__ import annotations

from exfm.models.growth.refit import stored_teacher
from exfm.snapshots.checkpoint import open_checkpoint
from exfm.snapshots.windows import TensorSource
from pipelines.core.config.evolve import made_with_teacher
from pipelines.core.config.initial_teacher import InitialTeacher
from pipelines.core.config.settings import Config
from pipelines.live.training.live_metrics import without_figures


def initial_state(config: Config, begun: InitialTeacher) -> dict[str, TensorSource]:
    """Weights and optimizer state, fitted to the config's features; figures of its training stay behind.

    Raises ModelError where they do not fit the config's teacher, or are no longer there."""
    return without_figures(stored_teacher(open_checkpoint(begun.checkpoint), made_with_teacher(config)))
