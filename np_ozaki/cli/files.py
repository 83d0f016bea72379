"""Read a matrix from a file, whatever it holds, or say why not."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from np_ozaki.cli.dtypes import DTYPES, Entries
from np_ozaki.errors import OzakiError, refusal

__all__ = ["DENSE_LIMIT_BYTES", "FORMATS", "MatrixFileError", "read_matrix"]

_Found = NDArray[np.generic]

FORMATS = ".npy, .npz, .mtx, .mtx.gz, .csv, .tsv, .txt"
"""Suffixes that `read_matrix` knows."""

DENSE_LIMIT_BYTES = 256 << 20
"""A sparse matrix is made dense up to this size."""


class MatrixFileError(OzakiError, ValueError):
    """A file does not hold a matrix that can be multiplied."""


def read_matrix(path: str, entries: Entries = DTYPES["float64"]) -> NDArray[Any]:
    """Return the matrix that a file holds.

    Parameters
    ----------
    path : str
        With a suffix of `FORMATS`; ``file.npz:name`` picks one of several arrays.
    entries : Entries, optional
        What it shall hold.

    Returns
    -------
    (rows, columns) ndarray
        Integers and other floats are converted, exactly.

    Raises
    ------
    MatrixFileError
        If the file cannot be read or holds something else.
    """
    file, name = _split(path)
    suffix = os.path.splitext(file.removesuffix(".gz"))[1].lower()
    readers: dict[str, Callable[[], _Found]] = {
        ".npy": lambda: np.load(file, allow_pickle=False),
        ".npz": lambda: _read_npz(file, name),
        ".mtx": lambda: _read_matrix_market(file),
        ".csv": lambda: _read_text(file),
        ".tsv": lambda: _read_text(file),
        ".txt": lambda: _read_text(file),
    }
    if suffix not in readers:
        raise _refused(path, f"known formats are {FORMATS}", "save it as .npy")
    try:
        found = readers[suffix]()
    except MatrixFileError:
        raise
    except OSError as error:
        raise _refused(
            path, f"cannot be read: {error.strerror or error}", "check the path"
        ) from None
    except Exception as error:
        # Damaged files raise whatever their parser stumbles over.
        problem = (str(error) or type(error).__name__).splitlines()[0]
        raise _refused(
            path, f"is no valid {suffix} file: {problem}", _REMEDY
        ) from error
    return _as_matrix(path, found, entries)


_REMEDY = "save the matrix with numpy.save"


def _refused(path: str, limit: str, remedy: str) -> MatrixFileError:
    return MatrixFileError(refusal("file", path, limit, remedy))


def _split(path: str) -> tuple[str, str | None]:
    """Return file and array name of ``file.npz:name``."""
    head, found, name = path.rpartition(".npz:")
    return (f"{head}.npz", name) if found and name else (path, None)


def _read_npz(file: str, name: str | None) -> _Found:
    with np.load(file, allow_pickle=False) as archive:
        if {"format", "shape", "data"} <= set(archive.files):
            return _read_sparse_npz(file, tuple(archive["shape"]))
        if name is None and len(archive.files) == 1:
            name = archive.files[0]
        if name not in archive.files:
            raise _refused(
                file if name is None else f"{file}:{name}",
                f"holds {len(archive.files)} arrays: {', '.join(archive.files)}",
                f"pick one, as in {file}:NAME",
            )
        return np.asarray(archive[name])


def _read_sparse_npz(file: str, shape: tuple[int, ...]) -> _Found:
    from scipy import sparse

    _check_dense_size(file, shape)
    return np.asarray(sparse.load_npz(file).toarray())


def _read_matrix_market(file: str) -> _Found:
    from scipy import io

    rows, columns, _, layout, _, _ = io.mminfo(file)
    if layout == "coordinate":
        _check_dense_size(file, (rows, columns))
    with warnings.catch_warnings():
        # SciPy 1.18 announces another sparse class; both are made dense here, and
        # the argument that chooses is not there in 1.13.
        warnings.simplefilter("ignore", DeprecationWarning)
        matrix = io.mmread(file)
    if isinstance(matrix, np.ndarray):
        return matrix
    return np.asarray(matrix.toarray())


def _check_dense_size(file: str, shape: tuple[int, ...]) -> None:
    size = 8 * math.prod(map(int, shape))
    if size > DENSE_LIMIT_BYTES:
        raise _refused(
            file,
            f"dense, the sparse matrix of shape {tuple(map(int, shape))} takes {size} "
            f"bytes of {DENSE_LIMIT_BYTES} allowed",
            "pass a block of it",
        )


def _read_text(file: str) -> _Found:
    """Read numbers in lines; one line of names above them is skipped."""
    with open(file, encoding="utf-8-sig") as lines:
        first = next((s for s in map(str.strip, lines) if s and s[0] != "#"), "")
    if not first:
        raise _refused(file, "holds no numbers", _REMEDY)
    delimiter = next((mark for mark in ",;\t" if mark in first), None)
    with open(file, encoding="utf-8-sig") as lines:
        rows = (s for s in map(str.strip, lines) if s and s[0] != "#")
        if not any(map(_is_number, first.split(delimiter))):
            next(rows)
        kept = list(rows)
    for dtype in (np.float64, np.complex128):
        with contextlib.suppress(ValueError):
            return np.loadtxt(kept, dtype, delimiter=delimiter, ndmin=2)
    # To say what no number is.
    return np.loadtxt(kept, delimiter=delimiter, ndmin=2)


def _is_number(text: str) -> bool:
    try:
        complex(text.strip())
    except ValueError:
        return False
    return True


def _as_matrix(path: str, found: _Found, entries: Entries) -> NDArray[Any]:
    if found.dtype.kind == "c" and not entries.is_complex:
        raise _refused(
            path,
            f"holds {found.dtype.name}, real numbers are needed",
            "pass --dtype complex128, or the real and the imaginary part",
        )
    if found.dtype.kind not in "biufc":
        raise _refused(
            path,
            f"holds {found.dtype.name}, numbers are needed",
            "pass a numeric column",
        )
    if found.ndim != 2:
        raise _refused(
            path, f"has shape {found.shape}, two dimensions are needed", "reshape it"
        )
    with np.errstate(all="ignore"):
        matrix = np.ascontiguousarray(found, dtype=entries.dtype)
        kept = matrix if found.dtype.kind == "c" else matrix.real
        changed = (kept.astype(found.dtype) != found) & (found == found)
    if changed.any():
        raise _refused(
            path,
            f"holds {found.dtype.name} entries that {entries.name} cannot hold",
            f"round them to {entries.name} first",
        )
    return matrix
