"""Addresses of runs on a command line, replaced by the working copies of these runs."""

from __future__ import annotations

from collections.abc import Sequence

STATUS = {"status", "top", "stop"}
WHOLE = {"stream", "students", "spawn", "pause", "resume", "retire", "replay", "serve", "score", "report", "logs"}
READ = {"lake status", "lake readers", "teacher list", "dead-letters list", "dead-letters show"}
"""Commands that work on a run on object storage; those in `STATUS` need two files of it."""

CHANGES = ("--pin", "--retire")
"""Options of commands in `READ` that change the run."""


def with_working_copies(arguments: Sequence[str]) -> list[str]:
    """The arguments with folders in the place of `s3://…` and `file://…`.

    >>> with_working_copies(["status", "--run-dir", "runs/demo"])
    ['status', '--run-dir', 'runs/demo']
    >>> with_working_copies(["mend", "--run-dir=s3://ads/runs/demo"])
    Traceback (most recent call last):
    ...
    streaming.errors.BadInput: `exfm mend` does not work on a run on object storage yet; these do: exfm ...
    """
    from streaming.store.objects import is_url

    name = _name(arguments)
    found = []
    before = ""
    for argument in arguments:
        option, equals, value = argument.partition("=") if argument.startswith("--run-dir=") else ("", "", argument)
        of_a_run = before == "--run-dir" or equals or value.startswith(("s3://", "file://"))
        of_a_run = of_a_run and before != "--tracking-uri"
        if of_a_run and is_url(value):
            value = _fetched(name, value)
        found.append(f"{option}{equals}{value}")
        before = argument
    return found


def _name(arguments: Sequence[str]) -> str:
    """The command, in two words where the first is a group; with the option by which it changes the run.

    >>> _name(["status", "--json", "runs/demo"]), _name(["lake", "readers", "runs/demo", "--pin=a:0:9"])
    ('status', 'lake readers --pin')
    """
    words = [argument for argument in arguments if not argument.startswith("-")]
    if not words or words[0] not in {name.split()[0] for name in READ}:
        return words[0] if words else ""
    changes = [option for option in CHANGES for argument in arguments if argument.partition("=")[0] == option]
    return " ".join([*words[:2], *changes])


def _fetched(name: str, address: str) -> str:
    from pipelines.core.run_dir.object_storage import STATUS as FILES
    from pipelines.core.run_dir.object_storage import working_copy
    from streaming.errors import BadInput
    from streaming.store.objects import normalised

    normalised(address)
    if name not in STATUS | WHOLE | READ:
        works = ", ".join(f"exfm {each}" for each in sorted(STATUS | WHOLE | READ))
        raise BadInput(f"`exfm {name}` does not work on a run on object storage yet; these do: {works}")
    return str(working_copy(address, FILES if name in STATUS else ("",)))
