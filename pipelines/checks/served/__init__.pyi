from .joined import Joined, joined
from .judged import judge_served
from .log import Logged, read_log

__all__ = [
    "Joined",
    "Logged",
    "joined",
    "judge_served",
    "read_log",
]
