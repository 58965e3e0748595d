"""Prospect theory fitted to each of several people, alone and pooled; the full posterior is the extra `bayes`."""

from humanline.fit.people.normal import Anchor
from humanline.fit.people.pool import fit_people
from humanline.fit.people.result import Estimates, PeopleFit
from humanline.fit.people.undetermined import Undetermined

__all__ = ["Anchor", "Estimates", "PeopleFit", "Undetermined", "fit_people"]
