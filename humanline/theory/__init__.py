"""What the paper says about human perception, plainly: numpy and scipy only, arrays in and arrays out.

Value functions, capacities and decision weights make up prospect theory; utility, its distances and their bound say
how far a sampler is from it; Beta rejection and its limit, the clip range, are what training uses. `PowerValue`, the
capacities, `ClipRange` and `BetaRejection.keeps` also take torch tensors and return them.
"""

from humanline.theory.capacity import Capacity, Identity, TverskyKahneman
from humanline.theory.clipping import ClipRange
from humanline.theory.rejection import BetaRejection, BetaShape
from humanline.theory.utility import (
    UtilityGapBound,
    certainty_equivalent,
    kl_divergence,
    subjective_utility,
    total_variation,
    utility_gap_bound,
)
from humanline.theory.value import PowerValue, ValueFunction
from humanline.theory.weighting import decision_weights

__all__ = [
    "BetaRejection",
    "BetaShape",
    "Capacity",
    "ClipRange",
    "Identity",
    "PowerValue",
    "TverskyKahneman",
    "UtilityGapBound",
    "ValueFunction",
    "certainty_equivalent",
    "decision_weights",
    "kl_divergence",
    "subjective_utility",
    "total_variation",
    "utility_gap_bound",
]
