"""What the paper says about human perception, plainly: numpy and scipy only, arrays in and arrays out.

Value functions, capacities and decision weights make up prospect theory; utility, its distances and their bound say
how far a sampler is from it; Beta rejection and its limit, the clip range, are what training uses. Value functions,
capacities, `ClipRange` and `BetaRejection.keeps` also take torch tensors and return them, of one
kind in a call; everything else returns numpy's and takes arrays and tensors, mixed too.
"""

from humanline.theory.accepted import (
    AcceptedLaw,
    accepted_law,
    accepted_sequence_law,
    perceived_law,
    sequence_law,
)
from humanline.theory.beta import BetaShape
from humanline.theory.bound import (
    GapDistance,
    GapRule,
    UtilityGapBound,
    distance_for_gap,
    kl_divergence,
    total_variation,
    utility_gap_bound,
)
from humanline.theory.capacity.family import Capacity
from humanline.theory.capacity.prelec import ExponentialPower, HyperbolicLog, Prelec
from humanline.theory.capacity.simple import Identity, LinearInLogOdds, NeoAdditive, PowerWeight
from humanline.theory.capacity.tversky_kahneman import TverskyKahneman
from humanline.theory.clipping import ClipRange
from humanline.theory.limit import ClipLimit
from humanline.theory.rejection import BetaRejection, BetaTest
from humanline.theory.utility import certainty_equivalent, subjective_utility
from humanline.theory.value import ExponentialValue, LogarithmicValue, LogisticValue, PowerValue, ValueFunction
from humanline.theory.weighting import (
    CapacityDistances,
    ImpliedCapacity,
    decision_weights,
    human_curve,
    implied_capacity,
)

__all__ = [
    "AcceptedLaw",
    "BetaRejection",
    "BetaShape",
    "BetaTest",
    "Capacity",
    "CapacityDistances",
    "ClipLimit",
    "ClipRange",
    "ExponentialPower",
    "ExponentialValue",
    "GapDistance",
    "GapRule",
    "HyperbolicLog",
    "Identity",
    "ImpliedCapacity",
    "LinearInLogOdds",
    "LogarithmicValue",
    "LogisticValue",
    "NeoAdditive",
    "PowerValue",
    "PowerWeight",
    "Prelec",
    "TverskyKahneman",
    "UtilityGapBound",
    "ValueFunction",
    "accepted_law",
    "accepted_sequence_law",
    "certainty_equivalent",
    "decision_weights",
    "distance_for_gap",
    "human_curve",
    "implied_capacity",
    "kl_divergence",
    "perceived_law",
    "sequence_law",
    "subjective_utility",
    "total_variation",
    "utility_gap_bound",
]
