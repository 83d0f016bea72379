"""Tables of integers as C++ text."""

from __future__ import annotations

__all__ = ["flat", "table", "words"]


def words(value: int, count: int) -> list[int]:
    """Return the lowest 32-bit words of an integer, in two's complement.

    Parameters
    ----------
    value : int
        Of either sign.
    count : int
        Words.

    Returns
    -------
    list of int
        The lowest first.
    """
    return [value >> 32 * i & 0xFFFFFFFF for i in range(count)]


def flat(values: list[int], suffix: str = "") -> str:
    """Return integers as a C++ initialiser.

    Parameters
    ----------
    values : list of int
        In order.
    suffix : str, optional
        Of every literal.

    Returns
    -------
    str
        In braces.
    """
    return "{" + ", ".join(f"{value}{suffix}" for value in values) + "}"


def table(kind: str, name: str, values: list[int], suffix: str = "") -> str:
    """Return a C++ function of one index, which the compiler folds in unrolled loops.

    Parameters
    ----------
    kind : str
        Type of its values.
    name : str
        Of the function.
    values : list of int
        In order.
    suffix : str, optional
        Of every literal.

    Returns
    -------
    str
        Text without a newline at its end.
    """
    return (
        f"HD constexpr {kind} {name}(int i) {{\n"
        f"  constexpr {kind} table[] = {flat(values, suffix)};\n"
        "  return table[i];\n}"
    )
