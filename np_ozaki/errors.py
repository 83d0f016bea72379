"""Exceptions and warnings of np_ozaki.

Every error derives from `OzakiError` and from the built-in class a NumPy user
would expect to catch.  Messages name argument, value, limit and remedy; `refusal`
builds them in one form.
"""

from __future__ import annotations

__all__ = [
    "CheckError",
    "ConversionError",
    "EngineUnavailableError",
    "HookUnavailableError",
    "MissingPackageError",
    "OperandTypeError",
    "OptionError",
    "OzakiError",
    "OzakiWarning",
    "PerformanceWarning",
    "PrecisionError",
    "RouteWarning",
    "ShapeError",
    "WorkspaceError",
    "refusal",
]


_LONGEST = 200
_MOST_NAMED = 4
"""Rows or columns that a message names one by one."""


class OzakiError(Exception):
    """Base class of every error that np_ozaki raises on its own account."""


class OptionError(OzakiError, ValueError):
    """An option has a value outside its range, or two options contradict."""


class OperandTypeError(OzakiError, TypeError):
    """An operand or an option is of a type that the function cannot take."""


class ConversionError(OzakiError, TypeError):
    """An OzArray would be converted or copied to the host unasked, in strict mode."""


class ShapeError(OzakiError, ValueError):
    """Operand shapes do not fit each other."""


class PrecisionError(OzakiError, ArithmeticError):
    """The precision that was asked for cannot be had for these operands."""


class CheckError(OzakiError, ArithmeticError):
    """A checked product has entries that its checksums do not agree with.

    Parameters
    ----------
    matrix : int
        Which matrix of the batch, counted along all batch axes.
    tile : tuple of slice
        Rows and columns of the result that were checked together.
    rows, columns : tuple of int
        Rows and columns whose sums are wrong; a wrong entry lies where two meet.
    """

    def __init__(
        self,
        matrix: int,
        tile: tuple[slice, slice],
        rows: tuple[int, ...],
        columns: tuple[int, ...],
    ) -> None:
        super().__init__(matrix, tile, rows, columns)
        self.matrix = matrix
        self.tile = tile
        self.rows = rows
        self.columns = columns

    def of(self, matrix: int) -> CheckError:
        """Return the same error with the number of another batch.

        Parameters
        ----------
        matrix : int
            Which matrix of the batch, as its caller counts.

        Returns
        -------
        CheckError
        """
        return CheckError(matrix, self.tile, self.rows, self.columns)

    def __str__(self) -> str:
        """Return what is wrong, where, and what to do."""
        rows, columns = self.tile
        return (
            f"check: the product of matrix {self.matrix}, tile "
            f"[{rows.start}:{rows.stop}, {columns.start}:{columns.stop}], is wrong in "
            f"{_named('row', self.rows)} and {_named('column', self.columns)}: its "
            'checksums modulo 2^61 - 1 differ; check="recompute" multiplies once more, '
            "and an error that comes back is one of the machine or of np_ozaki"
        )


class WorkspaceError(OzakiError, MemoryError):
    """There is not enough memory for the workspace of a product."""


class EngineUnavailableError(OzakiError, RuntimeError):
    """An engine was asked for that cannot run on this machine."""


class HookUnavailableError(OzakiError, RuntimeError):
    """NumPy's own loops cannot be hooked in this interpreter."""


class MissingPackageError(OzakiError, ImportError):
    """A part of np_ozaki was asked for that needs a package which is not installed."""


class OzakiWarning(UserWarning):
    """Base class of np_ozaki's warnings."""


class PerformanceWarning(OzakiWarning):
    """The scope is slower than native NumPy on this machine."""


class RouteWarning(OzakiWarning):
    """The scope cannot catch every product on this machine."""


def _named(kind: str, found: tuple[int, ...]) -> str:
    """Return a few of many indices in words."""
    if not found:
        return f"no single {kind}"
    shown = ", ".join(map(str, found[:_MOST_NAMED]))
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"{kind} {shown}{more}"


def refusal(argument: str, value: object, limit: str, remedy: str) -> str:
    """Return the message of a refused argument.

    Parameters
    ----------
    argument : str
        Name as the caller wrote it.
    value : object
        What was passed; shown by `repr`.
    limit : str
        What is allowed.
    remedy : str
        What to do instead.

    Returns
    -------
    str
        One sentence with all four parts.
    """
    return f"{argument}={_shown(value)}: {limit}; {remedy}"


def _shown(value: object) -> str:
    """Return a value's repr, cut where it would hide the rest of the message."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python turns to text
        return f"<{type(value).__name__} of very many digits>"
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST - 20]}... ({len(text)} characters)"
