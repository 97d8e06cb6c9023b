"""Settings as people write them: YAML without duplicate keys, `--set path=value`, and readable errors."""

from __future__ import annotations

import difflib
import re
from datetime import date, datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pipelines.core.shipped.files import CONFIGS, config_file, config_names
from streaming.errors import BadInput
from streaming.kafka.secrets import SECRET_KEYS

MOST_VALUES = 100_000
"""References (`*name`) written out, a text may hold so many values; a few lines could hold 2^100."""


def read_yaml(text: str) -> Any:
    """The value of a YAML text. Raises ValueError where it is none, in words that hold no password of it.

    >>> read_yaml("{seed: 2, tasks: [ctr]}")
    {'seed': 2, 'tasks': ['ctr']}
    """
    try:
        value = yaml.load(text, _Loader)
        if _count(value) > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values, its references written out")
    except RecursionError:
        raise ValueError("it is nested too deep, or inside itself") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(_unquoted(error) if holds_secret(text) else str(error)) from None
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        # What PyYAML's constructors say of `!!int ''` and the like.
        of = "" if holds_secret(text) else f" ({error!r})"
        raise ValueError(f"a value is not of the kind that its tag names{of}") from None
    return value


PASSWORD_IN_ADDRESS = re.compile(r"https?://\S+@|://[^/\s@:]*:\S+@|[?&](?:password|pwd|token)=", re.I)


def holds_secret(text: str) -> bool:
    """True if a text contains a secret key, or an address with a password. Then a message quotes nothing of the text:
    where it is no YAML, or is YAML in quotes, what is the key's value and what is not cannot be known.

    >>> holds_secret("postgresql://mlflow:s3cret@db/mlflow"), holds_secret("http://mlflow:5000")
    (True, False)
    >>> holds_secret("http://t0ken@mlflow:5000"), holds_secret("postgresql://u@db/x?password=p")
    (True, True)
    >>> holds_secret("postgresql://mlflow@db:5432/mlflow"), holds_secret("postgresql://u:a/b@db/x")
    (False, True)
    """
    return any(key in text for key in SECRET_KEYS) or PASSWORD_IN_ADDRESS.search(text) is not None


def _unquoted(error: Exception) -> str:
    """Text of an error without its quotations.

    >>> _unquoted(ValueError("invalid literal for int() with base 10: 's3cret'"))
    'invalid literal for int() with base 10: …'
    """
    problem = getattr(error, "problem", None) or str(error)
    mark = getattr(error, "problem_mark", None)
    place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
    return re.sub(r"'(?!<).{2,}'|`.+`|\".{2,}\"", "…", str(problem), flags=re.DOTALL) + place


