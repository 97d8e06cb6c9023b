"""Write the generated pages, and the schema of configs, into this checkout."""

from __future__ import annotations

from docs.generate import pages
from docs.generate.rooms import ROOT

for path, text in pages().items():
    (ROOT / path).write_text(text)
    print(path)
