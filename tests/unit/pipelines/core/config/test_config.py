"""A config is read from its file, wherever that lies, or the file is refused in words."""

from __future__ import annotations

import pytest
import yaml

from pipelines.core.config.settings import dump, load, parse
from streaming.errors import BadInput
from tests.support.pipelines.raw_configs import file_at, small
from tests.support.places import CONFIGS


@pytest.fixture
def file(tmp_path):
    return file_at(tmp_path / "run.yaml")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_loads(path):
    assert load(path).students


def test_the_resolved_config_says_everything_and_comes_back_as_the_same_run(file):
    config = load(CONFIGS / "demo.yaml")
    again = load(file(dump(config)))
    assert again == config
    assert again.hash == config.hash
    assert "catchup_rows" in dump(config)  # a default that demo.yaml does not mention


RECORDED = {"kind": "recorded", "path": "clicks.parquet", "labels": {"ctr": {"column": "clicked"}}}


def written(folder, source):
    folder.mkdir(exist_ok=True)
    (folder / "mine.yaml").write_text(yaml.safe_dump(small(source=source)))
    return folder / "mine.yaml"


def test_a_path_in_a_config_is_relative_to_the_config_and_one_of_the_command_line_to_where_it_was_typed(
    tmp_path, monkeypatch
):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    feedback = {"path": "../events.parquet"}
    source = {k: v for k, v in RECORDED.items() if k != "labels"} | {"feedback": feedback, "impression_id": "id"}
    path = written(tmp_path / "here", source)
    config = load(path)
    assert config.source.path == str(tmp_path / "here/clicks.parquet")
    assert config.source.feedback.path == str(tmp_path / "here/../events.parquet")
    typed = load(path, ["source.path=other.parquet"])
    assert typed.source.path == str(elsewhere / "other.parquet")
    assert typed.source.feedback.path == config.source.feedback.path
    assert load(path, ["source.path=/data/a.parquet"]).source.path == "/data/a.parquet"


def test_what_a_run_writes_down_names_its_file_from_anywhere(tmp_path, monkeypatch):
    config = load(written(tmp_path / "here", RECORDED))
    again = tmp_path / "run" / "config.yaml"
    again.parent.mkdir()
    again.write_text(dump(config))
    monkeypatch.chdir(tmp_path / "run")
    assert load(again) == config


def test_a_run_is_known_by_its_path_as_written_wherever_the_config_lies(tmp_path):
    """As before 0.2, when the path stayed as it was: checkpoints of those runs are taken up."""
    here, there = (load(written(tmp_path / name, RECORDED)) for name in ("here", "there"))
    assert here.source.path != there.source.path
    before = parse(small(source=RECORDED))
    assert here.hash == there.hash == before.hash
    assert here.decisive == before.decisive
    for worker in ("augmentation", "teacher", "student-feed"):
        assert here.identity(worker) == before.identity(worker)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- name: a\n- name: b\n", "holds a list, not a mapping of settings"),
        ("just words", "holds a string, not a mapping of settings"),
        ("", "holds nothing, not a mapping"),
        ("name: [unclosed\n", "is not YAML"),
        ("name: a\n\tseed: 1\n", "is not YAML"),
        ("\x00", "is not YAML"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(file, text, words):
    path = file(text)
    with pytest.raises(BadInput) as refused:
        load(path)
    assert str(path) in str(refused.value)
    assert words in str(refused.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(BadInput, match="is not YAML"):
        load(tmp_path / "run.yaml")


def test_an_absent_file_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(BadInput, match=r"no config at .*nowhere\.yaml; .*demo, .*/configs"):
        load(tmp_path / "nowhere.yaml")


def test_a_folder_is_no_config(tmp_path):
    with pytest.raises(BadInput, match="Is a directory"):
        load(tmp_path)


def test_a_key_given_twice_is_refused_with_its_line(file):
    with pytest.raises(BadInput, match=r"duplicate key `seed` on line 2"):
        load(file("seed: 1\nseed: 2\n"))
