"""Constants of the reconstruction from residues of one byte.

With W_l = (P / p_l) ((P / p_l)^-1 modulo p_l), the sum S of r_l W_l is C' modulo P, for
residues r_l of any kind.  Of complex numbers there are the residues of x + s y and of
x - s y, s s = -1: half their sum is x, half their difference over s is y, so that each
part has weights for both.  Weights come in limbs of 8 bits, the lowest first, and a sum
of limbs is a sum of few products of bytes.  All is modulo 2^(8 LIMBS), and shifted to
the left so that P / 2 reaches up to the third highest bit.

The quotient q = S / P, rounded, comes from weights W_l / P in 16 bits after the point.
Those have errors, so that q may be one off where C' is close to P / 2 or -P / 2.
"""

from __future__ import annotations

from np_ozaki._kernels.tables import flat, table, words

from np_ozaki.numerics.moduli import (
    Family,
    moduli_of,
    modulus_product,
    root_of_minus_one,
)

__all__ = ["limb_constants", "residue_weights"]

_FRACTION_BITS = 16
_LARGEST_BYTE = 128
"""Of a residue, without its sign."""

_TERMS = {1: 1, 7: 4}
"""Products that one entry is the sum of, by products of a result."""


def residue_weights(
    num_moduli: int, family: Family = "real", parts: int = 1
) -> list[list[int]]:
    """Return what residues count, for each part of a number.

    Parameters
    ----------
    num_moduli : int
        N, 2 to 49.
    family : {"real", "complex"}, optional
        Whose moduli.
    parts : int, optional
        2 for residues of x + s y and x - s y by turns.

    Returns
    -------
    list of list of int
        Multiples of P / p_l below P.
    """
    product = modulus_product(num_moduli, family)

    def weight(p: int, divisor: int) -> int:
        rest = product // p
        return rest * pow(rest * divisor, -1, p)

    moduli = moduli_of(num_moduli, family)
    if parts == 1:
        return [[weight(p, 1) for p in moduli]]
    roots = [(p, root_of_minus_one(p)) for p in moduli]
    return [
        [weight(p, 2) for p in moduli for _ in range(2)],
        [weight(p, sign * 2 * s) for p, s in roots for sign in (1, -1)],
    ]


def limb_constants(
    num_moduli: int, products: int, family: Family = "real", parts: int = 1
) -> str:
    """Return the tables of limbs.cuh as C++ text.

    Parameters
    ----------
    num_moduli : int
        N, 2 to 49.
    products : int
        1 or 7.
    family, parts : str and int, optional
        As for `residue_weights`.

    Returns
    -------
    str
        Macros, constexpr functions and arrays; see the comments in the text.
    """
    residues = parts * num_moduli
    product = modulus_product(num_moduli, family)
    bits = product.bit_length()
    limbs = -(-(bits + 1) // 8)
    pairs = -(-limbs // 2)
    value_words = -(-8 * limbs // 32)
    shift, pad = 8 * limbs - bits - 1, 32 * value_words - bits - 1

    def limb(value: int, index: int) -> int:
        """Return a limb of a number modulo 2^(8 limbs)."""
        return value >> 8 * index & 0xFF if index < limbs else 0

    most = (1 << _FRACTION_BITS) - 1

    def fractions(weights: list[int]) -> list[int]:
        """Return W_l / P."""
        return [
            min(most, ((w << _FRACTION_BITS) + product // 2) // product)
            for w in weights
        ]

    # Sums start at a bias, so that none falls below 0: 257 times the bias is one half
    # and an integer q_0 after the point, which comes to q.
    least = _TERMS[products] * residues * _LARGEST_BYTE * 255
    steps = -(-(least - (1 << 15)) >> _FRACTION_BITS)
    bias = (1 << 15) + (steps << _FRACTION_BITS)
    first_quotient = (257 * bias - (1 << 15)) >> _FRACTION_BITS
    biases = sum(bias << 8 * i for i in range(limbs))
    start = (first_quotient * product << shift) - biases
    of_quotient = (-product << shift, -product << (shift + 8), start)

    byte_words = -(-residues // 4)
    padding = [0] * (4 * byte_words - residues)

    def packed(values: list[int]) -> list[int]:
        """Return bytes as words."""
        return [
            int.from_bytes(bytes(values[i : i + 4]), "little")
            for i in range(0, len(values), 4)
        ]

    def row(weights: list[int], parity: int) -> list[int]:
        """Return what belongs to the lower or the upper limb of all pairs."""
        negated = sum(weights) << shift
        found = []
        for pair in range(pairs):
            index = 2 * pair + parity
            found += packed([limb(w << shift, index) for w in weights] + padding)
        parts_of_p = [f >> 8 * parity & 0xFF for f in fractions(weights)]
        found += packed(parts_of_p + padding)
        for pair in range(pairs):
            values = (*of_quotient, negated)
            found += packed([limb(w, 2 * pair + parity) for w in values])
        return found

    of_parts = residue_weights(num_moduli, family, parts)
    rows = []
    for weights in of_parts:
        rows += [row(weights, 0), row(weights, 1)]
        rows.append([0] * len(rows[0]))
    half = words(product // 2 << pad, value_words)
    return "\n".join(
        [
            f"#define PRODUCTS {products}",
            f"#define LIMBS {limbs}",
            f"#define LIMB_WORDS {value_words}",
            f"#define PRODUCT_BITS {bits}",
            f"#define LIMB_PAD {pad}",
            f"#define LIMB_BIAS {bias}u",
            "// The sum of W_l / P, for residues that were taken as -1 - r.",
            f"#define NEGATED_FRACTION {sum(fractions(of_parts[0]))}u",
            "// Weights of four bytes each: rows of the lower limbs of pairs and of",
            "// the upper ones, and a row of zeros.  In a row: those of every pair,",
            "// those of W_l / P; then by pairs -P, -256 P, what takes the bias away,",
            "// and the sum of W_l.  Then the same for an imaginary part.",
            f"#define WEIGHT_COUNT {len(rows[0])}",
            "DEVICE_TABLE uint32 limb_weights[] = "
            + flat([word for part in rows for word in part], "u")
            + ";",
            "// P and P / 2, shifted to the top of LIMB_WORDS words",
            table(
                "uint32", "limb_product_word", words(product << pad, value_words), "u"
            ),
            table("uint32", "limb_half_word", half, "u"),
            f"#define LIMB_HALF_TOP {half[-1]}u",
            "",
        ]
    )
