"""OzArray: protocols, coherence of host and device, no arithmetic of its own."""

from np_ozaki.array.oz_array import OzArray, unwrap, wrap

__all__ = ["OzArray", "unwrap", "wrap"]
