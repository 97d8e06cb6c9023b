"""Running ExFM: workers, their lifecycle, tracking and the command line. The only package that sees the other two."""

from exfm.on_demand import torchrec_on_demand

torchrec_on_demand()  # before anything imports it: most processes need its ids alone, and all are to be there soon
