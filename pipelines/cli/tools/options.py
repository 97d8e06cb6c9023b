"""Options that several sub-commands share."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pipelines.core.access import Access


def warned(overrides: list[str] | None) -> list[str] | None:
    """Warn of passwords among `--set`."""
    if overrides:
        from pipelines.core.config.text import passwords_in

        for setting in dict.fromkeys(setting for text in overrides for setting in passwords_in(text)):
            typer.echo(
                f"warning: --set {setting}=… shows the password to everyone on this machine (ps), and to the shell's "
                f"history; better: export it as KAFKA_PASSWORD, then --set '{setting}={{env: KAFKA_PASSWORD}}'",
                err=True,
            )
    return overrides


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def private_files() -> None:
    """Set the umask so that only the user can read the files that this process and its children create, since they
    hold rows and may hold more."""
    os.umask(0o077)


Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a setting of the config: path=value. May be repeated.", callback=warned),
]
RunDirOption = Annotated[Path, typer.Option("--run-dir", help="Folder of the run.")]
RunDirOrDefault = Annotated[
    Path | None, typer.Option("--run-dir", help="Folder of the run; default: runs/NAME, the config's name.")
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Processes, of one thread each; default: one per core.")
]
Host = Annotated[str, typer.Option("--host", help="The address to listen on; others than loopback need a token.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="A file with the token of requests; default: EXFM_TOKEN.")
]
TlsCert = Annotated[Path | None, typer.Option("--tls-cert", help="PEM file of the certificate: HTTPS.")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="PEM file of its key; default: in --tls-cert.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def access_of(host: str, token_file: Path | None, tls_cert: Path | None, tls_key: Path | None) -> Access:
    """Access to a server, from its options and EXFM_TOKEN. Raises BadInput as `Access` does."""
    from pipelines.core.access import Access, token_from

    access = Access(host, token_from(token_file), tls_cert, tls_key)
    if not access.only_here and access.cert is None:
        typer.echo("note: without --tls-cert the token and all answers can be read on their way", err=True)
    return access


def _given(context: typer.Context, run: Path | None) -> Path | None:
    """`--run-dir` has been read by then: an argument that is not given comes after what is."""
    if run is None and context.params.get("run_dir") is None:
        raise typer.BadParameter("missing folder of a run: RUN as the last argument, or --run-dir RUN")
    return run


_SAME: dict[str, Any] = {"metavar": "RUN", "help": "The same as --run-dir.", "show_default": False}
_RUN = Annotated[Path | None, typer.Argument(**_SAME)]
_RUN_OR_OPTION = Annotated[Path | None, typer.Argument(**_SAME, callback=_given)]


def _refuse_follower(root: Path) -> None:
    """Raise BadInput for a run that follows another's lake: what is asked for is the other's."""
    from pipelines.core.run_dir.paths import RunDir
    from streaming.errors import BadInput

    run_dir = RunDir(root)
    if run_dir.follows:
        leader = run_dir.leader.root
        raise BadInput(
            f"{root} follows the lake of {leader}: teacher, topics, broker and lake are that run's, and this one "
            f"changes nothing of them. Ask that run, with --run-dir {leader}"
        )


def takes_run(function: Callable[..., None], *, beside: str | None = None, leads: bool = False) -> Callable[..., None]:
    """Add the option `--run-dir` to a command, whose run may also be its last argument.

    `beside`: an argument that may be left out, in whose place the run may stand then, or a list among whose values it
    may; there a folder is a run. `leads`: the command is about a run's own teacher, topics or lake, and is refused for
    a run that follows another's.

    >>> def status(run_dir: RunDirOption, as_json: AsJson = False) -> None:
    ...     print(run_dir)
    >>> takes_run(status)(run=Path("runs/demo"), run_dir=None, as_json=False)
    runs/demo
    """
    signature = inspect.signature(function, eval_str=True)
    option = signature.parameters["run_dir"]
    required = option.default is option.empty

    @functools.wraps(function)
    def command(*, run: Path | None = None, run_dir: Path | None = None, **others: Any) -> None:
        if beside is not None and run is None and run_dir is None:
            run, others[beside] = _run_among(others[beside])
        if run is not None and run_dir is not None:
            raise typer.BadParameter(f"the run is given twice: {run}, and --run-dir {run_dir}")
        if run is None and run_dir is None and required:
            raise typer.BadParameter("missing folder of a run: RUN as the last argument, or --run-dir RUN")
        chosen = run or run_dir or (None if required else option.default)
        if leads and chosen is not None:
            _refuse_follower(chosen)
        function(run_dir=chosen, **others)

    optional = option.replace(default=None, annotation=Annotated[Path | None, *option.annotation.__metadata__])
    parts = [optional if part is option else part for part in signature.parameters.values()]
    if beside is None or signature.parameters[beside].annotation.__origin__ != list[str] | None:
        parts.append(
            option.replace(name="run", default=None, annotation=_RUN_OR_OPTION if required and beside is None else _RUN)
        )
    parts = [part.replace(kind=part.KEYWORD_ONLY) for part in parts]
    command.__signature__ = signature.replace(parameters=parts)  # type: ignore[attr-defined]
    command.__annotations__ = {part.name: part.annotation for part in parts}
    return command


def _run_among(values: str | list[str] | None) -> tuple[Path | None, str | list[str] | None]:
    """The first of these values that is a folder, and what is left."""
    listed = [values] if isinstance(values, str) else values or []
    run = next((value for value in listed if Path(value).is_dir()), None)
    if run is None:
        return None, values
    return Path(run), [value for value in listed if value != run] or None
