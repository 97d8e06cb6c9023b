"""Write the generated pages, and the schema of configs, into this checkout."""

from __future__ import annotations

from docs.generate import GENERATED_PAGES, SCHEMA, pages, schema_text
from docs.generate.tree import ROOT

(ROOT / GENERATED_PAGES).mkdir(exist_ok=True)
for path, text in ({GENERATED_PAGES / name: text for name, text in pages().items()} | {SCHEMA: schema_text()}).items():
    (ROOT / path).write_text(text)
    print(path)
