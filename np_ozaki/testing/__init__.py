"""Assertions and Hypothesis strategies for tests of code that uses np_ozaki.

====================  ==========================================================
`bits`                `assert_same_bits`
`accuracy`            `assert_error_bound`, against exact products
`invariance`          what a product must not notice: scale, order, transposition
`strategies`          operands: range, scale, grading
`variations`          the same with special values, in other memory layouts
====================  ==========================================================

Assertions that take a product call it as ``product(a, b)``, so they hold for a function
of yours as well as for `np_ozaki.matmul`.  Only the strategies need Hypothesis
(``pip install hypothesis``).
"""

from np_ozaki.testing.accuracy import assert_error_bound
from np_ozaki.testing.bits import assert_same_bits
from np_ozaki.testing.invariance import (
    assert_hermitian,
    assert_permutation_invariant,
    assert_scale_invariant,
    assert_symmetric,
    assert_transposes,
)
from np_ozaki.testing.strategies import (
    GRADINGS,
    PHIS,
    REGIMES,
    graded_operands,
    matrices,
    operands,
    random_matrices,
)
from np_ozaki.testing.variations import (
    LAYOUTS,
    SPECIAL_VALUES,
    layouts,
    with_special_values,
)

__all__ = [
    "GRADINGS",
    "LAYOUTS",
    "PHIS",
    "REGIMES",
    "SPECIAL_VALUES",
    "assert_error_bound",
    "assert_hermitian",
    "assert_permutation_invariant",
    "assert_same_bits",
    "assert_scale_invariant",
    "assert_symmetric",
    "assert_transposes",
    "graded_operands",
    "layouts",
    "matrices",
    "operands",
    "random_matrices",
    "with_special_values",
]
