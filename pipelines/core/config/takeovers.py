"""Teachers that took over from one another in a run.

    teachers/takeovers.json    [{"block", "lake_seq": the first that the new teacher scores, "was", "now": its settings,
                                 "why", "evidence"}, …]
    teachers/0001/             checkpoints and snapshots of the run's first teacher, once another has taken over

A config that says the settings of a teacher whose place was taken means the one that has it now: nobody has to change
the file that the run was started with.
"""

from __future__ import annotations

from typing import Any

from pipelines.core.config.hash import decisive
from pipelines.core.config.settings import Config, parse
from pipelines.core.run_dir.paths import RunDir
from streaming.store.files import read_json

SECTIONS = ("teacher", "features")
"""The settings that another teacher may have."""


def takeovers(run_dir: RunDir) -> list[dict[str, Any]]:
    """The takeovers of a run, first to last."""
    return read_json(run_dir.takeovers) or []


def teacher_settings(config: Config) -> dict[str, Any]:
    """The settings of the teacher."""
    settings = config.model_dump(mode="json")
    return {section: settings[section] for section in SECTIONS}


def with_teacher(config: Config, settings: dict[str, Any]) -> Config:
    """The config with another teacher's settings. Raises BadInput where they do not fit."""
    return parse(config.model_dump(mode="json") | settings).model_copy(update={"kafka": config.kafka})


def with_takeovers(config: Config, run_dir: RunDir) -> Config:
    """The config with the teacher that has taken over from its own."""
    for entry in takeovers(run_dir):
        if decisive(teacher_settings(config)) == decisive(entry["was"]):
            config = with_teacher(config, entry["now"])
    return config
