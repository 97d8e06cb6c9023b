"""TorchRec's ids without the rest of TorchRec, and without sympy, for processes that only predict, or train students
alone.

A batch holds its ids as TorchRec's `KeyedJaggedTensor`. To import that imports `torchrec`, and so all that trains
tables on many devices: 1.1 s of a core. After `torchrec_on_demand()` the package itself is there, but what its
`__init__` does is done when a part of it other than `LEAVES` is imported, or a name of it is asked for; then as always.

The ids name two functions of `torch.fx.experimental.symbolic_shapes`, which are called where code is compiled alone.
That module imports sympy: .25 s of a core and 37 MB. It is executed when one of the two is called, or another name is
asked for.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

LEAVES = ("torchrec.sparse", "torchrec.streamable", "torchrec.pt2")
"""What the ids are made of; these import nothing else of it."""
SHAPES, GUARDS = "torch.fx.experimental.symbolic_shapes", ("guard_or_false", "guard_or_true")
"""The module that imports sympy, and its functions that the ids name."""


class _OnDemand(ModuleType):
    """The package until its `__init__` is run."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__"):  # the import system asks for such names
            raise AttributeError(name)
        _run(self)
        return getattr(self, name)


class _Shapes(ModuleType):
    """`SHAPES` until it is executed."""

    def __getattr__(self, name: str) -> Any:
        if name in GUARDS:
            return lambda x: getattr(_executed(self), name)(x)
        if name.startswith("__"):  # the import system asks for such names
            raise AttributeError(name)
        return getattr(_executed(self), name)


class _Later(Loader):
    """Loads `SHAPES` without executing it; `loader` is its own."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Shapes(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _executed(module: ModuleType) -> ModuleType:
    if isinstance(module, _Shapes):
        spec = module.__spec__
        assert spec is not None
        assert isinstance(spec.loader, _Later)
        module.__class__ = ModuleType  # type: ignore[assignment]
        module.__loader__ = spec.loader = spec.loader.loader
        spec.loader.exec_module(module)
    return module


class _Watch:
    """Finds `SHAPES`, to be executed later. Runs the package's `__init__` before a part that needs it is looked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == SHAPES and (spec := PathFinder.find_spec(name, path, target)) is not None:
            assert spec.loader is not None
            spec.loader = _Later(spec.loader)
            return spec
        whole = sys.modules.get("torchrec")
        if isinstance(whole, _OnDemand) and name.startswith("torchrec.") and not name.startswith(LEAVES):
            _run(whole)
        return None


def torchrec_on_demand() -> None:
    """Have `torchrec` run its `__init__`, and `SHAPES` be executed, when they are needed. Without effect where TorchRec
    is imported already, or missing."""
    spec = None if "torchrec" in sys.modules else importlib.util.find_spec("torchrec")
    if spec is None:
        return
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _OnDemand
    sys.modules["torchrec"] = module
    sys.meta_path.insert(0, _Watch())


def _run(package: ModuleType) -> None:
    package.__class__ = ModuleType
    loader = None if package.__spec__ is None else package.__spec__.loader
    assert loader is not None
    loader.exec_module(package)
