"""Functions of the kernels' headers, compiled for the CPU and applied to arrays."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import simt
from np_ozaki._kernels import render
from np_ozaki._kernels.render import Variant, source

# The words that functions of words are compiled for; the least and the most are those
# of N = 2 and N = 49.
WORDS = (1, 2, 4, 5, 13)

_CHECKSUM = ("checksum.cuh", "shares.cuh", "checksum.cu")

_PLAIN = """
#define EACH for (int64 i = 0; i < count; ++i)

template <bool wide, bool truncate>
void each_integer(int64 count, const uint64* x, const int* exponent, uint64* value,
                  int* byte_shift) {
  EACH value[i] = scaled_integer<wide, truncate>(x[i], exponent[i], &byte_shift[i]);
}

#define INTEGERS(name, wide, truncate)                                              \\
  extern "C" void name(int64 count, const uint64* x, const int* exponent,           \\
                       uint64* value, int* byte_shift) {                            \\
    each_integer<wide, truncate>(count, x, exponent, value, byte_shift);            \\
  }
INTEGERS(each_integer_narrow_nearest, false, false)
INTEGERS(each_integer_narrow_truncate, false, true)
INTEGERS(each_integer_wide_nearest, true, false)
INTEGERS(each_integer_wide_truncate, true, true)

extern "C" void each_is_plain(int64 count, const uint64* x, const int* exponent,
                              uint8* out) {
  EACH out[i] = is_plain(x[i], exponent[i]);
}

extern "C" void each_plain_integer(int64 count, const uint64* x, const int* exponent,
                                   uint64* value, int64 truncate) {
  EACH value[i] = truncate ? plain_integer<true>(x[i], exponent[i])
                           : plain_integer<false>(x[i], exponent[i]);
}

extern "C" void each_is_plain_line(int64 count, const uint64* largest,
                                   const int* exponent, uint8* out) {
  EACH out[i] = is_plain_line(largest[i], exponent[i]);
}

extern "C" void each_integer_in_plain(int64 count, const uint64* x, const int* exponent,
                                      uint64* value, int64 truncate) {
  EACH value[i] = truncate ? integer_in_plain<true>(x[i], exponent[i])
                           : integer_in_plain<false>(x[i], exponent[i]);
}

extern "C" void each_ceiling_in_plain(int64 count, const uint64* x, const int* e,
                                      uint64* out, int64 w) {
  EACH out[i] = ceiling_in_plain(x[i], e[i], w);
}

extern "C" void each_is_close(int64 count, const uint64* lowest, const uint64* largest,
                              uint8* out) {
  EACH out[i] = is_close((uint32)(lowest[i] >> 32), largest[i]);
}

extern "C" void each_ceiling_in_close(int64 count, const uint64* x, const int* e,
                                      uint64* out) {
  EACH out[i] = (uint32)ceiling_in_close(x[i], close_rebase(e[i])) - CEILING_BITS;
}

extern "C" void each_floor_in_plain(int64 count, const uint64* x, const int* e,
                                    uint64* out, int64 w) {
  EACH out[i] = floor_in_plain(x[i], e[i], w);
}

extern "C" void each_normal_ceiling(int64 count, const uint64* x, const int* e,
                                    uint64* out, int64 w) {
  EACH out[i] = normal_ceiling(x[i], e[i], w);
}

extern "C" void each_ceiling(int64 count, const uint64* x, const int* shift,
                             uint64* out) {
  EACH out[i] = scaled_ceiling(x[i], shift[i]);
}

extern "C" void each_floor(int64 count, const uint64* x, const int* shift,
                           uint64* out) {
  EACH out[i] = scaled_floor(x[i], shift[i]);
}

extern "C" void each_top_exponent(int64 count, const uint64* x, int* out) {
  EACH out[i] = top_exponent(x[i]);
}

extern "C" void each_residue_byte(int64 count, const int* c, int* out, int64 minus_p,
                                  int64 inverse, int64 shift) {
  EACH out[i] = residue_byte(c[i], (int)minus_p, (int)inverse, (int)shift);
}

extern "C" void each_quick_residue_byte(int64 count, const int* c, int* out,
                                        int64 minus_p) {
  float inverse = 1.0f / -minus_p;
  EACH out[i] = quick_residue_byte(c[i], (int)minus_p, inverse);
}

extern "C" void each_power_of_four(int64 count, const uint64* value, int* out,
                                   int64 bits, uint64 top) {
  EACH out[i] = largest_power_of_four(value[i], bits, top);
}

extern "C" void each_line_exponent(int64 count, const uint64* largest,
                                   const uint64* squares, int* out, int64 rule, int64 w,
                                   int64 bits, uint64 top) {
  EACH out[i] = line_exponent(largest[i], squares[i], rule, w, bits, top);
}

