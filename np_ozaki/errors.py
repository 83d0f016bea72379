"""Exceptions and warnings of np_ozaki.

Every error derives from `OzakiError` and from the built-in class a NumPy user
would expect to catch.  Messages name argument, value, limit and remedy; `refusal`
builds them in one form.
"""

__all__ = [
    "EngineUnavailableError",
    "HookUnavailableError",
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


class OzakiError(Exception):
    """Base class of every error that np_ozaki raises on its own account."""


class OptionError(OzakiError, ValueError):
    """An option has a value outside its range, or two options contradict."""


class OperandTypeError(OzakiError, TypeError):
    """An operand or an option is of a type that the function cannot take."""


class ShapeError(OzakiError, ValueError):
    """Operand shapes do not fit each other."""


class PrecisionError(OzakiError, ArithmeticError):
    """The precision that was asked for cannot be had for these operands."""


class WorkspaceError(OzakiError, MemoryError):
    """There is not enough memory for the workspace of a product."""


class EngineUnavailableError(OzakiError, RuntimeError):
    """An engine was asked for that cannot run on this machine."""


class HookUnavailableError(OzakiError, RuntimeError):
    """NumPy's own loops cannot be hooked in this interpreter."""


class OzakiWarning(UserWarning):
    """Base class of np_ozaki's warnings."""


class PerformanceWarning(OzakiWarning):
    """The scope is slower than native NumPy on this machine."""


class RouteWarning(OzakiWarning):
    """The scope cannot catch every product on this machine."""


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
    return f"{argument}={value!r}: {limit}; {remedy}"
