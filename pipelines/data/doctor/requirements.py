"""The pinned list of `requirements/`: which exact versions belong together, and how the installed ones differ."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipelines.core.shipped.files import pinned_list

FBGEMM = {"fbgemm-gpu": "cuda", "fbgemm-gpu-cpu": "cpu"}  # distribution -> name of its list


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, None where it is absent. Nothing is imported.

    >>> installed_version("no-such-distribution") is None
    True
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def installed_fbgemm(version_of: Callable[[str], str | None] = installed_version) -> list[str]:
    """Installed builds of fbgemm; there should be exactly one.

    >>> installed_fbgemm({"fbgemm-gpu": "1.8.0"}.get)
    ['fbgemm-gpu']
    """
    return [name for name in FBGEMM if version_of(name) is not None]


def parse(text: str) -> dict[str, str]:
    """Distribution -> exact version, of the lines that apply to this interpreter.

    >>> parse("# why\\ntorch==2.13.0\\nnumpy==2.4.6 ; python_version < '3'\\nPyYAML==6.0.3 \\\\\\n    --hash=sha256:0a")
    {'torch': '2.13.0', 'pyyaml': '6.0.3'}
    """
    pins: dict[str, str] = {}
    for line in text.splitlines():
        entry = line.partition("#")[0].strip(" \\")
        if entry and not entry.startswith("--hash="):
            requirement = Requirement(entry)
            if requirement.marker is None or requirement.marker.evaluate():
                pins[canonicalize_name(requirement.name)] = str(requirement.specifier).removeprefix("==")
    return pins


def read(variant: str) -> dict[str, str]:
    """The list `cpu` or `cuda`.

    >>> read("cpu")["fbgemm-gpu-cpu"]
    '1.8.0'
    """
    return parse(pinned_list(variant).read_text())


def differences(
    pins: dict[str, str], version_of: Callable[[str], str | None] = installed_version
) -> dict[str, tuple[str, str | None]]:
    """Distributions whose installed version differs: distribution -> (pinned, installed).

    >>> differences({"torch": "2.13.0", "ray": "2.60.0"}, {"torch": "2.12.0", "ray": "2.60.0"}.get)
    {'torch': ('2.13.0', '2.12.0')}
    """
    return {name: (pin, version_of(name)) for name, pin in pins.items() if version_of(name) != pin}


def required(pins: dict[str, str]) -> set[str]:
    """Packages that exfm with its command line, or an installed package of the list, requires. The rest are development
    tools.

    >>> {"torch", "sympy"} <= required({"torch": "2.13.0"}), "mypy" in required({"torch": "2.13.0"})
    (True, False)
    """
    lines = [(extra, line) for extra in ("streaming", "pipelines") for line in metadata.requires("exfm") or []]
    for name in pins:
        if installed_version(name) is not None:
            lines += [("", line) for line in metadata.requires(name) or []]
    requirements = ((extra, Requirement(line)) for extra, line in lines)
    return {
        canonicalize_name(requirement.name)
        for extra, requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    }
