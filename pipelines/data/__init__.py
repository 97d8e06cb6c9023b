"""Data before it is trained on.

profile/  what columns and labelled rows hold
checks/   a config and its data, judged before a run
propose/  a config made from a file or from topics
doctor/   this machine, judged before a run
"""
