"""Whatever a config file or a `--set` says: it makes a Config, or is refused in words."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from pipelines.core.config.settings import Config, dump, load, parse
from streaming.errors import BadInput
from tests.support.streams.broken_inputs import ODD_VALUES, SOAK, broken_bytes, broken_tree, edited, fuzzed, places

FILES = sorted(Path("configs").glob("*.yaml"))
TREES = {path.name: yaml.safe_load(path.read_text()) for path in FILES}
_QUICK = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SCALARS = st.one_of(
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from([0, -1, 1, 2**63, 10**400, 1e308, "full", "60x", "lockstep", "ctr", "feed", ".inf", True, None]),
)
YAML_TEXTS = st.sampled_from(
    ["[" * 5000, "&a [*a]", "{a: &a {b: *a}}", "!!int ''", "!!bool maybe", "!!timestamp soon", "!!float ''", "!!map ab",
     "!!binary x", "!!set [1]", "!!omap {a: 1}", "!!pairs 5", "!!python/name:os.system x", "? [a]\n: b", "<<: 5",
     "1:99", "2026-99-99", "0x", "0b", "*nobody", "{<<: [1]}", "---\n---", "%YAML 9.9\n---\na: 1", "\t", "{a: 1, a: 2}",
     f"[&a0 [1, 1], {', '.join(f'&a{n + 1} [*a{n}, *a{n}]' for n in range(40))}]"]
)  # fmt: skip


@st.composite
def configs(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """The bytes of a config file, and overrides."""
    name = draw(st.sampled_from(sorted(TREES)))
    way = draw(st.sampled_from(["tree", "tree", "text", "yaml", "overrides"]))
    text = FILES[sorted(TREES).index(name)].read_bytes()
    if way == "tree":
        tree = draw(broken_tree(TREES[name], st.one_of(SCALARS, ODD_VALUES)))
        text = yaml.safe_dump(tree, allow_unicode=False, sort_keys=False).encode("utf-8", "surrogatepass")
    elif way == "text":
        text = edited(text, draw(broken_bytes()))
    elif way == "yaml":
        key = draw(st.sampled_from([*TREES[name], "student_defaults", "lake"]))
        tree = {name: value for name, value in TREES[name].items() if name != key}
        text = yaml.safe_dump(tree).encode() + f"\n{key}: {draw(YAML_TEXTS)}\n".encode()
    overrides = draw(st.lists(one_override(TREES[name]), min_size=int(way == "overrides"), max_size=2))
    return text, overrides


@st.composite
def one_override(draw: st.DrawFn, tree: Any) -> str:
    path = [str(part) for part in draw(st.sampled_from(places(tree)))]
    if draw(st.booleans()):
        at = draw(st.integers(0, len(path) - 1))
        path[at] = draw(st.one_of(st.text(max_size=4), st.sampled_from(["²", "0", "-1", "99", "", "name", "."])))
    value = draw(st.one_of(SCALARS.map(str), YAML_TEXTS, st.text(max_size=8)))
    return ".".join(path) + draw(st.sampled_from(["=", "=", "=", "", "=="])) + value


def check_in(folder: Path) -> Callable[[tuple[bytes, list[str]]], None]:
    def check(drawn: tuple[bytes, list[str]]) -> None:
        text, overrides = drawn
        path = folder / "config.yaml"
        path.write_bytes(text)
        began = time.process_time()
        try:
            config, words = load(path, overrides), ""
        except BadInput as error:
            config, words = None, str(error)
        if config is not None:
            assert_whole(config)
        else:
            assert 10 < len(words) < 100_000
        assert time.process_time() - began < 10.0

    return check


def assert_whole(config: Config) -> None:
    """What was let in holds together: it is written and read back the same, and what is made of it can be made."""
    again = parse(yaml.load(dump(config).encode().decode(), _QUICK))
    assert again == config
    assert again.hash == config.hash
    for student in config.students:
        assert config.student_features(student).sparse
        assert set(config.student_tasks(student)) <= set(config.tasks)
    assert config.rows.augmented.names
    assert config.rows.groups


def test_a_mutated_config_is_a_config_or_is_refused_in_words(tmp_path):
    fuzzed(100, drawn=configs())(lambda drawn: check_in(tmp_path)(drawn))()


def test_a_place_in_a_list_is_a_number_as_people_write_it(tmp_path):
    for part in ("²", "9" * 5000, "-1"):
        check_in(tmp_path)((FILES[1].read_bytes(), [f"students.{part}.name=x"]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_times_as_many_mutated_configs(tmp_path):
    fuzzed(250 * SOAK, drawn=configs())(lambda drawn: check_in(tmp_path)(drawn))()
