"""Decisions before training: placement of tables, cost of a teacher, benefit of its size.

placement      the plan of a teacher's tables: bytes and predicted cost of every rank
alternatives   other strategies, and what would make room where there is none
cost           parameters of a teacher, FLOPs of a teacher or a student
family         teachers of growing size, and teachers of equal FLOPs
law            how normalised entropy falls with FLOPs
"""
