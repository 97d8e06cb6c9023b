"""What the end of a run needs is imported while its last workers are at work."""

import sys
import threading

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop import conclusion
from pipelines.live.loop.conclusion import Conclusion
from pipelines.live.rules.restarts import Patience
from pipelines.live.status.status import RunStatus


def test_what_a_conclusion_needs_is_imported_once_and_waited_for_and_what_is_missing_is_left_to_it(
    tmp_path, monkeypatch
):
    noted, go = tmp_path / "noted", tmp_path / "go"
    (tmp_path / "takes_a_moment.py").write_text(
        f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(.001)\n"
        f"with open({str(noted)!r}, 'a') as file:\n    file.write('imported ')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(conclusion, "NEEDED", ("is_not_installed", "takes_a_moment"))
    concluding = Conclusion(RunDir(tmp_path / "run"), RunStatus("run"), None, print, Patience(0, 1.0, 1.0, 1.0))
    concluding.prepare()
    concluding.prepare()
    assert not noted.exists()  # nobody waited yet
    threading.Timer(0.2, go.touch).start()
    concluding.break_off([])  # without a tracker there is nothing else to close
    assert noted.read_text() == "imported "
    assert "takes_a_moment" in sys.modules


def test_every_module_that_is_named_is_one():
    import importlib.util

    assert [name for name in conclusion.NEEDED if importlib.util.find_spec(name) is None] == []