extern "C" void each_accurate_exponent(int64 count, const uint64* largest,
                                       const uint64* maximum, int* out, int64 bits,
                                       uint64 top) {
  EACH out[i] = accurate_exponent(largest[i], maximum[i], bits, top);
}

extern "C" void each_bits_above(int64 count, const uint64* x, const int* shift,
                                const uint64* y, int* out) {
  EACH out[i] = bits_above(x[i], shift[i], y[i]);
}

extern "C" void each_folded(int64 count, const uint64* x, uint64* nearly,
                            uint64* out) {
  EACH {
    nearly[i] = nearly_folded(x[i]);
    out[i] = folded(x[i]);
  }
}

extern "C" void each_long_sum(int64 count, const uint64* x, const uint64* y,
                              uint64* out, int64 terms) {
  EACH {
    LongSum sum = {0, 0};
    for (int64 h = 0; h < terms; ++h) sum.add(x[terms * i + h], y[terms * i + h]);
    out[i] = sum.remainder();
  }
}

extern "C" void each_weight_of(int64 count, uint32* out, int64 left) {
  EACH out[i] = weight_of(i, left);
}
extern "C" void each_short_sum(int64 count, const uint64* x, const uint32* y,
                               uint64* out, int64 terms) {
  EACH {
    ShortSum sum = {0, 0};
    for (int64 h = 0; h < terms; ++h) sum.add(x[terms * i + h], y[terms * i + h]);
    out[i] = sum.remainder();
  }
}

extern "C" void each_rotated(int64 count, const uint64* x, uint64* out, int64 shift) {
  EACH out[i] = rotated(x[i], shift);
}

extern "C" void each_integer_remainder(int64 count, const uint64* x,
                                       const int* exponent, uint64* out) {
  EACH out[i] = integer_remainder(x[i], exponent[i]);
}

extern "C" void each_plain_remainder(int64 count, const uint64* x, const int* exponent,
                                     uint64* out) {
  EACH out[i] = is_plain(x[i], exponent[i]) ? plain_remainder(x[i], exponent[i])
                                            : integer_remainder(x[i], exponent[i]);
}

extern "C" void each_added(int64 count, const uint64* x, uint64* sum) {
  EACH add_modulo(sum, x[i]);
}

extern "C" void each_widened(int64 count, const uint32* x, uint64* out) {
  EACH out[i] = widened(x[i]);
}

extern "C" void each_is_plain_single_line(int64 count, const int* e,
                                          const int* exponent, uint8* plain,
                                          uint8* is_short) {
  EACH {
    plain[i] = is_plain_single_line(e[i], exponent[i]);
    is_short[i] = is_short_line(e[i], exponent[i]);
  }
}

extern "C" void each_single_integer(int64 count, const uint32* x, const int* exponent,
                                    uint64* value, int64 truncate) {
  EACH value[i] = truncate ? integer_in_plain<true>(x[i], exponent[i])
                           : integer_in_plain<false>(x[i], exponent[i]);
}

extern "C" void each_short_integer(int64 count, const uint32* x, const int* exponent,
                                   int* value, int64 truncate) {
  EACH value[i] = truncate ? short_integer<true>(x[i], exponent[i])
                           : short_integer<false>(x[i], exponent[i]);
}

extern "C" void each_single_floor(int64 count, const uint32* x, const int* e,
                                  uint32* out, int64 w) {
  EACH out[i] = floor_in_plain(x[i], e[i], w);
}

extern "C" void each_raised_product(int64 count, const uint32* x, const int* shift,
                                    uint32* out) {
  EACH out[i] = raised_product(x[i], as_float((127 + shift[i]) << 23)) - CEILING_BITS;
}

extern "C" void each_packed(int64 count, const int* quads, uint32* out) {
  EACH {
    const int* b = quads + 4 * i;
    out[i] = pack(b[0], b[1], b[2], b[3]);
  }
}

extern "C" void each_dot4(int64 count, const uint32* bytes, const uint32* table,
                          const int* c, int* out) {
  EACH out[i] = dot4(bytes[i], table[i], c[i]);
}
"""

_OF_WORDS = """
extern "C" void each_rounded_{words}(int64 count, const uint32* value,
                                     const uint8* negative, const int64* exponents,
                                     uint64* out) {{
  EACH out[i] = rounded<{words}>(value + {words} * i, negative[i], exponents[i]);
}}

