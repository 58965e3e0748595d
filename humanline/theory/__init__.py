"""What the paper says about human perception, plainly: numpy and scipy only, arrays in and arrays out.

Value functions, capacities and decision weights make up prospect theory; utility, its distances and their bound say
how far a sampler is from it; Beta rejection and its limit, the clip range, are what training uses.

What comes back is of one of two kinds:

- Value functions, capacities, `ClipRange` and the verdicts of `BetaTest` and `BetaRejection` answer in kind. A torch
  tensor gives a tensor on its device, with its floating dtype (of integers torch's default) and its gradient. A numpy
  array gives an array of its floating dtype (of integers float64) and a list a float64 array; a number, or an array
  without axes, gives a numpy scalar. Numbers and lists aside, the arguments of one call are of one kind.
- Everything else computes in numpy's float64 whatever it is given: arrays and lists, and tensors in the CPU's memory
  that need no gradient, mixed too. Where the result has no axes it is a scalar: numpy's, or Python's where it says so.
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
    separable_weights,
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
    "separable_weights",
    "sequence_law",
    "subjective_utility",
    "total_variation",
    "utility_gap_bound",
]
