from .compared import Compared, compare, page_of_two
from .page import page_of

__all__ = ["Compared", "compare", "page_of", "page_of_two"]
