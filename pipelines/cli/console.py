"""The console command `exfm`.

Every module of this folder, and of `teachers/`, holds the sub-commands of one noun and a function `register(app)`
that adds them. They are imported for each call, `exfm --help` included, so they import nothing heavy at their top:
torch, ray, mlflow, pyarrow and the like are imported inside the functions.

Exit codes: 0 done, 1 the run failed, 2 a mistake of the caller, 130 interrupted.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Annotated, Any

import typer
import typer.core

from pipelines.cli.tools.working_copies import working_copies
from streaming.process_limit import met_limit
from streaming.program import command

DONE, FAILED, CALLERS_MISTAKE, INTERRUPTED = 0, 1, 2, 130
COMPLETION = {"--install-completion", "--show-completion"}

PANELS = {
    "Begin": ("doctor", "init", "config", "check"),
    "Run a stream": (
        "stream",
        "top",
        "status",
        "ui",
        "why",
        "metrics",
        "silence",
        "stop",
        "scale-workers",
        "forget",
        "report",
    ),
    "Students of a run": ("students", "spawn", "pause", "resume", "retire", "logs"),
    "Versions and serving": ("promote", "rollback", "serve", "score"),
    "Compare offline": ("replay", "sweep"),
    "Teachers": ("plan", "scale", "pretrain", "rescore", "teacher", "rewind"),
    "Speed and size": ("bench", "capacity", "deploy"),
    "Streams, lake and repairs": ("generate", "ingest", "broker", "lake", "dead-letters", "mend"),
}
"""What `exfm --help` shows together, in this order."""


class _InPanels(typer.core.TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        order = [name for names in PANELS.values() for name in names]
        return sorted(super().list_commands(ctx), key=order.index)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found: Any = super().get_command(ctx, cmd_name)
        if found is not None:
            found.rich_help_panel = next(panel for panel, names in PANELS.items() if cmd_name in names)
        return found


app = typer.Typer(
    name="exfm",
    cls=_InPanels,
    help="One large teacher trains on an ads stream; many small vertical students distil from its logged logits.",
    epilog="Try: exfm stream configs/demo.yaml --until-end",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from exfm import __version__

        typer.echo(f"exfm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """Options of every sub-command. `main` has already removed `--debug` from the arguments."""


NOUNS = (
    "broker",
    "capacity",
    "configs",
    "deploy",
    "lake",
    "machine",
    "metrics",
    "recordings",
    "repairs",
    "replay",
    "stream",
    "students",
    "teachers.logit_sets",
    "teachers.rewind",
    "teachers.teacher",
    "ui",
    "versions",
    "why",
)
for _noun in NOUNS:
    importlib.import_module(f"{__package__}.{_noun}").register(app)


def exit_code(error: BaseException) -> int | None:
    """Exit code of an error that the user can act on; None for a bug in ExFM.

    >>> from streaming.errors import BadInput, StreamingError
    >>> exit_code(BadInput("no such topic")), exit_code(StreamingError("broker gone")), exit_code(ZeroDivisionError())
    (2, 1, None)
    """
    kinds: list[tuple[str, str, int]] = [
        ("streaming.errors", "BadInput", CALLERS_MISTAKE),
        ("streaming.errors", "NotAdmitted", CALLERS_MISTAKE),
        ("exfm.errors", "ConfigError", CALLERS_MISTAKE),
        ("streaming.errors", "StreamingError", FAILED),
        ("exfm.errors", "ModelError", FAILED),
    ]
    for module, name, code in kinds:
        # An error of a module that was never imported cannot have been raised, and importing exfm may cost seconds.
        kind: Any = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return code
    if isinstance(error, OSError) or met_limit(error) is not None:
        return FAILED
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return None


def _message(error: BaseException) -> str:
    if exit_code(error) == FAILED and (limit := met_limit(error)) is not None:
        return f"{error}: {limit}"
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror} (from the operating system; --debug shows where)"
    return str(error) or type(error).__name__


def as_called(part: Any, program: str) -> Any:
    """Adapt the examples in the help of a command, or a group of commands, to call `program`."""
    for name in ("help", "epilog"):
        if (text := getattr(part, name, None)) is not None:
            setattr(part, name, re.sub(r"(Example: |Try: |`)exfm (?=[a-z])", rf"\g<1>{program} ", text))
    for each in getattr(part, "commands", {}).values():
        as_called(each, program)
    return part


def main(arguments: list[str] | None = None) -> None:
    """Run `exfm`. An error that the user can fix becomes one paragraph on stderr; a bug in ExFM shows a traceback."""
    command_line = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in command_line
    try:
        program = command("exfm")
        with working_copies(command_line) as command_line:
            as_called(typer.main.get_command(app), program)(
                args=[argument for argument in command_line if argument != "--debug"],
                prog_name="exfm" if COMPLETION & set(command_line) else program,  # a shell completes names, not paths
                complete_var="_EXFM_COMPLETE",
            )
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error)
        if debug or code is None:
            raise
        typer.secho(f"exfm: {_message(error)}", err=True)
        sys.exit(code)
