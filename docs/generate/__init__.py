"""Pages of the site that are made from the code: commands, settings, metrics, Python API; and the schema of configs.

    .venv/bin/python -m docs.generate

The pages are part of the site alone (`make docs`); the schema is shipped with the package and committed.
"""

from __future__ import annotations

import json
from pathlib import Path

from docs.generate.api import api_page
from docs.generate.commands import commands_page
from docs.generate.metrics import metrics_page
from docs.generate.settings import settings_page, sweep_settings_page
from docs.generate.tree import PACKAGES
from pipelines.core.config.json_schema import json_schema_of_files

GENERATED_PAGES = Path("docs/reference/generated")
SCHEMA = Path("pipelines/core/shipped/config.schema.json")


def pages() -> dict[str, str]:
    """Name -> text of every generated page."""
    texts = {
        "commands": commands_page(),
        "metrics": metrics_page(),
        "settings": settings_page(),
        "settings-of-a-sweep": sweep_settings_page(),
        **{f"api-{package}": api_page(package) for package in PACKAGES},
    }
    return {f"{name}.md": text.rstrip() + "\n" for name, text in texts.items()}


def schema_text() -> str:
    """The schema of configs, as it is committed."""
    return json.dumps(json_schema_of_files(), indent=1, ensure_ascii=False) + "\n"
