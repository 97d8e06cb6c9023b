"""Scaling: a replay of teachers of growing size, without students.

family  which teachers there are, and what they cost
fit     their figures on one stream, what size buys, and the law of it
report  the result as tables and a picture
"""
