"""The page of commands, from typer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from docs.generate.markdown import GENERATED, cell, prose, table
from docs.generate.settings import type_name


def commands_page() -> str:
    from typer.main import get_command

    from pipelines.cli.console import app

    text = ["# Commands", GENERATED, "Every command has `--help` with an example; commands that report have `--json`."]
    text.append("Exit codes: 0 done, 1 the run failed, 2 the caller's mistake, 130 interrupted and resumable.")
    for name, command in walk_commands(get_command(app), "exfm"):
        text += [f"## `{name}`", *described(command)]
        if rows := [parameter_row(parameter) for parameter in command.params if parameter.name != "help"]:
            text.append(table("option | type | default | meaning", rows))
    return "\n\n".join(text)


def walk_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for key in sorted(inner):
        if not inner[key].hidden:
            yield from walk_commands(inner[key], f"{name} {key}")


def described(command: Any) -> list[str]:
    """A command's help: its paragraphs, and its examples as code."""
    said = f"{command.help or ''}\n\n{command.epilog or ''}"
    lines = [line.strip() for line in said.replace("\f", "").split("\n")]
    examples = [line.removeprefix("Example:").strip() for line in lines if line.startswith("Example:")]
    rest = "\n".join(line for line in lines if not line.startswith("Example:"))
    paragraphs = [prose(paragraph) for paragraph in re.split(r"\n\s*\n", rest) if paragraph.strip()]
    return [*paragraphs, "```sh\n" + "\n".join(f".venv/bin/{example}" for example in examples) + "\n```"]


def parameter_row(parameter: Any) -> str:
    argument = parameter.param_type_name == "argument"
    names = [parameter.name.upper()] if argument else [*parameter.opts, *parameter.secondary_opts]
    kind = "flag" if getattr(parameter, "is_flag", False) else type_name(parameter.type_descriptor.annotation)
    kind = kind.replace("list of ", "") + ", repeatable" if parameter.multiple else kind
    default = "required" if parameter.required else given(parameter.default)
    shown = ", ".join(f"`{name}`" for name in names)
    return f"| {shown} | {kind} | {default} | {cell(prose(getattr(parameter, 'help', None) or ''))} |"


def given(default: Any) -> str:
    """A default in a table; nothing where there is none."""
    empty = default is None or default is False or default == () or default == [] or callable(default)
    return "" if empty else f"`{default}`"
