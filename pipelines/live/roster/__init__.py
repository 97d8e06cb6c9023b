"""Students of a run as users manage them: spawn, pause, retire, list.

pipeline   a run, to ask it for students from Python
section    a new student's section of the config
estimate   what a spawn would read, take and cost
listing    every student of a run, in a line each
"""
