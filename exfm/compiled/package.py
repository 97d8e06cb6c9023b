"""Compiling a served student ahead of time: torch.export, then AOTInductor, which has a C++ compiler make a library.

A request costs the calls of some sixty operators more than what they compute; compiled it is one call. The weights are
not part of the code: each version lends its own, so one package serves all versions of one shape, and is kept by it:

    features, tasks, trunk, width; exfm, torch; what the processor can       ──►  <cache>/<digest>.pt2

Sums are in another order, so a compiled version is compared with the student it is of before it answers.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm import __version__
from exfm.compiled.graph import Graph, probe
from exfm.errors import ModelError
from exfm.models import PARITY, ServedStudent, served_meta

MOST_ROWS = 1 << 16
PROBED = (1, 100)
LENT: dict[str, Any] = {"always_keep_tensor_constants": True, "compile_threads": 1}
"""Small tensors would be numbers in the code, and of the version that it was made of."""
COMPILERS = ("g++", "clang++")


def compile_served(served: ServedStudent, cache: Path) -> None:
    """Have the student score by compiled code where rows have one id of every key; others as before. The package is
    taken from `cache`, or made, which takes a minute.

    Raises ModelError where there is no compiler, the student has what cannot be compiled, or the code differs.
    """
    graph = Graph(served).eval()
    path = cache / f"{_digest(served)}.pt2"
    if not path.exists():
        _make(graph, served, path)
    run = _loaded(path, graph)
    for rows in PROBED:
        ids, dense = probe(served, rows)
        with torch.inference_mode():
            difference = (run(ids, dense) - served(_jagged(served, ids), dense)).abs().max().item()
        if not difference <= PARITY:
            raise ModelError(
                f"the compiled student differs by {difference:.3g} in a logit of {rows} rows, and may by {PARITY:g}; "
                f"delete {path}, or serve without --compile"
            )
    served.compiled = run


def _digest(served: ServedStudent) -> str:
    """Of all that the code depends on."""
    meta = served_meta(served.trunk_config, served.width, served.features, served.tasks, wide=served.wide is not None)
    made_by = [__version__, torch.__version__, torch.backends.cpu.get_cpu_capability()]
    return hashlib.sha256(json.dumps([meta, made_by], sort_keys=True).encode()).hexdigest()[:20]


def _make(graph: Graph, served: ServedStudent, path: Path) -> None:
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), *COMPILERS))):
        raise ModelError("--compile needs a C++ compiler (g++), and there is none; install one, or serve without it")
    from torch._inductor import aoti_compile_and_package  # a second to import: those that find a package do not

    rows = torch.export.Dim("B", min=1, max=MOST_ROWS)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(f"{path.stem}-{os.getpid()}.pt2")
    try:
        with torch.no_grad():
            exported = torch.export.export(graph, probe(served, 100), dynamic_shapes=({1: rows}, {0: rows}))
            aoti_compile_and_package(exported, package_path=str(whole), inductor_configs=LENT)
    except Exception as error:  # of torch.export, of Inductor, of the C++ compiler
        whole.unlink(missing_ok=True)
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(f"the student cannot be compiled: {said}; serve it without --compile") from error
    whole.replace(path)


def cache_folder() -> Path:
    """Where packages are kept: in the user's cache."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "exfm" / "compiled"


def _loaded(path: Path, graph: Graph) -> Callable[[Tensor, Tensor], Tensor]:
    """The code, with the weights of `graph`, which it holds on to."""
    try:
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, -1)  # its Python needs Inductor
        named = dict(graph.named_parameters()) | dict(graph.named_buffers())
        lent = {name: tensor.detach() for name, tensor in named.items() if name in loader.get_constant_fqns()}
        loader.load_constants(lent, False, False, True, False)
    except RuntimeError as error:
        raise ModelError(f"{path} cannot be loaded: {error}; delete it, and it is made again") from None

    def run(ids_KB: Tensor, dense: Tensor, lent: dict[str, Tensor] = lent) -> Tensor:
        (found,) = loader.boxed_run([ids_KB, dense])
        return found

    return run


def _jagged(served: ServedStudent, ids_KB: Tensor) -> KeyedJaggedTensor:
    lengths = torch.ones(ids_KB.numel(), dtype=torch.int64)
    keys = list(served.features.keys)
    return KeyedJaggedTensor(keys=keys, values=ids_KB.reshape(-1), lengths=lengths, stride=ids_KB.shape[1])
