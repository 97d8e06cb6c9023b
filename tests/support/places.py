"""Where the repository's files lie, wherever a test does."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
FIXTURES = ROOT / "tests" / "fixtures"
