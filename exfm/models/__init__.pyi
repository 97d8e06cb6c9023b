from .engine import STUDENT, TEACHER, TWIN, Engine, Judged, StudentEngine, TeacherEngine, under
from .scorer import ShardedScorer, TeacherScorer, snapshot_of
from .served import ServedStudent, check_logits, load_served, load_student, save_served
from .student import Student, StudentConfig
from .teacher import SentBatch, Teacher
from .teacher_net import TeacherConfig, TeacherNet

__all__ = [
    "STUDENT",
    "TEACHER",
    "TWIN",
    "Engine",
    "Judged",
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
    "check_logits",
    "load_served",
    "load_student",
    "save_served",
    "snapshot_of",
    "under",
]
