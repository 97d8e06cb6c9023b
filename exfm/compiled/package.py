"""Compiling a served student ahead of time: torch.export, then AOTInductor, which has a C++ compiler make a library.

A request costs the calls of some sixty operators more than what they compute; compiled it is one call. The weights are
inputs of the code, as ids and floats are, so one package serves all versions of one shape, and is kept by it:

    features, tasks, trunk, width; exfm, torch; what the processor can       ──►  <cache>/<digest>.pt2

Sums are in another order, so a compiled version is compared with the student it is of before it answers.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm import __version__
from exfm.compiled.graph import Function, Graph, probe, weights_of
from exfm.errors import ModelError
from exfm.models import PARITY, ServedStudent

FORMAT = 2  # of what the code takes: its weights are inputs
MOST_ROWS = 1 << 16
PROBED = (1, 100)
AT_ONCE = 2
"""Threads that run code of one shape without waiting: one answers, another compares a version that comes."""
SETTINGS: dict[str, Any] = {"compile_threads": 1}
COMPILERS = ("g++", "clang++")


class Packages:
    """Compiled code in a folder; what is loaded of it is kept, so that another version of a shape loads nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: dict[Path, Code] = {}

    def compile(self, served: ServedStudent) -> None:
        """Have the student score by compiled code where rows have one id of every key; others as before. The package is
        taken from the folder, or made, which takes a minute.

        Raises ModelError where there is no compiler, the student has what cannot be compiled, or the code differs.
        """
        graph = Graph(served).eval()
        path = self._folder / f"{_digest(served)}.pt2"
        if path not in self._loaded:
            if not path.exists():
                _make(graph, served, path)
            self._loaded[path] = Code(path)
        run = Compiled(self._loaded[path], weights_of(graph))
        for rows in PROBED:
            ids, dense = probe(served, rows)
            with torch.inference_mode():
                difference = (run(ids, dense) - served(_jagged(served, ids), dense)).abs().max().item()
            if not difference <= PARITY:
                raise ModelError(
                    f"the compiled student differs by {difference:.3g} in a logit of {rows} rows, and may by "
                    f"{PARITY:g}; delete {path}, or serve without --compile"
                )
        served.compiled = run


class Code:
    """A package, loaded. Threads may run it at once, with weights of their own each."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError where it cannot be loaded."""
        self._path = path
        try:
            self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, AT_ONCE, -1)
        except RuntimeError as error:
            raise self._unusable(error) from None

    def __deepcopy__(self, memo: dict[int, Any]) -> Code:
        return self

    def __call__(self, ids_KB: Tensor, dense: Tensor, weights: list[Tensor]) -> Tensor:
        """Raises ModelError where it is the code of another shape."""
        torch.get_num_threads()  # has torch say it to OpenMP, which in a new thread has every core, and busy-waits
        try:
            (found,) = self._loader.boxed_run([ids_KB, dense, *weights])
        except RuntimeError as error:
            raise self._unusable(error) from None
        return found

    def _unusable(self, error: RuntimeError) -> ModelError:
        return ModelError(f"{self._path} cannot be used: {error}; delete it, and it is made again")


class Compiled:
    """((K, B) ids, (B, W)) -> logits (B, T), of one student; a copy of the student has one with the copy's weights."""

    def __init__(self, code: Code, weights: list[Tensor]) -> None:
        self._code, self._weights = code, weights

    def __call__(self, ids_KB: Tensor, dense: Tensor) -> Tensor:
        return self._code(ids_KB, dense, self._weights)


def _digest(served: ServedStudent) -> str:
    """Of all that the code depends on."""
    made_by = [FORMAT, __version__, torch.__version__, torch.backends.cpu.get_cpu_capability()]
    return hashlib.sha256(json.dumps([served.meta, made_by], sort_keys=True).encode()).hexdigest()[:20]


def _make(graph: Graph, served: ServedStudent, path: Path) -> None:
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), *COMPILERS))):
        raise ModelError("--compile needs a C++ compiler (g++), and there is none; install one, or serve without it")
    from torch._inductor import aoti_compile_and_package  # a second to import: those that find a package do not

    rows = torch.export.Dim("B", min=1, max=MOST_ROWS)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(f"{path.stem}-{os.getpid()}.pt2")
    try:
        with torch.no_grad():
            asked, weights = probe(served, 100), weights_of(graph)
            shapes = ({1: rows}, {0: rows}, [None] * len(weights))
            exported = torch.export.export(Function(graph), (*asked, weights), dynamic_shapes=shapes)
            aoti_compile_and_package(exported, package_path=str(whole), inductor_configs=SETTINGS)
    except Exception as error:  # of torch.export, of Inductor, of the C++ compiler
        whole.unlink(missing_ok=True)
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(f"the student cannot be compiled: {said}; serve it without --compile") from error
    whole.replace(path)


def cache_folder() -> Path:
    """Where packages are kept: in the user's cache."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "exfm" / "compiled"


def _jagged(served: ServedStudent, ids_KB: Tensor) -> KeyedJaggedTensor:
    lengths = torch.ones(ids_KB.numel(), dtype=torch.int64)
    keys = list(served.features.keys)
    return KeyedJaggedTensor(keys=keys, values=ids_KB.reshape(-1), lengths=lengths, stride=ids_KB.shape[1])
