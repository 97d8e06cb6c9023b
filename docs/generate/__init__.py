"""The pages of docs/reference that come from the code: commands, settings, rooms, Python API.

    .venv/bin/python -m docs.generate

`pages()` returns path -> text without writing; a test compares it with what is committed.
"""

from __future__ import annotations

from pathlib import Path

from docs.generate.api import api_page
from docs.generate.commands import commands_page
from docs.generate.rooms import PACKAGES, rooms_page
from docs.generate.settings import settings_page, sweep_settings_page

REFERENCE = Path("docs/reference")


def pages() -> dict[Path, str]:
    """Every generated page, by its path in the repository."""
    texts = {"commands": commands_page(), "settings": settings_page(), "rooms": rooms_page()}
    texts["settings-of-a-sweep"] = sweep_settings_page()
    texts |= {f"api-{package}": api_page(package) for package in PACKAGES}
    return {REFERENCE / f"{name}.md": text.rstrip() + "\n" for name, text in texts.items()}
