"""Results as tables and figures that are data, and one renderer each for a terminal, Markdown and a page.

cells     results as one tidy table, and its figures by metric
table     TextTable: a title, a head, rows
figure    Figure: series of points, axes, and the table behind them
words     numbers, intervals and times as text
terminal  tables on a terminal (rich)
markdown  tables in Markdown
pictures  figures as SVG and PNG (matplotlib)
page      sections as one HTML page (Jinja2)
results/  results of a finished run
screens/  what a run shows on a terminal
"""
