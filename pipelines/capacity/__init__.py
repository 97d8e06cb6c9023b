"""Price of a config at a rate of impressions: cores, memory, network, disk, and where one machine ends.

rates     terms, and what each costs: of the shipped table, or measured from a finished run
price     rates times events: terms, workers, memory, bytes, and the limits of one machine
screen    the same on a terminal
"""
