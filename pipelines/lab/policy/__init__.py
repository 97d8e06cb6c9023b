"""The policy value of a replay's arms, which the replay itself does not know of.

choices  what the candidates are worth that a model would have chosen, from logged propensities
"""
