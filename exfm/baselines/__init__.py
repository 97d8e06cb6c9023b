"""Baselines that learn next to a student: what a deep model has to be better than.

baseline   what they have in common
constant   the label rate so far, for every row
ftrl       FTRL-proximal over hashed ids and crosses: also a student's linear part
logistic   the same, as a model of its own
"""
