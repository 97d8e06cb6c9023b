"""Functions of tensors as machine code: torch.export, then AOTInductor, which has a C++ compiler make a library.

The code holds no weights: all tensors are arguments. It is kept on the disk and loaded in milliseconds, without the
compiler or Inductor. It is named by what it computes and by all that its bits depend on: exfm's own sources, torch,
the processor, the number of threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from exfm.durable import locked, move
from exfm.errors import ConfigError, ModelError
from exfm.machine import cpu_flags

COMPILERS = ("g++", "clang++")
MOST_ROWS = 1 << 24
KEPT_DAYS = 90
"""Code that no process took for so long goes when other code is made: every release and every processor has its own."""

SOURCES = (".", "kernels", "interactions", "models")
"""Folders of exfm whose files the bits of compiled code depend on."""

Function = Callable[..., Sequence[Tensor]]


class MachineCode:
    """Code from the disk. It computes with the threads of the thread that runs it; as many run it at once as it was
    loaded for, others wait."""

    def __init__(self, path: Path, at_once: int) -> None:
        """Raises ModelError where there is something else, or it is damaged."""
        self._path = path
        try:
            self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", at_once == 1, at_once, -1)
        except RuntimeError as error:
            raise self._unusable(error) from None

    def __call__(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        """Raises ModelError where it is the code of other tensors."""
        torch.get_num_threads()  # has torch say it to OpenMP, which in a new thread has every core, and busy-waits
        try:
            return self._loader.boxed_run(tensors)
        except RuntimeError as error:
            raise self._unusable(error) from None

    def __deepcopy__(self, memo: dict[int, Any]) -> MachineCode:
        return self

    def _unusable(self, error: RuntimeError) -> ModelError:
        return ModelError(f"{self._path} cannot be used: {error}; delete it, and it is made again")


def cache_folder() -> Path:
    """Default folder of compiled code, in the user's cache."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "exfm" / "compiled"


def has_compiler() -> bool:
    return any(map(shutil.which, (os.environ.get("CXX", "g++"), *COMPILERS)))


def no_compiler(what: str) -> str:
    """Error text for a `what` that needs a missing C++ compiler."""
    return f"{what} needs a C++ compiler (g++), and there is none; install one, or leave {what} out"


def machine_code(
    function: Function,
    example: Callable[[int], Sequence[Tensor]],
    batched: Sequence[int | None],
    about: Any,
    what: str,
    *,
    differentiates: bool = False,
    folder: Path | None = None,
    at_once: int = 1,
) -> MachineCode:
    """The code of a function of tensors, for any number of rows from 1.

    example   arguments for so many rows
    batched   the dimension of each argument that is the rows; None: it has none
    about     what tells this function from others, as JSON
    what      asks for it, for errors: "teacher.model.compile"
    at_once   how many threads may run it without waiting for each other

    A function that `differentiates` is traced with its backward pass; all tensors that it computes with are arguments.

    It is taken from the folder, or made there, which takes a minute or two. Arguments of the code are contiguous
    and of the example's dtypes.

    Raises ConfigError where it is to be made and there is no compiler, ModelError where it cannot be made or loaded.
    """
    folder = folder or cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_name(about)}.pt2"
    if not path.exists():
        with locked(folder / f"{path.stem}.lock"):  # one process makes it, others wait for it
            if not path.exists():
                _make(function, example, batched, path, what, differentiates)
                _forget_unused(folder)
    os.utime(path)
    return MachineCode(path, at_once)


def _forget_unused(folder: Path) -> None:
    for each in (*folder.glob("*.pt2"), *folder.glob("*.lock")):
        with suppress(FileNotFoundError):  # another process forgets, too
            if time.time() - each.stat().st_mtime > KEPT_DAYS * 86_400:
                each.unlink()


def _name(about: Any) -> str:
    made_by = [torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), platform.machine()]
    made_by += sorted(cpu_flags())  # the compiler makes use of all instructions
    digest = hashlib.sha256(json.dumps([about, made_by], sort_keys=True).encode())
    package = Path(__file__).parents[1]
    for source in sorted(path for room in SOURCES for path in (package / room).glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:20]


def _make(
    function: Function,
    example: Callable[[int], Sequence[Tensor]],
    batched: Sequence[int | None],
    path: Path,
    what: str,
    differentiates: bool,
) -> None:
    if not has_compiler():
        raise ConfigError(no_compiler(what))
    from torch._inductor import aoti_compile_and_package  # seconds to import: those that find the code do not
    from torch.fx.experimental.proxy_tensor import make_fx

    taken = {size for tensor in example(1) for size in tensor.shape}
    rows = next(n for n in count(509) if n not in taken)  # or the rows would be taken for a size of the model
    dimension = torch.export.Dim("B", min=1, max=MOST_ROWS)
    shapes = tuple(None if at is None else {at: dimension} for at in batched)
    whole = path.with_name(f"{path.stem}-{os.getpid()}.pt2")
    try:
        if differentiates:
            function = make_fx(function, tracing_mode="symbolic")(*example(rows))
        with torch.no_grad():
            exported = torch.export.export(_Graph(function), tuple(example(rows)), dynamic_shapes=(shapes,))
            aoti_compile_and_package(exported, package_path=str(whole), inductor_configs={"compile_threads": 1})
    except Exception as error:  # of torch.export, of Inductor, of the C++ compiler
        whole.unlink(missing_ok=True)
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(f"{what}: no code can be made: {first_line}; leave {what} out") from error
    move(whole, path)


class _Graph(nn.Module):
    """torch.export takes modules only."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self._function(*tensors)
