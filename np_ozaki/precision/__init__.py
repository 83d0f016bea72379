"""From the precision that a user asks for to moduli, certificates and fallbacks."""

from np_ozaki.precision.bound import bound_of_ways, promised_bound
from np_ozaki.precision.multiply import TOO_WIDE, Served, Way, multiply
from np_ozaki.precision.schemes import first_scheme, goal

__all__ = [
    "TOO_WIDE",
    "Served",
    "Way",
    "bound_of_ways",
    "first_scheme",
    "goal",
    "multiply",
    "promised_bound",
]
