"""The losses in somebody's own training loop: the snippet of exfm.distillation, with no pipeline around."""

import ast
import doctest
import subprocess
import sys

import exfm.distillation

ABSENT = ("ray", "kafka", "mlflow", "deltalake", "pyarrow", "torchrec", "fbgemm_gpu", "streaming", "pipelines")


def snippet() -> str:
    """The doctest of the module's own docstring, as source."""
    examples = doctest.DocTestParser().get_examples(exfm.distillation.__doc__)
    return "".join(example.source for example in examples)


def test_the_snippet_is_about_ten_lines():
    lines = [line for line in snippet().splitlines() if line.strip()]
    assert len(lines) <= 13
    assert len([line for line in lines if "import" not in line and "optimizer." not in line]) <= 10


def test_it_runs_where_only_torch_is_installed_and_trains_what_is_served():
    program = f"""
import sys
for name in {ABSENT}:
    sys.modules[name] = None  # importing it now fails
import torch
torch.manual_seed(0)
exec({snippet().split("for _ in")[0]!r})
before = [p.detach().clone() for m in (trunk, serving, auxiliary) for p in m.parameters()]
exec({snippet()[snippet().index("for _ in") :]!r})
after = [p for m in (trunk, serving, auxiliary) for p in m.parameters()]
assert all(not torch.equal(a, b) for a, b in zip(before, after))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_importing_exfm_itself_does_not_import_torch():
    program = "import exfm, exfm.metrics.paired, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_the_snippet_imports_public_names_of_exfm_alone():
    imports = [node for node in ast.walk(ast.parse(snippet())) if isinstance(node, ast.ImportFrom)]
    assert {node.module for node in imports} == {"exfm.distillation"}
    assert not [alias.name for node in imports for alias in node.names if alias.name.startswith("_")]
