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
from .json_schema import json_schema_of_files
from .kept_columns import keep_columns, with_kept_columns
from .lineage import accepted_identities, hashes_of_run, remember
from .models import Augmentation, StudentSettings, TeacherSettings
from .sections import (
    Advance,
    AlarmLimits,
    Generated,
    LossLimits,
    MetricsSettings,
    Pace,
    Recorded,
    RegistrySettings,
    Resources,
)
from .settings import Config, dump, load, parse, shown
from .text import choices, mapping, merged, override, passwords_in, problems, read_settings
from .topics import Frozen, Kafka, Topic

__all__ = [
    "STUDENT",
    "Advance",
    "AlarmLimits",
    "Augmentation",
    "Config",
    "Frozen",
    "Generated",
    "Kafka",
    "LossLimits",
    "MetricsSettings",
    "Pace",
    "Recorded",
    "RegistrySettings",
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
    "json_schema_of_files",
    "keep_columns",
    "load",
    "made_with_student",
    "made_with_teacher",
    "mapping",
    "merged",
    "moved",
    "override",
    "own_section",
    "parse",
    "passwords_in",
    "problems",
    "read_settings",
    "remember",
    "shown",
    "student_changes",
    "with_kept_columns",
    "with_students",
]
