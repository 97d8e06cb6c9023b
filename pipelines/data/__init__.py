"""Data before it is trained on: a profile of it, rules about it, a config proposed from it, and the machine's checks.

findings  the table of findings, severities, the verdict
profile/  what columns and rows hold
checks/   rules(profile, config): a config and its data, or labelled rows, judged
propose/  propose(profile): a config made from a file or from topics
doctor/   this machine, judged
"""
