"""Increments: the difference between two states of a student, for the process that serves it.

increment  a delta (../delta.py), and a probe that tells whether it was taken up right
chain      a folder of full versions, and of increments that lead on from them
follower   a served student that takes increments up while another answers
"""
