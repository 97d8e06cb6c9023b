"""What comes from the code: pages of docs/reference (commands, settings, rooms, Python API), the schema of configs.

    .venv/bin/python -m docs.generate

`pages()` returns path -> text without writing; a test compares it with what is committed.
"""

from __future__ import annotations

import json
from pathlib import Path

from docs.generate.api import api_page
from docs.generate.commands import commands_page
from docs.generate.rooms import PACKAGES, rooms_page
from docs.generate.settings import settings_page, sweep_settings_page
from pipelines.core.config.json_schema import json_schema_of_files

REFERENCE = Path("docs/reference")
SCHEMA = Path("pipelines/core/shipped/config.schema.json")


def pages() -> dict[Path, str]:
    """Every generated page, by its path in the repository."""
    texts = {"commands": commands_page(), "settings": settings_page(), "rooms": rooms_page()}
    texts["settings-of-a-sweep"] = sweep_settings_page()
    texts |= {f"api-{package}": api_page(package) for package in PACKAGES}
    schema = json.dumps(json_schema_of_files(), indent=1, ensure_ascii=False)
    return {SCHEMA: schema + "\n"} | {REFERENCE / f"{name}.md": text.rstrip() + "\n" for name, text in texts.items()}
