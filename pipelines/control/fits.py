"""Whether the ranks that a config asks for can be: told before anything is started, and not by a worker that dies."""

from __future__ import annotations

from typing import get_args

from exfm.errors import ConfigError
from exfm.planning import Shortage, find_plan
from pipelines.config import Config
from pipelines.planning import Part, question_of
from streaming.errors import BadInput


def check_ranks(config: Config, *, local: bool) -> None:
    """Raises BadInput for several ranks in one process, ConfigError for tables that cannot be spread as asked."""
    for part in get_args(Part):
        section = config.teacher if part == "teacher" else config.augmentation
        if local and section.ranks > 1:
            raise BadInput(
                f"--local runs every worker in this one process, which can be one rank of a model, and {part}.ranks is "
                f"{section.ranks}; leave --local out, or set {part}.ranks=1"
            )
        if section.ranks == 1 and section.sharding.memory_gb is None:
            continue
        found = find_plan(question_of(config, part), quick=True)
        if isinstance(found, Shortage):
            raise ConfigError(
                f"the {part}'s tables do not fit their ranks: {found}. {part}.ranks is {section.ranks}, "
                f"{part}.sharding.memory_gb {section.sharding.memory_gb}; `exfm plan` shows what would fit"
            )
