from .estimate import BackfillEstimate, estimate_backfill
from .listing import Listed, listed_students
from .offline import learn_offline
from .pipeline import Pipeline, Progress, Spawned
from .section import SpawnRequest, section_of

__all__ = [
    "BackfillEstimate",
    "Listed",
    "Pipeline",
    "Progress",
    "SpawnRequest",
    "Spawned",
    "estimate_backfill",
    "learn_offline",
    "listed_students",
    "section_of",
]
