"""A small read-only web page over a run, live or ended: `exfm ui`. It reads files and asks nothing of workers.

view    what the page shows of a run's status
curves  NE of students by event time, from their logs of predictions
server  requests, the token, and the one document
"""
