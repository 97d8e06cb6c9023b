"""A replay's report as one HTML page: it needs no server, no network and no script, on a phone as on a desk.

page       the whole page, from the report as one JSON value
sections   its parts in words and tables: verdict, figures, decisions, data, what was run
pictures   its parts in pictures: event time, segments, calibration, cost
reading    the report's JSON value, read
charts     pictures as inline SVG, each with a title and the table behind it
marks      scales, ticks and colours of the pictures
markup     elements, tables and escaped text
compared   two finished replays side by side
style      how it looks: light and dark, wide and narrow, on paper
"""
