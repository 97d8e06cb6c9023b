"""A teacher beside the stream.

plan/     where its tables go on its ranks, what that costs, and whether it fits
replace/  another one in its place
"""
