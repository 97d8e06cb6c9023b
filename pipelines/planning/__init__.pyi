from .question import Part, ask, question_of

__all__ = [
    "Part",
    "ask",
    "question_of",
]
