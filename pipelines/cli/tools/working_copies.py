"""Addresses of runs on a command line, replaced by the working copies of these runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

STATUS = {"status", "top", "stop"}
WHOLE = {"stream", "students", "spawn", "pause", "resume", "retire", "replay", "serve", "score", "report", "logs"}
READ = {
    "lake status", "lake readers", "teacher list", "dead-letters list", "dead-letters show", "metrics", "why",
    "capacity",
}  # fmt: skip
"""Commands that work on a run on object storage; those in `STATUS` need two files of it."""

CHANGE = {"mend watermark", "broker move", "promote", "rollback", "scale-workers", "silence", "forget"}
"""Commands that change a run there where its coordinator works, and any run that is stopped."""

GROUPS = {name.split()[0] for name in READ | CHANGE if " " in name}

REFUSED = ("--pin", "--retire", "--everywhere", "--serve")
"""Options with which a command in `READ` or `CHANGE` does not work there."""
LOOKS = {"--dry-run", "--help", "-h"}
"""Options with which a command in `CHANGE` only looks."""


@contextmanager
def working_copies(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Context of a command: its arguments with folders in the place of `s3://…` and `file://…`.

    >>> with working_copies(["status", "--run-dir", "runs/demo"]) as arguments:
    ...     print(arguments)
    ['status', '--run-dir', 'runs/demo']
    >>> with working_copies(["rewind", "--run-dir=s3://ads/runs/demo"]):
    ...     pass
    Traceback (most recent call last):
    ...
    streaming.errors.BadInput: `exfm rewind` does not work on a run on object storage yet; these do: exfm ...
    """
    with ExitStack() as held:
        yield _with_folders(arguments, held)


def _with_folders(arguments: Sequence[str], held: ExitStack) -> list[str]:
    from streaming.store.objects import is_url

    name = _name(arguments)
    found = []
    before = ""
    for argument in arguments:
        named = argument.startswith(("--run-dir=", "--from="))
        option, equals, value = argument.partition("=") if named else ("", "", argument)
        of_a_run = before == "--run-dir" or equals or value.startswith(("s3://", "file://"))
        of_a_run = of_a_run and before != "--tracking-uri"
        if of_a_run and is_url(value):
            value = _fetched(name, value, held, looks=not LOOKS.isdisjoint(arguments))
        found.append(f"{option}{equals}{value}")
        before = argument
    return found


def _name(arguments: Sequence[str]) -> str:
    """The command, in two words where the first is a group; with the options that are refused.

    >>> _name(["status", "--json", "runs/demo"]), _name(["lake", "readers", "runs/demo", "--pin=a:0:9"])
    ('status', 'lake readers --pin')
    """
    words = [argument for argument in arguments if not argument.startswith("-")]
    words = words[: 2 if words and words[0] in GROUPS else 1]
    refused = [option for option in REFUSED for argument in arguments if argument.partition("=")[0] == option]
    return " ".join([*words, *(refused if " ".join(words) in READ | CHANGE else ())])


def _fetched(name: str, address: str, held: ExitStack, *, looks: bool) -> str:
    from pipelines.core.run_dir.object_storage import STATUS as FILES
    from pipelines.core.run_dir.object_storage import taking_over, working_copy
    from streaming.errors import BadInput
    from streaming.store.objects import normalised

    normalised(address)
    if name in CHANGE and not looks:
        return str(held.enter_context(taking_over(address)))
    if name not in STATUS | WHOLE | READ | CHANGE:
        works = ", ".join(f"exfm {each}" for each in sorted(STATUS | WHOLE | READ | CHANGE))
        raise BadInput(f"`exfm {name}` does not work on a run on object storage yet; these do: {works}")
    return str(working_copy(address, FILES if name in STATUS else ("",)))
