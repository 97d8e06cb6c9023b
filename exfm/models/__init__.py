"""Teachers and students: networks, training steps, and what is served.

teacher_net   the teacher's network and its config
teacher       a teacher in training, on one or several ranks
scorer        a teacher that only scores
student       a student in training, and its config
served        what is served of a student
engine        what learns, in one form for live workers and offline runs
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
