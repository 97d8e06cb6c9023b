"""A served student as machine code, for rows that have one id of every key.

graph    what is compiled: from ids and floats to logits
package  its machine code: a package on the disk fits every version of the same shape
"""
