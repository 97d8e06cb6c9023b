"""Environment of a registered model: this source as a wheel, and exact versions of serving's imports.

A requirement `exfm` would be whatever an index holds under that name. The wheel lies in the model's own folder, and its
version carries a digest of the source: MLflow caches environments by their requirements, and two different sources must
not share one.
"""

from __future__ import annotations

import base64
import hashlib
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from exfm import __version__

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("exfm", "streaming", "pipelines")
SERVING = ("torch", "torchrec", "numba", "numpy", "pandas", "pyarrow", "pydantic", "lazy-loader")
CUDA, CPU = "fbgemm-gpu", "fbgemm-gpu-cpu"  # the builds of fbgemm; exactly one is installed
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same source gives the same bytes


class Environment(NamedTuple):
    """Packages of a model: `wheels` in its folder, and `requirements`, one pip line each."""

    wheels: list[Path]
    requirements: list[str]


def environment_of_a_model(folder: Path) -> Environment:
    """Write the wheels into `folder`, and pin the installed versions."""
    wheels = [own_wheel(folder), *fbgemm_by_its_other_name(folder)]
    return Environment(wheels, [*(f"code/{wheel.name}" for wheel in wheels), *serving_requirements()])


class EnvironmentOnce:
    """Cached environment of all models that a process registers, since all share its source (.13 s of a core)."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._made: Environment | None = None

    def get(self) -> Environment:
        if self._made is None:
            self._folder = tempfile.TemporaryDirectory(prefix="exfm-wheel-")
            self._made = environment_of_a_model(Path(self._folder.name))
        return self._made

    def close(self) -> None:
        """Delete the cached wheels; registered models have copies."""
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = self._made = None


def own_wheel(folder: Path) -> Path:
    """Write the running source as a wheel into `folder`. It names no dependencies: `serving_requirements` does."""
    files = {path.relative_to(ROOT).as_posix(): path.read_bytes() for name in PACKAGES for path in _sources(name)}
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return _wheel(folder, "exfm", f"{__version__}+source.{digest.hexdigest()[:12]}", files)


def fbgemm_by_its_other_name(folder: Path) -> list[Path]:
    """Empty wheel `fbgemm-gpu`, for an installed build without CUDA of its version, which it requires.

    torchrec asks for `fbgemm-gpu` by any version. From an index pip would install the newest, made for another torch,
    over the files of the build that is named here, and neither would load.
    """
    if any(metadata.distributions(name=CUDA)):
        return []
    version = metadata.version(CPU)
    return [_wheel(folder, CUDA.replace("-", "_"), version, {}, f"Requires-Dist: {CPU}=={version}\n")]


def _wheel(folder: Path, name: str, version: str, files: dict[str, bytes], requires: str = "") -> Path:
    about, files = f"{name}-{version}.dist-info", dict(files)
    files[f"{about}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}".encode()
    files[f"{about}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: exfm\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path, EPOCH), content, zipfile.ZIP_DEFLATED)
    return wheel


def serving_requirements() -> list[str]:
    """Packages that a served student imports, pinned to the installed versions."""
    builds = [name for name in (CUDA, CPU) if any(metadata.distributions(name=name))]
    return [f"{name}=={metadata.version(name)}" for name in (*SERVING, *builds)]


def _sources(package: str) -> list[Path]:
    return sorted(path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
