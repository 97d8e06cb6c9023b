from .listing import Listed, listed_students
from .offline import learn_offline
from .outlook import Outlook, outlook_of
from .pipeline import Pipeline, Progress, Spawned
from .section import Asked, section_of

__all__ = [
    "Asked",
    "Listed",
    "Outlook",
    "Pipeline",
    "Progress",
    "Spawned",
    "learn_offline",
    "listed_students",
    "outlook_of",
    "section_of",
]
