from .as_shown import AsShown, AsShownConfig
from .changes import Changes, Rows, Touched, all_of, changes_of
from .engine import (
    AS_SHOWN,
    LOGISTIC,
    RATE,
    STUDENT,
    TEACHER,
    TWIN,
    Engine,
    Judged,
    Prepared,
    StudentEngine,
    TeacherEngine,
    under,
)
from .scorer import ShardedScorer, TeacherScorer, snapshot_of
from .served import (
    PARITY,
    ServedStudent,
    VersionScorer,
    check_logits,
    load_served,
    load_student,
    save_served,
    served_meta,
    served_of,
)
from .stack import has_wide, stacked
from .student import Student
from .student_config import StudentConfig
from .student_wide import LINEAR
from .teacher import SentBatch, Teacher
from .teacher_config import TeacherConfig, wide_columns
from .teacher_net import TeacherNet
from .teacher_wide import all_tables, wide_configs

__all__ = [
    "AS_SHOWN",
    "LINEAR",
    "LOGISTIC",
    "PARITY",
    "RATE",
    "STUDENT",
    "TEACHER",
    "TWIN",
    "AsShown",
    "AsShownConfig",
    "Changes",
    "Engine",
    "Judged",
    "Prepared",
    "Rows",
    "SentBatch",
    "ServedStudent",
    "ShardedScorer",
    "Student",
    "StudentConfig",
    "StudentEngine",
    "Teacher",
    "TeacherConfig",
    "TeacherEngine",
    "TeacherNet",
    "TeacherScorer",
    "Touched",
    "VersionScorer",
    "all_of",
    "all_tables",
    "changes_of",
    "check_logits",
    "has_wide",
    "load_served",
    "load_student",
    "save_served",
    "served_meta",
    "served_of",
    "snapshot_of",
    "stacked",
    "under",
    "wide_columns",
    "wide_configs",
]
