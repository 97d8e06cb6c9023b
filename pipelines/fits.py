"""Whether the ranks that a config asks for can be: told before anything is started, and not by a worker that dies."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn
from torchrec.distributed.planner.types import PlannerError
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from exfm.embeddings import bag_configs
from exfm.errors import ConfigError
from exfm.planner import quiet
from exfm.sharding import Sharder, Sharding, SparseOptimizer, does_not_fit, planner_of
from pipelines.config import Config
from streaming.errors import BadInput

ONE_RANK = (
    "--local runs every worker in this one process, which can be one rank of a model, and {}.ranks is {}; leave "
    "--local out, or set {}.ranks=1"
)


def check_ranks(config: Config, *, local: bool) -> None:
    """Raises BadInput for several ranks in one process, ConfigError for tables that do not fit their ranks."""
    optimizer = config.teacher.model.sparse_optimizer
    asked: list[tuple[str, int, Sharding, SparseOptimizer | None, int]] = [
        ("teacher", config.teacher.ranks, config.teacher.sharding, optimizer, config.teacher.batch_rows),
        ("augmentation", config.augmentation.ranks, config.augmentation.sharding, None, config.augmentation.score_rows),
    ]
    for section, ranks, sharding, learns, rows in asked:
        if local and ranks > 1:
            raise BadInput(ONE_RANK.format(section, ranks, section))
        if ranks == 1 and sharding.memory_gb is None:
            continue
        try:
            _check_fits(config, ranks, sharding, learns, rows)
        except ConfigError as error:
            raise ConfigError(f"{section}: {error} (`exfm plan` shows it)") from None


def _check_fits(
    config: Config, ranks: int, sharding: Sharding, optimizer: SparseOptimizer | None, batch_rows: int
) -> None:
    """As the ranks themselves will ask, of tables that are nowhere."""
    configs = bag_configs(config.features, config.teacher.model.width)
    sharding.check([c.name for c in configs], optimizer)
    world = sharding.world(ranks, batch_rows=batch_rows)
    model = nn.Module()
    model.add_module("tables", EmbeddingBagCollection(configs, device=torch.device("meta")))
    with quiet(), suppress(PlannerError):
        planner_of(configs, sharding, world).plan(model, [Sharder.of(sharding)])
        return
    raise ConfigError(does_not_fit(configs, sharding, ranks, optimizer))
