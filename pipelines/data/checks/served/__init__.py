"""Served predictions, compared with what became of them: `exfm check RUN --served TOPIC`.

log      a topic that servers write (pipelines/serve/logged.py), as rows
joined   its rows with those of the lake, by impression
judged   coverage, skew, predictions made again, calibration
"""
