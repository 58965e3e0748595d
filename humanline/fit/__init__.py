"""Prospect theory fitted to what people chose: n outcomes, cumulative or separable, every family of `humanline.theory`.

`fit_prospect` fits a `Model` to `Choices` and says how sure it is; `prepare` is the table of prospects beneath it, and
`Likelihood` the function that is maximised. Needs numpy and scipy only.
"""

from humanline.fit.bootstrap import Bootstrap, bootstrap
from humanline.fit.choices import Choices
from humanline.fit.compare import Comparison, compare_models
from humanline.fit.design import Design, design_check
from humanline.fit.estimate import fit_prospect
from humanline.fit.faults import DataError, Fault, NotConverged, NotIdentified
from humanline.fit.likelihood import Likelihood
from humanline.fit.model import Model, expected_utility, expected_value, standard_models
from humanline.fit.prepared import Prepared, prepare
from humanline.fit.rejection import map_to_rejection
from humanline.fit.rejection_map import RejectionMap
from humanline.fit.result import Fit
from humanline.fit.simulate import simulate_choices
from humanline.fit.table import as_choices
from humanline.fit.uncertainty import ParameterInterval, profile_interval

__all__ = [
    "Bootstrap",
    "Choices",
    "Comparison",
    "DataError",
    "Design",
    "Fault",
    "Fit",
    "Likelihood",
    "Model",
    "NotConverged",
    "NotIdentified",
    "ParameterInterval",
    "Prepared",
    "RejectionMap",
    "as_choices",
    "bootstrap",
    "compare_models",
    "design_check",
    "expected_utility",
    "expected_value",
    "fit_prospect",
    "map_to_rejection",
    "prepare",
    "profile_interval",
    "simulate_choices",
    "standard_models",
]
