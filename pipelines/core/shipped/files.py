"""Paths of the shipped configs and the pinned lists."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CONFIGS = FOLDER / "configs"


def config_file(path: str | Path) -> Path:
    """The file at `path`, or the shipped config of that name. Neither: `path` as it is.

    A name may stand with or without `configs/` before it and `.yaml` behind it, so that commands of the documentation
    work in any folder.

    >>> config_file("demo") == config_file("demo.yaml") == CONFIGS / "demo.yaml"
    True
    >>> config_file("sweeps/quick").name, config_file("mine.yaml")
    ('quick.yaml', PosixPath('mine.yaml'))
    """
    file = Path(path)
    if file.is_file():
        return file
    name = os.path.normpath(file).removeprefix("configs/").removesuffix(".yaml")
    return CONFIGS / f"{name}.yaml" if name in config_names() else file


def config_names() -> list[str]:
    """The shipped configs and sweeps, without `.yaml`.

    >>> "demo" in config_names(), "sweeps/quick" in config_names()
    (True, True)
    """
    files = [*CONFIGS.glob("*.yaml"), *CONFIGS.glob("sweeps/*.yaml")]
    return sorted(file.relative_to(CONFIGS).with_suffix("").as_posix() for file in files)


def schema_file() -> Path:
    """The JSON schema of a config's file, for editors.

    >>> schema_file().is_file()
    True
    """
    return FOLDER / "config.schema.json"


def rates_file() -> Path:
    """Rates measured on one machine, which `exfm capacity` multiplies.

    >>> rates_file().is_file()
    True
    """
    return FOLDER / "rates.json"


def pinned_list(variant: str) -> Path:
    """The list of exact versions for `cpu` or `cuda`.

    >>> pinned_list("cpu").name, pinned_list("cpu").is_file()
    ('cpu.txt', True)
    """
    return FOLDER / "requirements" / f"{variant}.txt"
