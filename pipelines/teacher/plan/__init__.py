"""Plans of a config's tables: placement, cost, and whether they fit.

question  a config as a question for the planner; checks of this machine
report    what is known of a plan, as data, JSON or a refusal
screen    the same on a terminal
"""
