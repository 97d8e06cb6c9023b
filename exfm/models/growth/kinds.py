"""Tables that were of another kind when a state was stored.

    full → fiited, keep: 1      every chunk has a row: row r, cut in C, is rows C · r … C · r + C − 1 of the pool, and
                                so is its accumulator, where there is one a weight

Any other change means that rows hold something else, and is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from exfm.embeddings.kinds.fiited import Fiited
from exfm.embeddings.kinds.registry import FULL, sharing_rows
from exfm.embeddings.kinds.settings import EmbeddingSettings
from exfm.embeddings.weights import CutRows
from exfm.errors import ModelError
from exfm.snapshots.windows import TensorSource

if TYPE_CHECKING:
    from exfm.models.growth.refit import MadeWith


def changed_kinds(was: MadeWith, now: MadeWith) -> dict[str, Fiited]:
    """Tables that are of another kind now, each with its settings. Raises ModelError where that is not exact."""
    before, after = was.embeddings, now.embeddings
    changed: dict[str, Fiited] = {}
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, FULL), after.get(name, FULL)
        if old == new:
            continue
        if name not in set(was.features.table_names) & set(now.features.table_names):
            raise ModelError(
                f"table `{name}` comes or goes, and is `{_words(old if new == FULL else new)}`: only full tables do so "
                "in a model that goes on; leave its kind out, or begin another model"
            )
        rows = next((feature.rows for feature in now.features.tabled if feature.name == name), None)
        if (
            old != FULL
            or not isinstance(new, Fiited)
            or (new.keep, new.budget_bytes) != (1, None)
            or new.rows not in (None, rows)
            or len(sharing_rows(name, after)) > 1
            or now.model.get("sparse_optimizer") != "adagrad"
        ):
            raise ModelError(
                f"table `{name}` was `{_words(old)}`, and is wanted as `{_words(new)}`: rows of the one are not rows "
                "of the other. Exact is only `full` to `fiited` with `keep: 1`, without `rows` and `shares`, of a "
                "teacher whose `sparse_optimizer` is `adagrad`; leave the table as it was, or begin another model"
            )
        changed[name] = new
    return changed


def converted(tensors: Mapping[str, TensorSource], was: MadeWith, now: MadeWith) -> dict[str, TensorSource]:
    """A state of `was` with tables of the kinds of `now`. Raises ModelError as `changed_kinds` does."""
    found = dict(tensors)
    for name, kind in changed_kinds(was, now).items():
        for what in ("weight", "accumulator"):
            if (stored := tensors.get(key := f"table/{name}/{what}")) is not None:
                found[key] = CutRows(stored, kind.chunks)
    return found


def _words(settings: EmbeddingSettings) -> str:
    given = settings.model_dump(mode="json", exclude_defaults=True)
    return ", ".join([settings.kind, *(f"{key}: {value}" for key, value in given.items() if key != "kind")])
