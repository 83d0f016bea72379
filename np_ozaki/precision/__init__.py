"""From the precision that a user asks for to moduli, certificates and fallbacks."""

from np_ozaki.precision.bound import bound_of_ways, promised_bound
from np_ozaki.precision.multiply import TOO_WIDE, Served, Way, multiply
from np_ozaki.precision.schemes import (
    check_keeps_tolerance,
    first_scheme,
    goal,
    keeps_tolerance,
)

__all__ = [
    "TOO_WIDE",
    "Served",
    "Way",
    "bound_of_ways",
    "check_keeps_tolerance",
    "first_scheme",
    "goal",
    "keeps_tolerance",
    "multiply",
    "promised_bound",
]
