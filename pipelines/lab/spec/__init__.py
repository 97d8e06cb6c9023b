"""Parts of a replay's spec: arms, conditions, and which rows.

arms        what an arm changes, in a spec or in a line of the command
conditions  the logits and labels that students get, and when they start
span        from which row to which
"""
