"""TorchRec's ids without the rest of TorchRec, for processes that only predict, or train students alone.

A batch holds its ids as TorchRec's `KeyedJaggedTensor`. To import that imports `torchrec`, and so all that trains
tables on many devices: 1.1 s of a core. After `torchrec_on_demand()` the package itself is there, but what its
`__init__` does is done when a part of it other than `LEAVES` is imported, or a name of it is asked for; then as always.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LEAVES = ("torchrec.sparse", "torchrec.streamable", "torchrec.pt2")
"""What the ids are made of; these import nothing else of it."""


class _OnDemand(ModuleType):
    """The package until its `__init__` is run."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__"):  # the import system asks for such names
            raise AttributeError(name)
        _run(self)
        return getattr(self, name)


class _Watch:
    """Finds nothing: it runs the package's `__init__` before a part that needs it is looked for."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        whole = sys.modules.get("torchrec")
        if isinstance(whole, _OnDemand) and name.startswith("torchrec.") and not name.startswith(LEAVES):
            _run(whole)
        return None


def torchrec_on_demand() -> None:
    """Have `torchrec` run its `__init__` when it is needed. Without effect where it is imported already, or missing."""
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
