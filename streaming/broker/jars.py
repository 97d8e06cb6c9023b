"""The embedded broker's jars: fetched once per user, and verified against the tested digest.

A download goes into a scratch folder and is renamed into place when it is whole, so a fetch that was killed leaves
nothing that a later one could take for complete (the resolver by itself leaves half a file, or half a folder).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from streaming.errors import StreamingError
from streaming.store.files import move

# kafka-clients is named explicitly: the log4j binding alone would let the resolver pick an older one.
JARS = "+".join(
    [
        "org.apache.kafka:kafka_2.13:4.3.1",
        "org.apache.kafka:kafka-clients:4.3.1",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    ]
)
# The digest of every jar that these three resolve to (`digest`). A new version of JARS needs a new one.
JARS_DIGEST = "4a5d4d280a7658161616e4e5d4b80d506de66fb640f0d87ebc6ce9780715f54c"


def cache_folder() -> Path:
    """Folder of the jars: one per digest, in the user's cache."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "exfm" / f"kafka-{JARS_DIGEST[:16]}"


def jars_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of all jars below `folder`.

    >>> jars_digest(Path("no-such-folder"))[:8]
    'e3b0c442'
    """
    total = hashlib.sha256()
    for jar in sorted(folder.rglob("*.jar"), key=lambda path: path.relative_to(folder).as_posix()):
        with jar.open("rb") as content:
            total.update(f"{jar.name} {hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def fetch_jars() -> Path:
    """The folder of the broker's jars (`jars/` and `modules/`): downloaded at the first call, checked at every one.

    Raises StreamingError where they cannot be fetched or are not the ones expected.
    """
    place = cache_folder()
    if place.is_dir():
        _check(place)
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=place.parent) as scratch:
            built = download(Path(scratch))
            digest = jars_digest(built)
            if digest != JARS_DIGEST:
                raise StreamingError(
                    f"the jars that were fetched for {JARS} have the digest {digest}, not {JARS_DIGEST}: something "
                    "between here and the Maven repository changed them; they were thrown away"
                )
            try:
                move(built, place)
            except OSError:  # another process was quicker
                if not place.is_dir():
                    raise
    except OSError as error:
        raise StreamingError(
            f"the embedded broker's jars cannot be kept in {place.parent}: {error.strerror or error}; free or unlock "
            "that folder, or set `bootstrap_servers` to a Kafka broker that you have"
        ) from error
    return place


def _check(place: Path) -> None:
    """Raises StreamingError where a jar was altered, torn or removed since it was fetched. Takes about 0.1 s."""
    digest = jars_digest(place)
    if digest != JARS_DIGEST:
        raise StreamingError(
            f"the embedded broker's jars in {place} are not the ones that were fetched (digest {digest[:16]}…, not "
            f"{JARS_DIGEST[:16]}…): none of them is run; delete that folder, and the next start fetches them again"
        )


def download(scratch: Path) -> Path:
    from jgo.env import EnvironmentBuilder, LinkStrategy
    from jgo.maven import MavenContext

    context = MavenContext(repo_cache=scratch / "repository")
    try:
        builder = EnvironmentBuilder(context=context, cache_dir=scratch / "jgo", link_strategy=LinkStrategy.HARD)
        return Path(builder.from_endpoint(JARS).path)
    except Exception as error:  # the resolver raises whatever its downloads raise
        raise StreamingError(
            f"the embedded broker's jars cannot be fetched ({type(error).__name__}: {str(error)[:300]}); needed once: "
            "network access to the Maven repository; or set `bootstrap_servers` to a Kafka broker that you have"
        ) from error
