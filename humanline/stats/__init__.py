"""Statistics of paired studies: intervals, sign flips, Holm's correction, tests against a margin."""

from humanline.stats.families import holm
from humanline.stats.flips import sign_flip_test
from humanline.stats.intervals import Estimate, Interval, mean_estimate, mean_interval, paired_interval
from humanline.stats.margins import Equivalence, NonInferiority, equivalence, non_inferiority

__all__ = [
    "Equivalence",
    "Estimate",
    "Interval",
    "NonInferiority",
    "equivalence",
    "holm",
    "mean_estimate",
    "mean_interval",
    "non_inferiority",
    "paired_interval",
    "sign_flip_test",
]
