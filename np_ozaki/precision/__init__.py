"""From the precision that a user asks for to moduli, certificates and fallbacks."""

from np_ozaki.precision.multiply import TOO_WIDE, Served, Way, multiply

__all__ = ["TOO_WIDE", "Served", "Way", "multiply"]
