"""Another teacher for a run: trained beside the old one, compared with it, taking over at one position.

trial        candidate and teacher on the same rows, by the rule that promotes students
replacement  a candidate and its folder: begun, trained, compared, decided
revocation   versions whose logits are withdrawn
rewind       teacher and students without rows that nobody should have learned
takeover     a decided candidate in the place of the teacher, and the way back
"""
