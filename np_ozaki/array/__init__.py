"""OzArray: protocols, coherence of host and device, no arithmetic of its own."""

from np_ozaki.array.core import unwrap
from np_ozaki.array.oz_array import OzArray, wrap
from np_ozaki.array.products import operand_for, operands, prepared_pair
from np_ozaki.array.strict import strict

__all__ = [
    "OzArray",
    "operand_for",
    "operands",
    "prepared_pair",
    "strict",
    "unwrap",
    "wrap",
]
