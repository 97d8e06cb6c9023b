"""What a server does not import; and that what is asked for later is there as always. In processes of their own."""

import subprocess
import sys

import pytest

from tests.support.places import ROOT


def said_by(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_server_imports_neither_what_trains_tables_nor_clients_of_kafka_and_the_lake():
    program = """
import sys
import pipelines.serve.processes
from exfm.models.served import load_served
print(sorted({"torchrec.distributed", "fbgemm_gpu", "torch._dynamo", "kafka", "deltalake"} & sys.modules.keys()))
"""
    assert said_by(program) == "[]\n"


@pytest.mark.parametrize("needs_ids_alone", ["pipelines.live.workers.student.worker", "pipelines.lab.replay.jobs"])
def test_a_process_of_students_imports_nothing_that_trains_tables_of_many_devices(needs_ids_alone):
    program = f"""
import sys
import {needs_ids_alone}
print(sorted({{"torchrec.distributed", "fbgemm_gpu", "torch._dynamo", "mlflow", "ray"}} & sys.modules.keys()))
"""
    assert said_by(program) == "[]\n"


def test_loops_do_not_import_scipy_and_those_that_multiply_matrices_have_it():
    program = """
import sys
import exfm.embeddings.fused, exfm.baselines.ftrl
print("scipy.linalg" in sys.modules)
import numba, numpy
print(numba.njit(lambda x: numpy.dot(x, x))(numpy.ones(3)))
"""
    assert said_by(program) == "False\n3.0\n"


def test_who_compiles_nothing_imports_no_sympy_and_who_hashes_no_text_no_pandas():
    program = """
import sys
import pipelines.core.config, pipelines.live.loop
print("pandas" in sys.modules)
import pipelines.live.workers.student.worker
print(sorted({"sympy", "mpmath"} & sys.modules.keys()))
"""
    assert said_by(program) == "False\n[]\n"


@pytest.mark.parametrize(
    "asked",
    [
        "import torchrec.pt2.checks as checks; print(checks.guard_or_false(True), checks.guard_or_true(False))",
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false as g; print(g(True), not ShapeEnv)",
        "import torch._dynamo; from torch.fx.experimental import symbolic_shapes as s; print(True, not s.sympy)",
        "import torch; print(torch.compile(torch.all, backend='eager')(torch.ones(3)).item() == 1, False)",
    ],
)
def test_sympy_is_there_when_symbolic_shapes_are_asked_for(asked):
    program = f"""
import sys
from exfm.on_demand import torchrec_on_demand
torchrec_on_demand()
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
before = "sympy" in sys.modules
{asked}
print(before, "sympy" in sys.modules)
"""
    assert said_by(program) == "True False\nFalse True\n"


def test_the_rest_of_torchrec_is_there_when_it_is_asked_for():
    program = """
import sys
from exfm.on_demand import torchrec_on_demand
torchrec_on_demand()
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
before = "torchrec.distributed" in sys.modules
import torchrec
same = torchrec.KeyedJaggedTensor is KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec import EmbeddingBagCollection
print(before, same, "torchrec.distributed" in sys.modules, EmbeddingBagCollection.__module__)
"""
    assert said_by(program) == "False True True torchrec.modules.embedding_modules\n"


def test_a_part_brings_the_whole_package_before_it():
    program = """
from exfm.on_demand import torchrec_on_demand
torchrec_on_demand()
import torchrec.modules.embedding_configs
import sys
print(type(torchrec).__name__, "torchrec.distributed" in sys.modules)
"""
    assert said_by(program) == "module True\n"
