"""What is not a config's YAML is refused with ValueError, whatever PyYAML makes of it."""

from __future__ import annotations

import pytest

from pipelines.core.config.text import MOST_VALUES, read_yaml


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 5000, "nested too deep"),
        ("&a [*a]", "inside itself"),
        ("!!int ''", "kind that its tag names"),
        ("!!bool maybe", "kind that its tag names"),
        ("!!timestamp soon", "kind that its tag names"),
        ("{a: 1, a: 2}", "duplicate key `a`"),
        ('{a: 1,\n b: "\\ud800"}', "line 2 holds half of a surrogate pair"),
        ("a: [", "while parsing"),
        ("vertical: 010", "`010` may be a text or a number"),
        ("rate: 1:30", "`1:30` may be a text or a number"),
    ],
)
def test_what_is_no_yaml_is_refused_in_words(text, words):
    with pytest.raises(ValueError, match=words):
        read_yaml(text)


def test_a_few_lines_may_not_hold_a_million_values():
    doubled = ", ".join(f"&a{n + 1} [*a{n}, *a{n}]" for n in range(60))
    with pytest.raises(ValueError, match=f"more than {MOST_VALUES:,} values"):
        read_yaml(f"[&a0 [1, 1], {doubled}]")


def test_references_are_fine():
    assert read_yaml("{a: &model {width: 4}, b: *model}") == {"a": {"width": 4}, "b": {"width": 4}}
