"""Baselines that learn next to a student: simple models that a deep one has to beat.

baseline   what they have in common
constant   the label rate so far, for every row
ftrl       FTRL-proximal over hashed ids and crosses: also a student's linear part
logistic   the same, as a model of its own
hashed_linear  the linear model of ids and pairs of them, hashed, that both learn
prior      the log-odds of the label rate so far, which every model adds to its logits
"""
