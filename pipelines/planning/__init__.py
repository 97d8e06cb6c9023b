"""Plans: where a config's tables would go, what that costs, and whether it fits.

question  a config as a question for the planner; checks of this machine
report    what is known of a plan, as data, JSON or a refusal
screen    the same on a terminal
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
