"""As-of features on the machine of a coordinator whose workers have put their states from others."""

from __future__ import annotations

from pipelines.core.run_dir.object_storage import READ_AT_END, WORKERS_PUT
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve import asof
from streaming.settlement.saved.follower import AsOfFollower
from streaming.store.objects import FolderStore
from streaming.store.working_copy import Share, open_share


def test_states_are_brought_up_before_each_look_and_a_store_is_asked_every_few_seconds(tmp_path, monkeypatch):
    clock, asked, seen = [0.0], list[str](), list[list[str]]()
    (run := tmp_path / "run").mkdir()
    open_share(run, (tmp_path / "store").as_uri(), 1, Share(("logs/coordinator",), WORKERS_PUT, READ_AT_END))
    monkeypatch.setattr(asof.time, "monotonic", lambda: clock[0])
    listed = FolderStore.list
    monkeypatch.setattr(FolderStore, "list", lambda self, prefix="": asked.append(prefix) or listed(self, prefix))
    monkeypatch.setattr(
        AsOfFollower, "refresh", lambda self: seen.append(sorted(p.name for p in self.root.rglob("*.json")))
    )
    source = asof.AsOfSource(RunDir(run))
    for number in (1, 2):
        (states := tmp_path / "store" / "checkpoints" / "augmentation" / "w").mkdir(parents=True, exist_ok=True)
        (states / f"{number}.json").write_text("{}")
        for _ in range(50):
            source.refresh()
            clock[0] += asof.LOOK_EVERY_S
        clock[0] += asof.LOOK_EVERY_S
    assert seen == [["1.json"], ["1.json", "2.json"]]
    assert asked == 2 * ["checkpoints/augmentation/"]
