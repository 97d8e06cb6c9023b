"""Plans: where a config's tables would go, what that costs, and whether it fits.

question  a config as a question for the planner; checks of this machine
report    what is known of a plan, as data, JSON or a refusal
screen    the same on a terminal
"""
