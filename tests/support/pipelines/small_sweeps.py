"""Small sweeps: what they ask, the stream that they are of, and the command that makes them."""

from __future__ import annotations

from pathlib import Path

import yaml

from pipelines.cli import console as cli

SWEEP = {
    "config": "small.yaml",
    "seeds": [1, 2],
    "students": ["feed"],
    "arms": {
        "none": {"set": {"arm": {"kind": "none"}}, "tune": {"dense_lr": [0.002, 0.008]}},
        "single": {"set": {"arm": {"kind": "single_head"}}, "tune": {"arm.weight": [0.5, 1]}},
    },
    "conditions": {"fresh": {}, "wrong": {"scale": 1.5, "shift": -1}, "cold": {"start": 0.5}},
    "teachers": {"blind": {"features": ["user_id", "ad_id"]}},
}
MORE = {"set": {"arm": {"kind": "single_head"}}, "tune": {"arm.weight": [0.5, 1, 2]}}
"""An arm that tries more settings than those of SWEEP."""


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """`exfm sweep …`: exit code, standard output, standard error."""
    code = 0
    try:
        cli.main(["sweep", *arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def written(folder: Path, **changes) -> str:
    """The path of SWEEP with whole settings replaced."""
    path = folder / f"{'-'.join(changes) or 'sweep'}.yaml"
    path.write_text(yaml.safe_dump(SWEEP | changes, sort_keys=False))
    return str(path)


def with_small_stream(folder: Path) -> Path:
    """The folder, with the config of the demo's stream, smaller, and of a small teacher."""
    raw = yaml.safe_load(Path("configs/demo.yaml").read_text())
    raw["source"] |= {"impressions": 4000, "users": 300, "ads": 40, "base_rate_scale": 5}
    raw["pace"] = {"mode": "lockstep", "block_rows": 512, "lag": 2}
    raw["teacher"] |= {"batch_rows": 256, "first_batch_rows": 256}  # few steps; a student's batches grow
    raw["teacher"]["model"] |= {"width": 4, "layers": 1, "num_fmb": 4, "num_lcb": 4, "rank": 4, "mlp": [8]}
    raw["student_defaults"]["model"] = {"width": 8, "arm": {"kind": "auxiliary_head"}}  # whatever the demo's own is
    (folder / "small.yaml").write_text(yaml.safe_dump(raw | {"name": "small"}))
    return folder
