"""Statistics of answers and of paired studies: intervals, shares, exact tests, margins, power, Holm's correction."""

from humanline.stats.crossed import crossed_estimate, mean_squares
from humanline.stats.families import holm
from humanline.stats.flips import sign_flip_test
from humanline.stats.intervals import Estimate, Interval, mean_estimate, mean_interval, paired_interval
from humanline.stats.margins import Equivalence, NonInferiority, equivalence, non_inferiority
from humanline.stats.power import detectable_difference, needed_crossed, needed_pairs
from humanline.stats.proportions import Proportion, clustered_share, mcnemar, wilson_interval
from humanline.stats.ratios import ratio_difference, ratio_estimate, slice_sums
from humanline.stats.rounding import rounding_of
from humanline.stats.samples import majority_at_k, pass_at_k, usual_ks

__all__ = [
    "Equivalence",
    "Estimate",
    "Interval",
    "NonInferiority",
    "Proportion",
    "clustered_share",
    "crossed_estimate",
    "detectable_difference",
    "equivalence",
    "holm",
    "majority_at_k",
    "mcnemar",
    "mean_estimate",
    "mean_interval",
    "mean_squares",
    "needed_crossed",
    "needed_pairs",
    "non_inferiority",
    "paired_interval",
    "pass_at_k",
    "ratio_difference",
    "ratio_estimate",
    "rounding_of",
    "sign_flip_test",
    "slice_sums",
    "usual_ks",
    "wilson_interval",
]
