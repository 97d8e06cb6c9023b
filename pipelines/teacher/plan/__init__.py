"""Plans of a config's tables: placement, cost, and whether they fit.

embeddings  bytes of tables under each kind, and settings within a budget
question    a config as a question for the planner; checks of this machine
report      what is known of a plan, as data, JSON or a refusal
screen      the same on a terminal
"""
