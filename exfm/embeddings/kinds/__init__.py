"""Kinds of embedding tables, a file each: its settings, and which rows of plain tables an id reads.

settings   the settings that every kind has
full       a row per id
hashed     ids modulo a number of rows
mixed      narrow rows, and a map to the model's width
qr         quotient and remainder: few rows each, composed to many
fiited     chunks of vectors, pruned and regrown in training
managed    a row for each of the ids that live: they come and go
registry   kinds by name; the tables of a model
"""
