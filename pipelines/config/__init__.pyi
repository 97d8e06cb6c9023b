from .evolve import evolution, made_with_student, made_with_teacher, older_hashes, remember
from .hash import decisive, hash_of, moved
from .settings import Config, Frozen, Generated, Kafka, Pace, Recorded, Resources, Student, Topic, dump, load, parse
from .text import choices, merged, override, problems, read_settings

__all__ = [
    "Config",
    "Frozen",
    "Generated",
    "Kafka",
    "Pace",
    "Recorded",
    "Resources",
    "Student",
    "Topic",
    "choices",
    "decisive",
    "dump",
    "evolution",
    "hash_of",
    "load",
    "made_with_student",
    "made_with_teacher",
    "merged",
    "moved",
    "older_hashes",
    "override",
    "parse",
    "problems",
    "read_settings",
    "remember",
]
