"""Writes the hashes of every pinned file into the lists of this folder, from what the package index says of them.

    .venv/bin/python requirements/pin.py            # cpu.txt, cuda.txt, docs.txt

The pins stay as they are: to change one, change its line, and run this. For each pin it keeps the wheels that CPython
3.11 to 3.13 takes on Linux (x86_64, aarch64; glibc), and the source archive where there is no wheel for one of them. So
`pip install --require-hashes` takes these files and no others, whoever serves them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

HERE = Path(__file__).parent
LISTS = ("cpu", "cuda", "docs")
MINORS = (11, 12, 13)


def suits(file: str) -> bool:
    """True if one of our interpreters takes a wheel.

    >>> suits("numpy-2.5.5-cp312-cp312-manylinux_2_27_x86_64.whl"), suits("numpy-2.5.5-cp314-cp314-win_amd64.whl")
    (True, False)
    """
    try:
        tags = parse_wheel_filename(file)[3]
    except InvalidWheelFilename:
        return False
    return any(_python(t.interpreter, t.abi) and _platform(t.platform) for t in tags)


def _python(interpreter: str, abi: str) -> bool:
    made_for = re.fullmatch(r"(cp|py)3(\d*)", interpreter)
    if made_for is None:
        return False
    minor = int(made_for[2] or 0)
    if abi in ("abi3", "none"):
        return minor <= max(MINORS)
    return minor in MINORS and abi == f"cp3{minor}"


def _platform(platform: str) -> bool:
    return platform == "any" or bool(re.fullmatch(r"(many)?linux.*_(x86_64|aarch64)", platform))


def hashes(package: dict[str, Any]) -> list[str]:
    """The sha256 of each file of a pin that may be installed."""
    files = [wheel for wheel in package.get("wheels", []) if suits(wheel["url"].rpartition("/")[2])]
    if not files and "sdist" in package:
        files = [package["sdist"]]
    return sorted({file["hashes"]["sha256"] for file in files})


def described(pins: list[str]) -> dict[tuple[str, str], list[str]]:
    """(name, version) -> hashes, as the index has them now."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "pins.in", Path(folder) / "pylock.toml"
        asked.write_text("\n".join(pins))
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal", "--no-deps"]
        format_ = ["--python-version", "3.11.9", "--no-header", "--format", "pylock.toml", "--output-file", str(answer)]
        subprocess.run([*uv, *format_, str(asked)], check=True)
        packages = tomllib.loads(answer.read_text())["packages"]
    return {(canonicalize_name(p["name"]), p["version"]): hashes(p) for p in packages}


def pinned(text: str) -> Iterator[str]:
    """The lines of a list without hashes, comments included."""
    for line in text.splitlines():
        if not line.lstrip().startswith("--hash="):
            yield line.removesuffix("\\").rstrip()


def with_hashes(text: str) -> str:
    """A list as it was, with the hashes that the index has now. Raises LookupError for a pin without a file."""
    lines = list(pinned(text))
    found = described([line for line in lines if line and not line.startswith("#")])
    out = []
    for line in lines:
        if not line or line.startswith("#"):
            out.append(line)
            continue
        name, _, version = line.partition(";")[0].strip().partition("==")
        known = found[canonicalize_name(name), version]
        if not known:
            raise LookupError(f"{line}: the index has no file for it")
        out += [f"{line} \\", *(f"    --hash=sha256:{one} \\" for one in known[:-1]), f"    --hash=sha256:{known[-1]}"]
    return "\n".join([*out, ""])


if __name__ == "__main__":
    for name in LISTS:
        path = HERE / f"{name}.txt"
        path.write_text(with_hashes(path.read_text()))
