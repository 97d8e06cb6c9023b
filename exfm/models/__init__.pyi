from .scorer import ShardedScorer, TeacherScorer, snapshot_of
from .served import ServedStudent, check_logits, load_served, load_student, save_served
from .student import Student, StudentConfig
from .teacher import SentBatch, Teacher
from .teacher_net import TeacherConfig, TeacherNet

__all__ = [
    "SentBatch",
    "ServedStudent",
    "ShardedScorer",
    "Student",
    "StudentConfig",
    "Teacher",
    "TeacherConfig",
    "TeacherNet",
    "TeacherScorer",
    "check_logits",
    "load_served",
    "load_student",
    "save_served",
    "snapshot_of",
]