class _Loader(yaml.SafeLoader):
    """YAML in which a key may stand once, where plain YAML silently takes the last, and whose text can be written."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        text: str = super().construct_scalar(node)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise yaml.YAMLError(f"line {node.start_mark.line + 1} holds half of a surrogate pair, no character")
        return text

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys and key.value != "<<":
                raise yaml.YAMLError(f"duplicate key `{key.value}` on line {key.start_mark.line + 1}")
            keys.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Whole numbers as everyone reads them: plain YAML takes 010 for 8, and 1:30 for 90."""
        if re.fullmatch(r"[-+]?0[0-9_]+|.*:.*", node.value):
            raise yaml.YAMLError(
                f"`{node.value}` may be a text or a number; put a text in quotes, or leave zeros before a number out"
            )
        return int(super().construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _count(value: Any, before: int = 0) -> int:
    """Values in `value` and before it, counted no further than beyond the most allowed."""
    count = before + 1
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    for item in inside:
        if count > MOST_VALUES:
            break
        count = _count(item, count)
    return count


def read_settings(path: str | Path, what: str) -> dict[str, Any]:
    """Read the mapping in a YAML file; `what` names its content in errors. Raises BadInput."""
    try:
        raw = read_yaml(config_file(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"no {what} at {path}; {_shipped()}") from None
    except OSError as error:
        raise BadInput(f"cannot read the {what} {path}: {error.strerror}; give a YAML file, or {_shipped()}") from None
    except ValueError as error:
        raise BadInput(f"{path} is not YAML: {error}") from None
    return mapping(raw, str(path))


def _shipped() -> str:
    return f"name one that comes with exfm ({', '.join(config_names())}), or copy and edit one of {CONFIGS}"


def mapping(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a string", type(None): "nothing"}.get(type(value), f"`{value}`")
        raise BadInput(f"{place} holds {kind}, not a mapping of settings (`key: value`)")
    return value


def choices(asked: str, possible: set[str]) -> str:
    near = difflib.get_close_matches(asked, possible, n=1)
    hint = f"did you mean `{near[0]}`? " if near else ""
    return f"{hint}choose from {', '.join(sorted(possible))}"


def problems(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """Validation errors, one line each, with their place in settings of kind `root`."""
    lines = []
    for problem in error.errors(include_url=False):
        where = ".".join(_places(problem["loc"])) or root.__name__.lower()
        if problem["type"] == "extra_forbidden":
            possible = _keys_at(problem["loc"][:-1], root)
            key = str(problem["loc"][-1])
            lines.append(f"  {where}: unknown key; {choices(key, possible) if possible else 'remove it'}")
        elif problem["type"] == "missing":
            lines.append(f"  {where}: missing")
        else:
            lines.append(f"  {where}: {_wanted(problem)}")
    return lines


def _places(location: tuple[int | str, ...]) -> list[str]:
    """Parts of a place, without the kind of a source, which a config does not write there.

    >>> _places(("source", "lake", "lake")), _places(("source", "recorded", "path"))
    (['source', 'lake'], ['source', 'path'])
    """
    is_kind = location[:1] == ("source",) and location[1:2] in (("generated",), ("recorded",), ("lake",))
    return [str(part) for part in ((location[0], *location[2:]) if is_kind else location)]


KINDS = {
    "string": "a text is wanted",
    "int": "a whole number is wanted",
    "float": "a number is wanted",
    "bool": "true or false is wanted",
    "tuple": "a list is wanted, as in [a, b]",
    "list": "a list is wanted, as in [a, b]",
    "dict": "a mapping of settings is wanted, as in {key: value}",
    "model": "a mapping of settings is wanted, as in {key: value}",
}
READ_AS = {bool: "true or false", date: "a date", datetime: "a time", type(None): "nothing (null)"}


def _wanted(problem: Any) -> str:
    """Description of the wanted value, and of the one received. `problem`: one of pydantic's.

    >>> _wanted({"type": "string_type", "input": False, "msg": ""})
    'a text is wanted, and YAML reads this as true or false; put a text in quotes (got False)'
    """
    value = problem.get("input")
    got = "" if isinstance(value, dict | list) or holds_secret(str(value)) else f" (got {value!r})"
    kind, _, rest = problem["type"].partition("_")
    if problem["type"] == "union_tag_invalid":
        context = problem["ctx"]
        name = context["discriminator"].strip("'")
        return f"{name} is `{context['tag']}`; choose from {context['expected_tags']}"
    if kind not in KINDS or not rest.startswith(("type", "parsing", "from_float", "attributes_type")):
        return f"{problem['msg'].removeprefix('Value error, ')}{got}"
    read = READ_AS.get(type(value)) if kind == "string" else None
    return KINDS[kind] + (f", and YAML reads this as {read}; put a text in quotes" if read else "") + got


def _keys_at(location: tuple[int | str, ...], root: type[BaseModel]) -> set[str]:
    """The keys there are at a place, found by walking the models' own fields."""
    kinds: list[type[BaseModel]] = [root]
    for part in location:
        if isinstance(part, int):
            continue
        models = [m for kind in kinds if part in kind.model_fields for m in _models(kind.model_fields[part].annotation)]
        named = [kind for kind in kinds if part == kind.__name__.lower()]
        kinds = models or named or kinds
    return {field.alias or name for kind in kinds for name, field in kind.model_fields.items()}


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]


def override(raw: dict[str, Any], assignment: str) -> None:
    """Set `path=value` in the settings; the path names list items or uses their index. Raises BadInput."""
    name, equals, text = assignment.partition("=")
    *parents, last = name.split(".")
    shown = _shown(assignment)
    if not equals or not all((*parents, last)):
        raise BadInput(f"--set {shown}: write it as path=value, for example --set seed=2")
    try:
        value = read_yaml(text)
    except ValueError:
        of = "…" if holds_secret(assignment) else text
        raise BadInput(f"--set {shown}: `{of}` is not a YAML value; put quotes around a text") from None
    node: Any = raw
    for part in parents:
        node = node[_index(node, part, shown)] if isinstance(node, list) else node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise BadInput(f"--set {shown}: `{part}` is a single value, it has nothing below it")
    if isinstance(node, list):
        node[_index(node, last, shown)] = value
    else:
        node[last] = value


def _shown(assignment: str) -> str:
    """A `--set` as messages show it.

    >>> _shown("kafka.security={sasl_plain_password: s3cret}"), _shown("kafka.security.ssl_password:s3cret")
    ('kafka.security=…', 'kafka.security.ssl_password…')
    """
    if not holds_secret(assignment):
        return assignment
    name, equals, _ = assignment.partition("=")
    end = min((name.find(key) + len(key) for key in SECRET_KEYS if key in name), default=len(name))
    return f"{name[:end]}{equals}…" if end == len(name) else f"{name[:end]}…"


def passwords_in(assignment: str) -> list[str]:
    """Secret settings that a `--set` gives as plain text, readable by every process of the machine.

    >>> passwords_in("kafka.security.sasl_plain_password=s3cret")
    ['kafka.security.sasl_plain_password']
    >>> passwords_in("kafka.security={sasl_plain_password: {env: KAFKA_PASSWORD}, sasl_plain_username: exfm}")
    []
    """
    raw: dict[str, Any] = {}
    try:
        override(raw, assignment)
    except BadInput:  # said where it is applied
        return []
    section: Any = raw
    for part in ("kafka", "security"):
        section = section.get(part) if isinstance(section, dict) else {}
    security = section if isinstance(section, dict) else {}
    return [f"kafka.security.{name}" for name in SECRET_KEYS if isinstance(security.get(name), str | int)]


def _index(node: list[Any], part: str, assignment: str) -> int:
    names = [item.get("name") if isinstance(item, dict) else item for item in node]
    if part in (places := [str(place) for place in range(len(node))]):
        return places.index(part)
    if part in names:
        return names.index(part)
    raise BadInput(f"--set {assignment}: `{part}` is none of {', '.join(map(str, names))}, nor 0 to {len(node) - 1}")


def merged(defaults: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`own` over `defaults`, mapping by mapping. An arm that is the name of a preset is a mapping with that preset.

    >>> merged({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    >>> merged({"arm": "recommended"}, {"arm": {"weight": 2}})
    {'arm': {'preset': 'recommended', 'weight': 2}}
    """
    settings = dict(defaults)
    if isinstance(settings.get("arm"), str):
        settings["arm"] = {"preset": settings["arm"]}
    for key, value in own.items():
        both = isinstance(value, dict) and isinstance(settings.get(key), dict)
        settings[key] = merged(settings[key], value) if both else value
    return settings
