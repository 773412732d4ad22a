"""What people use or propose today, as baselines of the bench.

Each rival is described by its authors for other places (inside an engine, per cycle, per load); here all act per
request and see what a proxy sees. Where a description leaves something open, the docstring says what was taken.
None has a floor against the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping

from adaptive_dd.core.arena import Maker
from adaptive_dd.core.rivals.bandits import DiscountedThompson, Epsilon, FullInformation, Ucb1, UcbSpec
from adaptive_dd.core.rivals.fixed import Fixed, Ladder, Off
from adaptive_dd.core.rivals.shipped import CostModel, IkAutotune, Rocmfpx, Sglang

RIVALS: Mapping[str, Maker] = {
    "off": Off,
    "fixed": Fixed,
    "ladder": Ladder,
    "rocmfpx": Rocmfpx,
    "ik": IkAutotune,
    "eps": Epsilon,
    "ucb1": Ucb1,
    "dts": DiscountedThompson,
    "sglang": Sglang,
    "cost-model": CostModel,
    "ucbspec": UcbSpec,
    "full-information": FullInformation,
}
