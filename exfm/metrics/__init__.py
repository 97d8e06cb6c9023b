"""Metrics of predictions, computed from numpy arrays only.

classification   log-loss, normalised entropy, calibration
ranking          AUC and its mean over groups
progressive      running figures of a stream, each row judged before it is learned
paired           what one model gains over another on the same rows, with an interval
sequential       the same while the stream runs: evidence that may be looked at after every row
limits           counts below which a figure is not worth printing
clusters         rows by user, by item, by both, and the variance that they give
estimates        means over seeds and clusters that carry their errors
recalibration    logits after the best scale and shift, fitted on the rows before: metrics without calibration
reliability      calibration by bins with bands, Brier, log-loss of clipped logits
watching         a finished comparison as if it had been watched: when one could have stopped
discoveries      e-BH: which of many comparisons are more than luck
power            how many rows a comparison needs
decisions        what is shown at a threshold or among the top, and what bids are worth
policy           what another choice would have been worth: IPS, SNIPS, doubly robust
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
