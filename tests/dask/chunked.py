"""dask arrays of OzArray chunks beside the same ones of ndarray chunks."""

import numpy as np
import pytest

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

import np_ozaki  # noqa: E402 - after the skip
import np_ozaki.dask  # noqa: E402
from np_ozaki import OzArray  # noqa: E402
from np_ozaki.testing import assert_same_bits  # noqa: E402

CUBE = np.random.default_rng(1).standard_normal((4, 5, 6))
SQUARE = np.random.default_rng(2).standard_normal((12, 12))
TALL = np.random.default_rng(3).standard_normal((20, 5))


def oz(x, chunks=None):
    """Return a dask array whose chunks are OzArrays."""
    return da.from_array(OzArray(x), chunks=chunks or (2,) * np.ndim(x))


def plain(x, chunks=None):
    """Return a dask array whose chunks are ndarrays."""
    return da.from_array(np.array(x), chunks=chunks or (2,) * np.ndim(x))


def computed(x, **how):
    """Compute; return the result and the number of products that an engine ran.

    Products of empty arrays, by which dask finds out types beforehand, do not count.
    """
    before = np_ozaki.stats().calls("cpu")
    result = x.compute(**how)
    return result, np_ozaki.stats().calls("cpu") - before


def blocks_of(x):
    """Return every computed block of a dask array."""
    return dask.compute(*x.to_delayed().ravel())


def assert_type(ours, theirs):
    """Let there be an OzArray where NumPy's way gives an ndarray with axes."""
    if np.ndim(theirs):
        assert type(ours) is (OzArray if type(theirs) is np.ndarray else type(theirs))


def assert_values(ours, theirs, rtol=None):
    """Compare what two results hold: all bits, or up to a tolerance."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.dtype == theirs.dtype
    if ours.dtype == np.float64 and rtol is None:
        assert_same_bits(ours, theirs)
    elif rtol is None:
        np.testing.assert_array_equal(ours, theirs)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)


TYPES = ("meta", "blocks", "result")
BROADCAST = ("meta", "result")
"""dask broadcasts a scalar of its own to some blocks; the others make the result."""
UNKNOWN_META = ("blocks", "result")
"""dask cannot tell what the function makes, and says ndarray."""
PLAIN = ()
"""dask makes all of the result itself, of ndarrays."""
NOT_DISPATCHED = ("meta",)
"""dask calls scipy.linalg, or NumPy for arrays of no entries, and gets plain arrays."""


def assert_alike(ours, theirs, rtol=None, types=TYPES):
    """Compare two dask arrays: structure, types and values; None means all bits."""
    if isinstance(theirs, (tuple, list)):
        for x, y in zip(ours, theirs, strict=True):
            assert_alike(x, y, rtol, types)
        return
    if not isinstance(theirs, da.Array):
        assert_type(ours, theirs)
        assert_values(ours, theirs, rtol)
        return
    assert ours.dtype == theirs.dtype
    np.testing.assert_equal(ours.chunks, theirs.chunks)
    if "meta" in types:
        assert_type(ours._meta, theirs._meta)
    if "blocks" in types:
        for x, y in zip(blocks_of(ours), blocks_of(theirs), strict=True):
            assert_type(x, y)
    result, expected = ours.compute(), theirs.compute()
    if "result" in types:
        assert_type(result, expected)
    assert_values(result, expected, rtol)


def compare(function, x, chunks=None, rtol=None, types=TYPES):
    """Do the same to OzArray chunks and to ndarray chunks."""
    assert_alike(function(oz(x, chunks)), function(plain(x, chunks)), rtol, types)
