from .evolve import (
    StudentChanges,
    decisive_for_all,
    evolution,
    made_with_student,
    made_with_teacher,
    student_changes,
    with_students,
)
from .hash import decisive, hash_of, moved
from .identity import STUDENT, depends_on, identity_of, own_section
from .lineage import accepted_identities, hashes_of_run, remember
from .models import Augmentation, StudentSettings, TeacherSettings
from .sections import Frozen, Generated, Kafka, LossLimits, MetricsSettings, Pace, Recorded, Resources, Topic
from .settings import Config, dump, load, parse
from .text import choices, merged, override, passwords_in, problems, read_settings

__all__ = [
    "STUDENT",
    "Augmentation",
    "Config",
    "Frozen",
    "Generated",
    "Kafka",
    "LossLimits",
    "MetricsSettings",
    "Pace",
    "Recorded",
    "Resources",
    "StudentChanges",
    "StudentSettings",
    "TeacherSettings",
    "Topic",
    "accepted_identities",
    "choices",
    "decisive",
    "decisive_for_all",
    "depends_on",
    "dump",
    "evolution",
    "hash_of",
    "hashes_of_run",
    "identity_of",
    "load",
    "made_with_student",
    "made_with_teacher",
    "merged",
    "moved",
    "override",
    "own_section",
    "parse",
    "passwords_in",
    "problems",
    "read_settings",
    "remember",
    "student_changes",
    "with_students",
]
