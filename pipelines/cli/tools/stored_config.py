"""Stored config of a run, for manual tools."""

from __future__ import annotations

from pipelines.core.config.settings import Config, load
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput
from streaming.program import command


def config_of(run_dir: RunDir, overrides: list[str] | None = None) -> Config:
    """The run's own config, with `overrides` as of `--set`. Raises BadInput where the folder holds no run."""
    if not run_dir.config.exists():
        start = command("exfm", "stream", "configs/demo.yaml", "--run-dir", run_dir.root)
        raise BadInput(
            f"no run in {run_dir.root} (no config.yaml there); give the folder of one with --run-dir, or start one "
            f"with `{start}`, or another config"
        )
    return load(run_dir.config, overrides)
