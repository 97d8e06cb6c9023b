"""A replay's report for people: the same tables and pictures on a terminal, in Markdown and on a page.

tables   its tables as data
figures  its pictures as data
curves   what moves a gain: rows, FLOPs, age, delay
text     the report on a terminal and in Markdown
page     the report as one HTML page
compare  two finished replays side by side
policy   the policy value of arms, where choices were logged, which the replay itself does not know
outcome  what a replay leaves in its folder
"""
