"""Pictures of the closing screen: after `make demo`, `python -m docs.generate.pictures runs/demo`.

Writes docs/pictures/closing-80.svg and closing-120.svg: what `make demo` prints at its end on terminals of that width.
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from docs.generate.tree import ROOT
from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.report.results.stored import read_summary
from pipelines.report.screens.closing import print_closing

WIDTHS = (80, 120)


def closing_screen(run_dir: RunDir, width: int) -> str:
    """The screen with its colours, with paths as they are in the folder of the Makefile."""
    said = io.StringIO()
    console = Console(file=said, width=width, force_terminal=True, color_system="standard")
    print_closing(console, read_summary(run_dir), RunDir(Path("runs/demo")), load(ROOT / "configs" / "demo.yaml"))
    return said.getvalue().replace(f"{Path(sys.executable).parent}/", ".venv/bin/")


def as_svg(screen: str, width: int) -> str:
    """Picture of text on a terminal of this width: lines that are longer go on in the next."""
    console = Console(file=io.StringIO(), width=width, record=True, force_terminal=True)
    for line in screen.splitlines():
        text = Text.from_ansi(line.rstrip())
        for piece in text.divide(range(width, len(text), width)):
            console.print(piece, no_wrap=True, overflow="ignore", crop=False)
    return console.export_svg(title="make demo", unique_id=f"closing-{width}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run of configs/demo.yaml")
    run_dir = RunDir(parser.parse_args().run)
    for width in WIDTHS:
        path = ROOT / "docs" / "pictures" / f"closing-{width}.svg"
        path.write_text(as_svg(closing_screen(run_dir, width), width))
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
