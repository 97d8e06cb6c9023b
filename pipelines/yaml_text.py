"""YAML as a config needs it: plain values, every key once, of a size that somebody has written."""

from __future__ import annotations

from typing import Any

import yaml

MOST_VALUES = 100_000
"""References (`*name`) written out, a text may hold so many values; a few lines could hold 2^100."""


def read_yaml(text: str) -> Any:
    """The value of a YAML text. Raises ValueError where it is none, in words.

    >>> read_yaml("{seed: 2, tasks: [ctr]}")
    {'seed': 2, 'tasks': ['ctr']}
    """
    try:
        value = yaml.load(text, _Loader)
        if _count(value) > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values, its references written out")
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deep, or inside itself") from None
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        # What PyYAML's constructors say of `!!int ''` and the like.
        raise ValueError(f"a value is not of the kind that its tag names ({error!r})") from None
    return value


class _Loader(yaml.SafeLoader):
    """YAML in which a key may stand once; plain YAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                raise yaml.YAMLError(f"`{key.value}` stands twice, again on line {key.start_mark.line + 1}")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


def _count(value: Any, before: int = 0) -> int:
    """Values in `value` and before it, counted no further than beyond the most allowed."""
    count = before + 1
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    for item in inside:
        if count > MOST_VALUES:
            break
        count = _count(item, count)
    return count
