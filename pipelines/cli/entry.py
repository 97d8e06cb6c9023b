"""What the console script calls: the command line, or one line about what is not installed."""

from __future__ import annotations

import atexit
import gc
import sys


def main() -> None:
    """Run `exfm`. Where exfm was installed without the extra `pipelines`, say so and exit with 2."""
    atexit.register(gc.freeze)  # or the process looks through all it has imported for cycles, 1.3 s, before it ends
    try:
        from pipelines.cli.console import main as run
    except ModuleNotFoundError as error:
        extra = "pip install 'exfm[pipelines]'"
        print(f"exfm: {error.name} is not installed; the command line needs: {extra}", file=sys.stderr)
        sys.exit(2)
    run()
