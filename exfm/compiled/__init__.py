"""A served student as machine code, for rows that have one id of every key.

graph    what is compiled: from ids and floats to logits
package  its machine code: a package on the disk fits every version of the same shape
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
