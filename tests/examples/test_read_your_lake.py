"""The notebook runs on a lake of today's schema, and its stored outputs are those of a run that went well."""

from __future__ import annotations

import ast
import json

import matplotlib
import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipelines.core.config.settings import load
from tests.support.places import CONFIGS, ROOT
from tests.support.streams.lake_rows import rows
from tests.support.tracked_files import tied_to_a_machine

NOTEBOOK = ROOT / "examples" / "read_your_lake.ipynb"
ROWS = 6000
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def run_dir(tmp_path):
    """A run directory whose lake has the demo's columns: clicks first, the clicked rows' conversions after them."""
    random = np.random.default_rng(0)
    clicked = np.arange(ROWS) >= ROWS - ROWS // 4
    logit = random.normal(-1, 1, ROWS)
    label = (random.logistic(size=ROWS) < logit).astype(np.int8)
    filled = {
        "impression_id": np.where(clicked, np.arange(ROWS) - (ROWS - ROWS // 4), np.arange(ROWS)),
        "vertical": np.array(["feed", "shop", "travel"])[np.arange(ROWS) % 3],
        "advertiser_id": random.integers(0, 5, ROWS),
        "settlement": np.where(clicked, "cvr", "ctr"),
        "label_ctr": pa.array(label, mask=clicked),
        "label_cvr": pa.array(label, mask=~clicked),
        "teacher_logit_ctr": pa.array(logit.astype(np.float32), mask=clicked),
        "teacher_logit_cvr": pa.array(logit.astype(np.float32)),
    }
    table = pa.table(rows(0, ROWS, schema=load(CONFIGS / "demo.yaml").rows))
    for name, values in filled.items():
        column = pa.array(values).cast(table.schema.field(name).type)
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    write_deltalake(tmp_path / "lake" / "augmented_examples", table, partition_by=["vertical", "event_date"])
    return tmp_path


def shown(source: str, names: dict[str, object]) -> str:
    """Run a cell as Jupyter does: what it ends with is shown."""
    *body, last = ast.parse(source).body
    exec(compile(ast.Module(body, []), NOTEBOOK.name, "exec"), names)
    if isinstance(last, ast.Expr):
        return repr(eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names))
    exec(compile(ast.Module([last], []), NOTEBOOK.name, "exec"), names)
    return ""


def test_its_cells_run_on_a_small_lake(run_dir, monkeypatch):
    monkeypatch.setenv("EXFM_RUN", str(run_dir))
    matplotlib.use("Agg")
    names: dict[str, object] = {}
    texts = [shown("".join(cell["source"]), names) for cell in CELLS]
    assert {"feed", "shop", "travel"} <= set(names["teacher"].index.get_level_values("vertical"))
    assert len(names["lake"].to_table()) == ROWS
    assert "advertiser_id" in texts[-1]


def test_its_stored_outputs_are_whole():
    assert [cell["execution_count"] for cell in CELLS] == list(range(1, len(CELLS) + 1))
    outputs = [output for cell in CELLS for output in cell["outputs"]]
    assert all(cell["outputs"] for cell in CELLS)
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_it_names_no_machine():
    assert tied_to_a_machine({NOTEBOOK.name: NOTEBOOK.read_text()}) == []