extern "C" void each_single_rounded_{words}(int64 count, const uint32* value,
                                            const uint8* negative,
                                            const int64* exponents, uint32* out,
                                            uint32* inside) {{
  EACH {{
    const uint32* one = value + {words} * i;
    out[i] = rounded<{words}, uint32>(one, negative[i], exponents[i]);
    uint32 top = one[{words} - 1], sign = negative[i] ? 0x80000000u : 0;
    int zeros = leading_zeros(top);
    int64 field = 32 * {words} - 1 - zeros - exponents[i] + 126;
    bool usual = top && 0 <= field && field <= 252;
    inside[i] = out[i];
    if (usual) inside[i] = rounded_inside_single<{words}>(one, zeros, field, sign);
  }}
}}

extern "C" void each_remainder_{words}(int64 count, const uint32* value,
                                       const uint8* negative, uint64* out) {{
  EACH out[i] = words_remainder<{words}>(value + {words} * i, negative[i]);
}}
"""

_OF_VARIANT = """
#define EACH for (int64 i = 0; i < count; ++i)

extern "C" void each_crt(int64 count, const int* products, uint32* value,
                         uint8* negative, int64 part) {
  EACH negative[i] = crt(products + RESIDUES * i, part, value + VALUE_WORDS * i);
}

extern "C" void each_reconstructed(int64 count, const int* products,
                                   const int64* exponents, uint64* out) {
  EACH {
    uint32 value[VALUE_WORDS];
    bool negative = crt(products + NUM_MODULI * i, 0, value);
    out[i] = rounded<VALUE_WORDS>(value, negative, exponents[i]);
  }
}

extern "C" void each_balanced(int64 count, const int* s, int8* r, int64 l) {
  const float p = (float)modulus(l);
  EACH r[i] = (int8)balanced(bias(l) + s[i], p, 1.0f / p, quotients(l));
}

extern "C" void each_balanced_byte(int64 count, const int* s, int8* r, int64 l) {
  const float p = (float)modulus(l);
  EACH r[i] = (int8)balanced_byte(bias(l) + s[i], -modulus(l), 1.0f / p);
}

extern "C" void each_digit(int64 count, const int* c, uint32* out, int64 l) {
  EACH out[i] = digit(c + i - l, l, 0);
}

extern "C" int value_words() { return VALUE_WORDS; }

extern "C" void each_reduced(int64 count, const int* c, int* out, int64 l) {
  EACH out[i] = reduced(c[i], l);
}

extern "C" void each_residue(int64 count, const uint64* x, const int* exponent,
                             int8* out, int64 l) {
  EACH {
    int byte_shift;
    uint64 value = scaled_integer<WIDE, TRUNCATE>(x[i], exponent[i], &byte_shift);
    out[i] = (int8)residue_of(residue_sum(value, byte_shift, l), l);
  }
}

#if PARTS == 2
// Of x + s y and x - s y, for entries of two words.
extern "C" void each_pair_of_residues(int64 count, const uint64* words,
                                      const int* exponent, int8* out, int64 l) {
  EACH {
    int shift, of_y;
    uint64 x = scaled_integer<WIDE, TRUNCATE>(words[2 * i], exponent[i], &shift);
    uint64 y = scaled_integer<WIDE, TRUNCATE>(words[2 * i + 1], exponent[i], &of_y);
    int sum = residue_sum(x, shift, l), rotated = rotated_sum(y, of_y, l);
    out[2 * i] = (int8)residue_of(sum + rotated, l);
    out[2 * i + 1] = (int8)residue_of(sum - rotated, l);
  }
}
#endif
"""


@functools.cache
def plain() -> ctypes.CDLL:
    """Return the functions that know nothing of moduli."""
    of_words = (_OF_WORDS.format(words=words) for words in WORDS)
    texts = [source("certificate"), *map(render._text, _CHECKSUM)]
    parts = (simt.SHIM.read_text(), *texts, _PLAIN, *of_words)
    return simt.build("plain", "\n".join(parts))


@functools.cache
def of(variant: Variant) -> ctypes.CDLL:
    """Return the functions that are made for a number of moduli."""
    parts = (
        simt.SHIM.read_text(),
        source("reconstruct", variant),
        render._text("reduce.cu"),
        render._text("residues.cuh"),
        _OF_VARIANT,
    )
    return simt.build("moduli", "\n".join(parts))


def each(library: ctypes.CDLL, name: str, count: int, *args: Any) -> None:
    """Run one loop: arrays go by address, integers as 64 bits."""
    kept = [np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x for x in args]
    assert all(x is y for x, y in zip(kept, args, strict=True)), "needs C order"
    values = [
        ctypes.c_void_p(x.ctypes.data)
        if isinstance(x, np.ndarray)
        else ctypes.c_uint64(int(x) & 0xFFFFFFFFFFFFFFFF)
        for x in kept
    ]
    getattr(library, f"each_{name}")(ctypes.c_int64(count), *values)
