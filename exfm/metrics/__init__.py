"""Figures of predictions, from numpy arrays alone.

classification   log-loss, normalised entropy, calibration
ranking          AUC and its mean over groups
progressive      running figures of a stream, each row judged before it is learned
paired           what one model gains over another on the same rows, with an interval
sequential       the same while the stream runs: evidence that may be looked at after every row
limits           counts below which a figure is not worth printing
clusters         rows by user, by item, by both, and the variance that they give
estimates        means over seeds and clusters that carry their errors
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
