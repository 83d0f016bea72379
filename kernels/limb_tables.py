"""Constants of the reconstruction from residues of one byte.

With W_l = (P / p_l) ((P / p_l)^-1 modulo p_l), the sum S of r_l W_l is C' modulo P, for
residues r_l of any kind.  Weights come in limbs of 8 bits, the lowest first, and a sum
of limbs is a sum of few products of bytes.  All is modulo 2^(8 LIMBS), and shifted to
the left so that P / 2 reaches up to the third highest bit.

The quotient q = S / P, rounded, comes from weights W_l / P in 16 bits after the point.
Those have errors, so that q may be one off where C' is close to P / 2 or -P / 2.
"""

from __future__ import annotations

from np_ozaki._kernels.tables import flat, table, words

from np_ozaki.numerics.moduli import MODULI, modulus_product

__all__ = ["limb_constants"]

_FRACTION_BITS = 16
_LARGEST_BYTE = 128
"""Of a residue, without its sign."""

_TERMS = {1: 1, 7: 4}
"""Products that one entry is the sum of, by products of a result."""


def limb_constants(num_moduli: int, products: int) -> str:
    """Return the tables of limbs.cuh as C++ text.

    Parameters
    ----------
    num_moduli : int
        N, 2 to 49.
    products : int
        1 or 7.

    Returns
    -------
    str
        Macros, constexpr functions and arrays; see the comments in the text.
    """
    moduli = MODULI[:num_moduli]
    product = modulus_product(num_moduli)
    bits = product.bit_length()
    limbs = -(-(bits + 1) // 8)
    pairs = -(-limbs // 2)
    value_words = -(-8 * limbs // 32)
    shift, pad = 8 * limbs - bits - 1, 32 * value_words - bits - 1

    def limb(value: int, index: int) -> int:
        """Return a limb of a number modulo 2^(8 limbs)."""
        return value >> 8 * index & 0xFF if index < limbs else 0

    weights = [product // p * pow(product // p, -1, p) for p in moduli]
    most = (1 << _FRACTION_BITS) - 1
    fractions = [
        min(most, ((w << _FRACTION_BITS) + product // 2) // product) for w in weights
    ]

    # Sums start at a bias, so that none falls below 0: 257 times the bias is one half
    # and an integer q_0 after the point, which comes to q.
    least = _TERMS[products] * num_moduli * _LARGEST_BYTE * 255
    steps = -(-(least - (1 << 15)) >> _FRACTION_BITS)
    bias = (1 << 15) + (steps << _FRACTION_BITS)
    first_quotient = (257 * bias - (1 << 15)) >> _FRACTION_BITS
    biases = sum(bias << 8 * i for i in range(limbs))
    start = (first_quotient * product << shift) - biases
    negated = sum(weights) << shift
    of_quotient = (-product << shift, -product << (shift + 8), start, negated)

    byte_words = -(-num_moduli // 4)
    padding = [0] * (4 * byte_words - num_moduli)

    def packed(values: list[int]) -> list[int]:
        """Return bytes as words."""
        return [
            int.from_bytes(bytes(values[i : i + 4]), "little")
            for i in range(0, len(values), 4)
        ]

    def row(parity: int) -> list[int]:
        """Return what belongs to the lower or the upper limb of all pairs."""
        found = []
        for pair in range(pairs):
            index = 2 * pair + parity
            found += packed([limb(w << shift, index) for w in weights] + padding)
        found += packed([f >> 8 * parity & 0xFF for f in fractions] + padding)
        for pair in range(pairs):
            found += packed([limb(w, 2 * pair + parity) for w in of_quotient])
        return found

    rows = [row(0), row(1)]
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
            f"#define NEGATED_FRACTION {sum(fractions)}u",
            "// Weights of four bytes each: rows of the lower limbs of pairs and of",
            "// the upper ones, and a row of zeros.  In a row: those of every pair,",
            "// those of W_l / P; then by pairs -P, -256 P, what takes the bias away,",
            "// and the sum of W_l.",
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
