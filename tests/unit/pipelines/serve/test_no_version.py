"""A server of a run that has no version yet says what is missing, as it starts."""

from __future__ import annotations

import pytest

from pipelines.serve import processes
from pipelines.serve.processes import ServerSettings, server_of
from tests.support.pipelines.served_runs import run_with_versions


@pytest.mark.parametrize(("follow", "said"), [("champion", None), ("candidate", "feed: no candidate yet in")])
def test_what_no_version_answers_for_is_said_with_what_brings_one(tmp_path, monkeypatch, follow, said):
    run = run_with_versions(tmp_path, "v00000100").path.parents[1]
    asked = ServerSettings(run, ("feed",), follow)
    lines: list[str] = []
    monkeypatch.setattr(processes.log, "warning", lambda form, *values: lines.append(form % values))
    server = server_of(asked, asked.sources())
    server.close()
    if said is None:
        assert lines == []
    else:
        (line,) = lines
        assert line.startswith(said)
        assert "503" in line
        assert "--follow newest" in line
