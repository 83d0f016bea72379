"""Plant one fault at a time in a copy of the package; every one must turn a test red.

    python tests/faults.py [part of a name]

Not a test itself (it takes minutes): run it when a stage or its tests change.  Prints
each fault with the test that caught it; exit status 1 if one survived.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ("tests/engines", "tests/front", "tests/routes")
# Of the kernels' arithmetic, and of the engine that runs the kernels.
QUICK = ("-m", "not slow")
ARITHMETIC_TESTS = ("tests/kernels/test_render.py", "tests/kernels/test_arithmetic.py")
CHECKSUM_TESTS = ("tests/engines/test_checksum.py",)
CUDA_TESTS = ("tests/engines/test_tiling.py", "tests/engines/test_cuda.py")
CUDA_TILES_TESTS = (
    "tests/kernels/test_limb_tables.py",
    "tests/engines/test_cuda_tiles.py",
)
CUDA_LINES_TESTS = ("tests/engines/test_cuda_hopper_lines.py",)
CUDA_HOPPER_TESTS = (
    "tests/kernels/test_tile_order.py",
    "tests/kernels/test_arithmetic.py",
    "tests/engines/test_tiling.py",
    "tests/engines/test_cuda_replay.py",
    "tests/engines/test_cuda_hopper.py",
)
SLICES_TESTS = (
    "tests/engines/test_slices.py",
    "tests/front/test_slices.py",
    "tests/numerics/test_slice_bounds.py",
)
CUDA_SLICES_TESTS = (
    "tests/kernels/test_slices.py",
    "tests/engines/test_cuda_slices.py",
)
CUDA_SHORTCUTS_TESTS = (
    "tests/engines/test_cuda_replay.py",
    "tests/engines/test_cuda_shortcuts.py",
)
CUDA_CHECKSUM_TESTS = ("tests/engines/test_cuda_checksum.py",)
ARRAY_TESTS = (
    "tests/front/test_array_device.py",
    "tests/front/test_array.py",
    "tests/front/test_array_machine.py",
    "tests/front/test_numpy_names.py",
    "tests/front/test_complex.py",
)
COMPLEX_TESTS = (
    "tests/engines/test_stages.py",
    "tests/engines/test_complex.py",
    "tests/front/test_complex.py",
)
CUDA_COMPLEX_TESTS = (
    "tests/engines/test_cuda_complex.py",
    "tests/kernels/test_arithmetic.py",
)
ROUTES_TESTS = (
    "tests/routes",
    "tests/front/test_scope.py",
    "tests/front/test_complex.py",
)
CUDA_SINGLE_TESTS = (
    "tests/kernels/test_single.py",
    "tests/engines/test_cuda_single.py",
)
COMPLEX_PAIRS_TESTS = (
    "tests/engines/test_cuda_complex.py",
    "tests/engines/test_cuda_complex_lines.py",
    "tests/engines/test_cuda_replay.py",
    "tests/engines/test_cuda_tiles.py",
    "tests/kernels/test_render.py",
    "tests/kernels/test_arithmetic.py",
)
PREPARED_TESTS = ("tests/engines/test_prepared.py",)
ARITHMETIC = ("arithmetic.cuh", "reconstruct.cuh", "reduce.cu", "render.py")

PYTEST = (sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider")

# name: (file under np_ozaki, right text, faulty text); _kernels/ is kernels/
FAULTS = {
    "exponents: no margin below w - 1": (
        "engines/cpu_exponents.py",
        "mu = q + shift - (q < 0)",
        "mu = q + shift",
    ),
    "exponents: width one less": (
        "engines/cpu_exponents.py",
        "width = min(16,",
        "width = -1 + min(16,",
    ),
    "exponents: nearest instead of ceiling": (
        "engines/cpu_exponents.py",
        "np.ceil(out, out=out)",
        "np.rint(out, out=out)",
    ),
    "exponents: underflown entries count as zero": (
        "engines/cpu_exponents.py",
        "    if shrinks:",
        "    if False:",
    ),
    "exponents: equality refused": (
        "engines/cpu_exponents.py",
        "(aligned > top)",
        "(aligned >= top)",
    ),
    "exponents: odd room not rounded down": (
        "engines/cpu_exponents.py",
        "(room >> 1)",
        "((room + 1) >> 1)",
    ),
    "bound: errors of the CPU certificate taken for smaller": (
        "engines/cpu_certificate.py",
        "unit = np.ldexp(1.0, 57 - spare)",
        "unit = np.ldexp(1.0, 48 - spare)",
    ),
    "bound: a tolerance without the last rounding": (
        "precision/schemes.py",
        "while Fraction(2) ** t * (1 + unit) + unit > Fraction(tolerance):",
        "while Fraction(2) ** t > Fraction(tolerance):",
    ),
    "bound: a bit lent too many": (
        "numerics/budget.py",
        "most_a, most_b = least - a_bits + 1, least - b_bits + 1",
        "most_a, most_b = least - a_bits + 2, least - b_bits + 2",
    ),
    "rebalance: line shifts not taken away": (
        "engines/cpu.py",
        "mu, nu = mu + job.line_shifts[0], nu + job.line_shifts[1]",
        "mu, nu = mu, nu",
    ),
    "rebalance: not odd": (
        "engines/cpu_rebalance.py",
        "return np.asarray(np.sign(x) * (np.abs(x) >> 1))",
        "return np.asarray(x >> 1)",
    ),
    "short: entries that lack one bit taken for long": (
        "precision/schemes.py",
        "_LAST_BITS = (1 << 54 - LONG) - 1",
        "_LAST_BITS = (1 << 55 - LONG) - 1",
    ),
    "short: NaN and Inf taken for long": (
        "precision/schemes.py",
        "return math.isfinite(x) and ",
        "return x != x or ",
    ),
    "rebalance: without a promise": (
        "precision/multiply.py",
        "    return usual.num_moduli - (best or scheme).num_moduli >= _LEAST_SAVED\n",
        "    return True\n",
    ),
    "rebalance: no moduli left, no try": (
        "precision/multiply.py",
        "        return bits >= _LEAST_SPREAD\n",
        "        return False\n",
    ),
    "low: head left out": (
        "engines/cpu_limbs.py",
        "absorb(limbs, head * 2.0**shift)",
        "absorb(limbs, head * 0.0)",
    ),
    "exponents: zero lines scaled": (
        "engines/cpu_exponents.py",
        "return np.where(largest > 0, mu, 0)",
        "return mu",
    ),
    "accurate: no margin below r": (
        "engines/cpu_exponents.py",
        "+ g - (g < 0)",
        "+ g",
    ),
    "accurate: 6 bits": (
        "engines/cpu_exponents.py",
        "ACCURATE_BITS = 5",
        "ACCURATE_BITS = 6",
    ),
    "legacy: norm not compared with 2": (
        "engines/cpu_exponents.py",
        "g = np.minimum(q + shift - 1,",
        "g = np.minimum(q + shift - 1, 10**6 +",
    ),
    "residues: truncation": (
        "engines/cpu_residues.py",
        "np.rint(out, out=out)",
        "np.trunc(out, out=out)",
    ),
    "residues: second factor forgotten": (
        "engines/cpu_residues.py",
        "        out *= factors[1]",
        "        pass",
    ),
    "residues: high plane forgotten": (
        "engines/cpu_residues.py",
        "                    value += scratch\n",
        "                    pass\n",
    ),
    "residues: not reduced": (
        "engines/cpu_residues.py",
        "    value -= scratch\n",
        "",
    ),
    "residues: inverses on the right": (
        "engines/cpu_stages.py",
        "system.left if left",
        "system.left if not left",
    ),
    "gemm: k block never reduced": (
        "engines/cpu.py",
        "self.reduce(total, system)",
        "pass",
    ),
    "gemm: block of k too long": (
        "engines/residue_system.py",
        "EXACT_K_BLOCK = 1 << 14",
        "EXACT_K_BLOCK = 1 << 21",
    ),
    "gemm: last k block dropped": (
        "engines/cpu.py",
        "                        total += target",
        "                        pass",
    ),
    "reconstruct: one prime short": (
        "engines/residue_system.py",
        "if product * 2047 // 4096 > largest:",
        "if product * 2**20 > largest:",
    ),
    "reconstruct: quotient truncated": (
        "engines/cpu_reconstruct.py",
        "fold = np.rint(quotient)",
        "fold = np.trunc(quotient)",
    ),
    "reconstruct: low half of the head dropped": (
        "engines/cpu_reconstruct.py",
        "np.multiply(system.head_low, upper, out=scratch)\n        value -= scratch",
        "np.multiply(system.head_low, upper, out=scratch)",
    ),
    "reconstruct: carries dropped": (
        "engines/cpu_limbs.py",
        "        high += carried",
        "        pass",
    ),
    "reconstruct: legacy does not wrap exactly": (
        "engines/cpu_reconstruct.py",
        "        if near.any():",
        "        if False:",
    ),
    "rounding: twice": (
        "engines/rounding.py",
        "    return total, add_to_odd(error, low)",
        "    return total, error + low",
    ),
    "rounding: subnormal results twice": (
        "engines/cpu_limbs.py",
        "    if tiny.any():",
        "    if False:",
    ),
    "rounding: sign of an underflow lost": (
        "engines/cpu_limbs.py",
        "np.copysign(rounded, result[tiny])",
        "rounded",
    ),
    "unscale: early overflow": (
        "engines/cpu_reconstruct.py",
        "_PLAIN_EXPONENT = 450",
        "_PLAIN_EXPONENT = 2000",
    ),
    "special values: Inf * 0 forgotten": (
        "engines/special_values.py",
        "        invalid |= _any_product(x, y, _INVALID)\n",
        "",
    ),
    "special values: Inf - Inf forgotten": (
        "engines/special_values.py",
        "    invalid |= plus & minus\n",
        "",
    ),
    "special values: columns forgotten": (
        "engines/special_values.py",
        "    if columns.size:",
        "    if False:",
    ),
    "front: out written although it aliases": (
        "gemm.py",
        "        and not choice.may_share_memory(out, a)\n"
        "        and not choice.may_share_memory(out, b)\n",
        "",
    ),
    "front: batch operand not broadcast": (
        "gemm.py",
        "            x[1:] = x[:1]",
        "            pass",
    ),
    "scope: left scopes stay in force": (
        "context.py",
        "        scope.alive = False",
        "        pass",
    ),
    "array: vdot without conjugation": (
        "array/contractions.py",
        "_LEFT: Final[Conjugated] = (True, False)",
        "_LEFT: Final[Conjugated] = (False, False)",
    ),
    "array: conjugates of complex data come from the host": (
        "array/elementwise.py",
        "        np.conjugate,\n    }",
        "    }",
    ),
    "array: snapshot shares memory": (
        "array/core.py",
        "return cls._own(np.array(x))",
        "return cls._own(np.asarray(x))",
    ),
    "routes: dot of the wrong axis": (
        "routes/numpy_api.py",
        "np.moveaxis(b, -2, 0)",
        "np.moveaxis(b, -1, 0)",
    ),
    "routes: scalar of out not made": (
        "routes/numpy_api.py",
        "        return result[()]\n    return result if room is None else room",
        "        return result\n    return result if room is None else room",
    ),
    "routes: class of the lower priority": (
        "routes/numpy_api.py",
        "_PRIORITIES[right] > _PRIORITIES[left]",
        "_PRIORITIES[right] < _PRIORITIES[left]",
    ),
    "routes: out of any layout": (
        "routes/numpy_api.py",
        "        and out.flags.c_contiguous\n",
        "",
    ),
    "routes: exceptions in matmul's name": (
        "routes/numpy_api.py",
        "out, options, route, np.dot, prepared, conjugated",
        "out, options, route, np.matmul, prepared, conjugated",
    ),
    "routes: scope's min_flops ignored": (
        "routes/decision.py",
        "    if flops(parts * m, n, parts * k) < min_flops(options):",
        "    if False:",
    ),
    "routes: complex products counted as real": (
        "routes/decision.py",
        'parts = 2 if dtype.kind == "c" else 1',
        "parts = 1",
    ),
    "routes: vecdot without conjugation": (
        "routes/numpy_api.py",
        '"vecdot": (True, False),',
        '"vecdot": (False, False),',
    ),
    "routes: vecmat of the wrong conjugate": (
        "routes/numpy_api.py",
        '"vecmat": (True, False),',
        '"vecmat": (False, True),',
    ),
    "routes: more complex moduli than there are": (
        "routes/decision.py",
        "and type(given) is int and given > most:",
        "and False:",
    ),
    "routes: float32 by default": (
        "gemm.py",
        "(_SCOPED if scoped else None)",
        "None",
    ),
    "routes: dtypes restrict scopes only": (
        "gemm.py",
        "        or left_out(options, out.dtype)\n",
        "",
    ),
    "routes: promises of dtypes left out": (
        "functions.py",
        "    if reason is None and options is not None:\n",
        "    if False:\n",
    ),
    "routes: tolerance below the spacing of float32": (
        "routes/decision.py",
        "    if not keeps_tolerance(options, format_of(dtype)):\n",
        "    if False:\n",
    ),
    "routes: norms of bounds by a scope": (
        "numerics/bounds.py",
        "    with hooks.unrouted():\n",
        "    if True:\n",
    ),
    "routes: exponents by a scope": (
        "engines/cpu_exponents.py",
        "with hooks.unrouted():",
        "if True:",
    ),
    "einsum: any dtype for that of the operands": (
        "routes/einsum.py",
        "return bool(np.dtype(given) == dtype)",
        "return True",
    ),
    "einsum: order of implicit labels": (
        "routes/einsum.py",
        "(*hidden, *sorted(once))",
        "(*hidden, *sorted(once, key=lambda x: chr(x).lower()))",
    ),
    "einsum: lower case first in lists": (
        "routes/einsum.py",
        'chr(ord("A") + label) if label < 26 else chr(ord("a") + label - 26)',
        'chr(ord("a") + label) if label < 26 else chr(ord("A") + label - 26)',
    ),
    "einsum: stretched axes kept": (
        "routes/einsum.py",
        "if size == 1 != sizes[label]",
        "if False",
    ),
    "einsum: special values summed beforehand": (
        "routes/einsum.py",
        "    if not (np.isfinite(c.a).all() and np.isfinite(c.b).all()):\n",
        "    if False:\n",
    ),
    "einsum: result not copied back": (
        "routes/einsum.py",
        "        view[...] = target.reshape(view.shape)",
        "        pass",
    ),
    "einsum: out written although it aliases": (
        "routes/einsum.py",
        "    return np.may_share_memory(out, c.a) or np.may_share_memory(out, c.b)",
        "    return False",
    ),
    "einsum: layout always C": (
        "routes/einsum.py",
        "        order=order,",
        '        order="C",',
    ),
    "blas: C read with beta = 0": (
        "routes/triangles.py",
        "        if beta != 0.0:\n            before",
        "        if True:\n            before",
    ),
    "blas: imaginary diagonal of a Hermitian result": (
        "routes/triangles.py",
        "    if hermitian:\n        np.fill_diagonal(product.imag, 0.0)\n",
        "",
    ),
    "blas: imaginary diagonal of a Hermitian operand": (
        "routes/triangles.py",
        "        np.fill_diagonal(full.imag, 0.0)\n",
        "",
    ),
    "blas: other triangle of a Hermitian operand": (
        "routes/triangles.py",
        "mirrored = a.T.conj() if hermitian else a.T",
        "mirrored = a.T.conj() if hermitian else a.T.conj().T",
    ),
    "blas: solved by the triangle's conjugate": (
        "routes/triangles.py",
        "triangle.conj() if conjugated else triangle",
        "triangle",
    ),
    "blas: the wrong side of a Hermitian update conjugated": (
        "routes/scipy_blas.py",
        '(trans == "C", trans == "N")',
        '(trans == "N", trans == "C")',
    ),
    "blas: complex updates of a trans that there is not": (
        "routes/scipy_blas.py",
        'None if route[0] in "cz" and trans == "C" else (False, UNCONJUGATED)',
        "(False, UNCONJUGATED)",
    ),
    "blas: fused products of complex scalars": (
        "routes/arithmetic.py",
        "        multiply(x.copy(), np.asarray(factor, x.dtype), x)",
        "        x *= factor",
    ),
    "blas: real scalars as complex ones": (
        "routes/arithmetic.py",
        "    elif factor.imag == 0.0:",
        "    elif False:",
    ),
    "blas: division without the larger part": (
        "routes/arithmetic.py",
        "turned = abs(real) < abs(imag)",
        "turned = False",
    ),
    "blas: flops of a complex routine": (
        "routes/blas_call.py",
        'times = 4 if self.dtype.kind == "c" else 1',
        "times = 1",
    ),
    "blas: beta before alpha": (
        "routes/triangles.py",
        "        out += product\n",
        "        out += product * beta\n",
    ),
    "blas: other triangle written": (
        "routes/triangles.py",
        "    np.copyto(out, product, where=inside)",
        "    out[...] = product",
    ),
    "blas: unit diagonal read": (
        "routes/triangles.py",
        "        if unit:\n            np.fill_diagonal",
        "        if False:\n            np.fill_diagonal",
    ),
    "blas: other triangle read": (
        "routes/triangles.py",
        "np.tril(triangle[start:stop, :stop], start)",
        "np.array(triangle[start:stop, :stop])",
    ),
    "blas: strips from the first": (
        "routes/triangles.py",
        "in reversed(range(0, size, _STRIP))",
        "in range(0, size, _STRIP)",
    ),
    "blas: blocks in accurate mode": (
        "routes/blas_call.py",
        'return self._options.scaling == "accurate"',
        "return False",
    ),
    "blas: operand overlaps the result": (
        "routes/scipy_blas.py",
        "return x.copy() if np.may_share_memory(x, out) else x",
        "return x",
    ),
    "blas: negative steps start at the front": (
        "routes/blas_call.py",
        "    if step < 0:",
        "    if False:",
    ),
    "blas: Inf beside the zeros of a triangle": (
        "routes/scipy_blas.py",
        "    if not np.isfinite(b).all():",
        "    if False:",
    ),
    "cuda integers: ties up": (
        "_kernels/arithmetic.cuh",
        "((uint32)value & 1);",
        "1u;",
    ),
    "cuda integers: legacy rounds": (
        "_kernels/render.py",
        "{str(scaling == 'legacy').lower()}",
        "false",
    ),
    "cuda rounding: ties away": (
        "_kernels/arithmetic.cuh",
        "kept += (rest + (HALF - 1) + ((Rest)kept & 1)) >> DROP;",
        "kept += (rest + HALF) >> DROP;",
    ),
    "cuda rounding: what lies far below forgotten": (
        "_kernels/arithmetic.cuh",
        "high |= (low != 0) | (below != 0);",
        "",
    ),
    "cuda rounding: sign of an underflow lost": (
        "_kernels/arithmetic.cuh",
        "return sign | rounded_outside<Bits>(high, exponent);",
        "return rounded_outside<Bits>(high, exponent);",
    ),
    "cuda exponents: no margin below w - 1": (
        "_kernels/arithmetic.cuh",
        "g + (w - 1 - e) - (g < 0)",
        "g + (w - 1 - e)",
    ),
    "cuda exponents: legacy not compared with 2": (
        "_kernels/arithmetic.cuh",
        "(by_norm < by_size ? by_norm : by_size) - e",
        "by_norm - e",
    ),
    "cuda exponents: leading bits not compared": (
        "_kernels/arithmetic.cuh",
        "(value << zeros) <= limit_top",
        "true",
    ),
    "cuda exponents: tiny entries count as zero": (
        "_kernels/arithmetic.cuh",
        "if (shift <= -54) return f != 0;",
        "if (shift <= -54) return 0;",
    ),
    "cuda exponents: last group of a block forgotten": (
        "_kernels/shares.cuh",
        "i < ACROSS_GROUPS; ++i",
        "i < ACROSS_GROUPS - 1; ++i",
    ),
    "cuda exponents: later blocks replace the sums": (
        "_kernels/scaling_exponents.cu",
        "atomicAdd(&facts.squares[share.fact], squares)",
        "facts.squares[share.fact] = squares",
    ),
    "cuda accurate: columns have no maxima": (
        "_kernels/accurate.cu",
        "  if (value > *(volatile uint64*)column) atomicMax(column, value);\n",
        "",
    ),
    "cuda accurate: no room for rows without partners": (
        "_kernels/render.py",
        'half + 6 if scaling == "accurate" else half',
        "half",
    ),
    "cuda residues: wide tables too short": (
        "_kernels/render.py",
        "// 8 + 2",
        "// 8",
    ),
    "cuda residues: padding along k": (
        "_kernels/lines.cuh",
        "h + i / PARTS < end ? group[spread(i)] : 0;",
        "h + i / PARTS < end ? group[spread(i)] : 0x3ff0000000000000ull;",
    ),
    "cuda residues: padding lines": (
        "_kernels/lines.cuh",
        "inside && h < x.words() ? x.at(batch, line_read, h) : 0;",
        "h < x.words() ? x.at(batch, line_read % x.lines, h) : 0;",
    ),
    "cuda residues: plane of the certificate one bit short": (
        "_kernels/residues.cuh",
        "FIRST_LOOK_BITS - 1 - e",
        "FIRST_LOOK_BITS - 2 - e",
    ),
    "cuda hopper: any view of one array is its transpose": (
        "engines/cuda.py",
        "a.strides[a.shape[0] == 1 :] == b.strides[b.shape[0] == 1 :]",
        "True",
    ),
    "cuda hopper: operands that are one array are replayed as two": (
        "engines/cuda.py",
        "            pointers[0] == pointers[1],\n",
        "",
    ),
    "cuda hopper: recordings serve other certificates": (
        "engines/cuda.py",
        "            certify,\n            limit,\n",
        "            certify is None,\n            limit,\n",
    ),
    "cuda hopper: addresses of the first product stay": (
        "engines/cuda_replay.py",
        "            if bases != self._bases:\n",
        "            if not self._bases:\n",
    ),
    "cuda hopper: what was not recorded is replayed": (
        "engines/cuda_replay.py",
        "        if not self.is_complete:\n            return None\n",
        "",
    ),
    "cuda shortcuts: whatever the options": (
        "engines/cuda_shortcuts.py",
        "        id(options),\n",
        "",
    ),
    "cuda shortcuts: operands that are one array taken for two": (
        "engines/cuda_shortcuts.py",
        "        left == right,  # of one array fewer lines are read\n",
        "",
    ),
    "cuda shortcuts: strides do not matter": (
        "engines/cuda_shortcuts.py",
        "        b.strides,\n",
        "",
    ),
    "cuda shortcuts: operands that begin anywhere": (
        "engines/cuda_shortcuts.py",
        "            if (left | right | target) % _ALIGNMENT or",
        "            if",
    ),
    "cuda shortcuts: results that overlap operands": (
        "engines/cuda_shortcuts.py",
        "% _ALIGNMENT or kept.overlap(*where[1:]):",
        "% _ALIGNMENT:",
    ),
    "cuda shortcuts: where data decided": (
        "engines/choice.py",
        "    return type(options.precision) is int and options.engine",
        "    return options.engine",
    ),
    "cuda shortcuts: products that are not counted": (
        "engines/cuda_shortcuts.py",
        "        context.record(kept.info)\n",
        "",
    ),
    "cuda hopper: panels wider than memory": (
        "tiling.py",
        "tiles.workspace_bytes <= budget and tiles.n >= min(n, least)",
        "tiles.n >= min(n, least)",
    ),
    "cuda hopper: seven products of wide integers": (
        "engines/cuda_hopper_lines.py",
        "    return not scheme.shift and not is_wide(",
        "    return not scheme.shift or not is_wide(",
    ),
    "cuda hopper: more clusters than pairs of tiles": (
        "_kernels/tile_order.cuh",
        "    while (exists() && at >= all) {",
        "    if (exists() && at >= all) {",
    ),
    "cuda hopper: planes end before their short items": (
        "_kernels/tile_order.cuh",
        "      plane += is_short;\n",
        "      plane += 1;\n",
    ),
    "cuda hopper: short items by the turns of others": (
        "_kernels/tile_order.cuh",
        "(work.symmetric ? rows - 1 : 0)",
        "(rows - 1)",
    ),
    "cuda hopper: tall blocks of a symmetric product": (
        "engines/cuda_tiles.py",
        "steps >= _TALL_STEPS and not symmetric",
        "steps >= _TALL_STEPS",
    ),
    "cuda hopper: floats for sums that they cannot hold": (
        "_kernels/render.py",
        "p + 2 * off >= 256",
        "p + 2 * off >= 260",
    ),
    "cuda hopper: quotients beyond their place in a float": (
        "_kernels/render.py",
        "largest + rounding >= (2**22 - 1) * p or ",
        "",
    ),
    "cuda hopper: an array of every tile is kept": (
        "engines/cuda_replay.py",
        "        if self.is_complete:\n            pointer",
        "        if True:\n            pointer",
    ),
    "cuda hopper: no check of what residue tiles leave": (
        "engines/cuda.py",
        "        return planes, remainders\n",
        "        return planes, None\n",
    ),
    "cuda hopper: residues one too large at a half": (
        "_kernels/arithmetic.cuh",
        "  int half = 1 << shift >> 1;\n",
        "  int half = 0;\n",
    ),
    "cuda clusters: lines seen as plain too near to infinity": (
        "_kernels/arithmetic.cuh",
        "2048 - 2 * 64",
        "2048 - 64",
    ),
    "cuda clusters: sums of one block's part of a line": (
        "_kernels/facts_in_clusters.cuh",
        "sum_of_warp(told<blocks>(slots, 1, 0, of_block, line_bits, TakeSum()))",
        "squares",
    ),
    "cuda clusters: a line's special values in one block only": (
        "_kernels/facts_in_clusters.cuh",
        "  special = union_of_warp((uint32)special_told);\n",
        "",
    ),
    "cuda clusters: words of other blocks are not waited for": (
        "_kernels/facts_in_clusters.cuh",
        "  wait_for_mail(&slots.mail[turn], blocks * (int)sizeof(slots.words[turn]) "
        "/ 8);\n",
        "",
    ),
    "cuda clusters: half of the pairs of cuts go astray": (
        "_kernels/shared_lines.cuh",
        "(lane & 2) * 4",
        "(lane & 1) * 8",
    ),
    "cuda winograd: the offset of a sum is 2^60 off": (
        "_kernels/winograd.cuh",
        "x[1] - second + 15 * ADDED",
        "x[1] - second + 14 * ADDED",
    ),
    "cuda winograd: the second half's first entries count twice": (
        "_kernels/winograd_in_clusters.cu",
        "if (!later && half.k > half_k) half.k = half_k;",
        "",
    ),
    "cuda winograd: lines of the second half scaled as those of the first": (
        "_kernels/winograd_in_clusters.cu",
        "scalings.of_line[of_block + lines]};",
        "scalings.of_line[of_block]};",
    ),
    "cuda gemm: k block never reduced": (
        "engines/cuda.py",
        "                self.reduce(total, variant)\n",
        "                pass\n",
    ),
    "cuda gemm: k blocks replace each other": (
        "engines/cuda.py",
        "total[moduli], accumulate=True)",
        "total[moduli], accumulate=False)",
    ),
    "cuda gemm: broadcast batch folded wrongly": (
        "engines/cuda_stages.py",
        "products.reshape(planes, m, batch_b, n).swapaxes(1, 2)",
        "products.reshape(planes, batch_b, m, n)",
    ),
    "cuda gemm: block of k too long": (
        "tiling.py",
        "INT8_K_BLOCK = 1 << 17",
        "INT8_K_BLOCK = 1 << 18",
    ),
    "cuda reduce: offset forgotten": (
        "_kernels/reduce.cu",
        "bias(l) + reduce_offset(l)",
        "bias(l)",
    ),
    "cuda checksum: a sum that wraps is not made good": (
        "_kernels/checksum.cu",
        "+ x < x ? 8 : 0;",
        "+ x < x ? 0 : 0;",
    ),
    "cuda checksum: powers of two of long integers forgotten": (
        "_kernels/checksum.cuh",
        "8 * byte_shift % PRIME_BITS",
        "0",
    ),
    "cuda checksum: sign of C' forgotten": (
        "_kernels/checksum.cuh",
        "return negative && total ? PRIME - total : total;",
        "return total;",
    ),
    "cuda checksum: inner sums of the first matrix": (
        "_kernels/checksum.cu",
        "(inner.batch > 1 ? share.batch : 0) * x.k",
        "0",
    ),
    "cuda checksum: rows entered again count twice": (
        "engines/cuda_checksum.py",
        "if i.start >= self._seen[0]:",
        "if True:",
    ),
    "cuda checksum: columns of other tiles count twice": (
        "engines/cuda_checksum.py",
        "                self._inner[1] = None",
        "                pass",
    ),
    "cuda checksum: rows of the turned product": (
        "engines/cuda_sides.py",
        "is_turned=not self.is_turned",
        "is_turned=False",
    ),
    "cuda checksum: sums of C' are those of operands": (
        "engines/cuda_checksum.py",
        "sums = self._sums[side][1, :, lines[side]]",
        "sums = self._sums[side][0, :, lines[side]]",
    ),
    "cuda reconstruct: quotient one too large": (
        "_kernels/reconstruct.cuh",
        "(uint32)(scaled >> QUOTIENT_SHIFT);",
        "(uint32)(scaled >> QUOTIENT_SHIFT) + 1;",
    ),
    "cuda reconstruct: quotient never corrected": (
        "_kernels/reconstruct.cuh",
        "if (beyond >= 0) {",
        "if (false) {",
    ),
    "cuda reconstruct: factor of the quotient too large": (
        "_kernels/render.py",
        "factor = (1 << shift + top) // product",
        "factor = (1 << shift + top) // product + 2**26",
    ),
    "cuda reconstruct: digits below zero": (
        "_kernels/render.py",
        "_bytes([s * 2 ** (8 * i) % p for i in range(4)])",
        "_bytes([balanced_residue(s * 2 ** (8 * i), p) for i in range(4)])",
    ),
    "cuda reconstruct: layers of the grid forgotten": (
        "_kernels/lines.cuh",
        "step = gridDim.y * (int64)height;",
        "step = rows;",
    ),
    "cuda residue tiles: quotient never corrected": (
        "_kernels/limbs.cuh",
        "if (!beyond) return negative;",
        "return negative;",
    ),
    "cuda residue tiles: -1 - r taken for -r in the quotient": (
        "_kernels/limbs.cuh",
        "if (negated) scaled += NEGATED_FRACTION;",
        "",
    ),
    "cuda residue tiles: -1 - r taken for -r": (
        "_kernels/limbs.cuh",
        "negated ? 0x101 : 1",
        "1",
    ),
    "cuda residue tiles: carries dropped": (
        "_kernels/limbs.cuh",
        "carry = (uint32)(word >> 32);",
        "carry = 0;",
    ),
    "cuda residue tiles: halves are rounded up": (
        "_kernels/arithmetic.cuh",
        "0x7fffffffu + (below != 0)",
        "0x80000000u",
    ),
    "cuda residue tiles: what lies below a half forgotten": (
        "_kernels/arithmetic.cuh",
        "0x7fffffffu + (below != 0)",
        "0x7fffffffu",
    ),
    "cuda residue tiles: lines that are not finite taken for others": (
        "_kernels/reconstruct_tiles.cu",
        "? FAR_FIELD",
        "? 0",
    ),
    "cuda residue tiles: rows of padding written": (
        "_kernels/reconstruct_tiles.cu",
        "found[entry] = row < quarter.rows && ",
        "found[entry] = ",
    ),
    "cuda residue tiles: columns of a half overlap": (
        "_kernels/reconstruct_tiles.cu",
        "if (HALVES == 2 && of_half < inside) inside = of_half;",
        "",
    ),
    "cuda residue tiles: bias of a single product": (
        "_kernels/limb_tables.py",
        "_TERMS = {1: 1, 7: 4}",
        "_TERMS = {1: 1, 7: 1}",
    ),
    "cuda special values: of the wrong row": (
        "_kernels/results.cuh",
        "special_value(a, b, batch_a, row, batch_b, column, part, bits, flags)",
        "special_value(a, b, batch_a, 0, batch_b, column, part, bits, flags)",
    ),
    "cuda special values: flags of the first matrix": (
        "_kernels/reconstruct.cu",
        "rows.special[row] |",
        "rows.special[i] |",
    ),
    "cuda special values: Inf * 0 forgotten": (
        "_kernels/results.cuh",
        "plus = minus = true;  // Inf 0",
        "continue;",
    ),
    "cuda special values: the last one of a line wins": (
        "_kernels/lines.cuh",
        "*special |= special_of(bits)",
        "*special = special_of(bits)",
    ),
    "cuda exceptions: overflow not told": (
        "_kernels/results.cuh",
        "atomicOr(flags, OVERFLOW_FLAG)",
        "0",
    ),
    "cuda certificate: sums of one k block": (
        "engines/cuda.py",
        "self.widen(cuts, wide)",
        "self.widen(cuts, None)",
    ),
    "cuda certificate: sides swapped": (
        "_kernels/certificate.cu",
        "bits_short(norm_b, spare_a, (int)power, least)",
        "bits_short(norm_b, spare_b, (int)power, least)",
    ),
    "cuda certificate: single entries not looked at": (
        "_kernels/certificate.cu",
        "if (!least) {",
        "if (!least) continue; else if (false) {",
    ),
    "cuda certificate: a glance at one side": (
        "_kernels/certificate.cu",
        "max(bits_b + glance.of_spare, glance.of_norm - spare_b)",
        "bits_b + glance.of_spare",
    ),
    "cuda certificate: a glance at the other side": (
        "_kernels/certificate.cu",
        "max(bits_b + glance.of_spare, glance.of_norm - spare_b)",
        "glance.of_norm - spare_b",
    ),
    "cuda certificate: rows of the first steps alone": (
        "_kernels/certificate.cu",
        "first < row_count; first += AT_A_TIME * step",
        "first < row_count; first += row_count",
    ),
    "cuda certificate: glances of one step": (
        "_kernels/certificate.cu",
        "first + (slot >> height_bits) * step",
        "first",
    ),
    "cuda samples: the first operand's again": (
        "_kernels/samples.cu",
        "sampled(b, index - count)",
        "sampled(a, index - count)",
    ),
    "cuda samples: strides of neighbours": (
        "engines/cuda_samples.py",
        "(s // itemsize * step for",
        "(s // itemsize for",
    ),
    "cuda single: subnormal entries are one binade off": (
        "_kernels/arithmetic.cuh",
        "(1023 - 118 - zeros)",
        "(1023 - 117 - zeros)",
    ),
    "cuda single: halves rounded up": (
        "_kernels/arithmetic.cuh",
        "(rest + 0x7f + ((kept & 1) | (below != 0))) >> 8",
        "(rest + 0x80) >> 8",
    ),
    "cuda single: integers of more bits are short": (
        "_kernels/arithmetic.cuh",
        "e + exponent < SHORT_BITS",
        "e + exponent < SHORT_BITS + 9",
    ),
    "cuda single: ceilings of products rounded to nearest": (
        "_kernels/arithmetic.cuh",
        "float ceiling = __builtin_ceilf(x * scale);",
        "float ceiling = __builtin_nearbyintf(x * scale);",
    ),
    "cuda single: ends of rows are read whole": (
        "_kernels/shared_lines.cuh",
        ": h < left                    ? SIZE * (int)(left - h)",
        ": h < left                    ? 16",
    ),
    "cuda single: rows at any address in 16 bytes": (
        "engines/cuda_hopper_lines.py",
        "all(s % words == 0 for s in strides)",
        "True",
    ),
    "cuda single: recordings of other types": (
        "engines/cuda.py",
        "            a.dtype.char,\n            out.dtype.char,\n",
        "",
    ),
    "cuda single: results that are not finite are those of doubles": (
        "_kernels/results.cuh",
        "if (plus) return Format<Bits>::INFINITE;",
        "if (plus) return (Bits)INFINITY_BITS;",
    ),
    "cuda single: samples a word apart": (
        "engines/cuda_samples.py",
        "_plan(operands[0].itemsize,",
        "_plan(_WORD,",
    ),
    "cuda certificate: no second look": (
        "engines/cuda.py",
        "short[index] = self._second_look(x, y, scheme, target, budget)",
        "pass",
    ),
    "cuda integers: plain ones are shifted one too far": (
        "_kernels/arithmetic.cuh",
        "1082 - exponent - (int)",
        "1083 - exponent - (int)",
    ),
    "cuda exponents: lower word forgotten": (
        "_kernels/arithmetic.cuh",
        "f += (uint32)bits != 0;",
        "",
    ),
    "cuda exponents: upper word of NaN taken for a number": (
        "_kernels/lines.cuh",
        "upper >= 0x00100000 && upper < 0x7ff00000",
        "upper >= 0x00100000",
    ),
    "cuda residues: bias far from 2^23": (
        "_kernels/render.py",
        "number = -(-(_FLOAT_INTEGERS + below) // step) * step",
        "number = -(-(_FLOAT_INTEGERS + below) // step + 40) * step",
    ),
    "cuda reconstruct: moduli of a pair swapped": (
        "_kernels/reconstruct.cuh",
        "pair * modulus(l + 1) + digit(products, l + 1, part) * modulus(l)",
        "pair * modulus(l) + digit(products, l + 1, part) * modulus(l + 1)",
    ),
    "cuda second look: digits of one weight overwrite": (
        "engines/cuda_certificate.py",
        "accumulate=target in started",
        "accumulate=False",
    ),
    "cuda second look: lines that are not rounded count": (
        "_kernels/second_look.cu",
        "bool moved_a = rounded_rows[i];",
        "bool moved_a = true;",
    ),
    "cuda second look: largest term by one operand": (
        "_kernels/second_look.cu",
        "top_exponent(x) + top_exponent(y)",
        "2 * top_exponent(x)",
    ),
    "cuda rebalancing: Inf counts": (
        "_kernels/rebalance.cu",
        "return has_exponent(bits) ? top_exponent(magnitude(bits)) : NO_EXPONENT;",
        "return top_exponent(magnitude(bits) | 1);",
    ),
    "cuda rebalancing: D of the first matrix": (
        "_kernels/rebalance.cu",
        "    weights += share.batch * levels.k;\n",
        "",
    ),
    "cuda rebalancing: later blocks replace maxima": (
        "_kernels/rebalance.cu",
        "atomicMax(&maxima[share.fact], most)",
        "maxima[share.fact] = most",
    ),
    "cuda rebalancing: the index's own d forgotten": (
        "_kernels/rebalance.cu",
        "(beta[h] - alpha[h] - 2 * d[h]) / 2",
        "(beta[h] - alpha[h]) / 2",
    ),
    "cuda rebalancing: steps not odd": (
        "_kernels/rebalance.cu",
        "(beta[h] - alpha[h] - 2 * d[h]) / 2",
        "(beta[h] - alpha[h] - 2 * d[h]) >> 1",
    ),
    "cuda rebalancing: the rest of a share not copied": (
        "_kernels/rebalance.cu",
        "for (; h < share.stop; h += step) write",
        "if (h == share.start && h < share.stop) write",
    ),
    "cuda rebalancing: underflow not told": (
        "_kernels/rebalance.cu",
        "atomicMax(&short_of[share.batch], most)",
        "0",
    ),
    "cuda tiles: facts of the first tile": (
        "engines/cuda_lines.py",
        "self.first + lines.start",
        "self.first",
    ),
    "cuda tiles: exponents of a partner shared by a batch": (
        "engines/cuda.py",
        "            job = job.with_whole_batches()\n        left = Side",
        "            pass\n        left = Side",
    ),
    "cuda tiles: planes of the last tile kept": (
        "engines/cuda_sides.py",
        "        self._planes = None\n        self._lines = lines\n",
        "        self._lines = lines\n",
    ),
    "cuda memory: no second try": (
        "engines/cuda_shortage.py",
        "        if budget <= _LEAST_BUDGET:\n",
        "        if True:\n",
    ),
    "checksum: one weight for all lines": (
        "engines/checksum.py",
        "x.astype(np.int64)",
        "np.ones(count, dtype=np.int64)",
    ),
    "checksum: columns are not compared": (
        "engines/checksum.py",
        "wrong = rows.any(axis=1) | columns.any(axis=1)",
        "wrong = rows.any(axis=1)",
    ),
    "checksum: matrix counted from the part of the batch": (
        "engines/checksum.py",
        "tile.batch.start + matrix,",
        "matrix,",
    ),
    "cpu checksum: bits rotate by one too many": (
        "engines/cpu_sums.py",
        "asarray(exponent % _BITS",
        "asarray((exponent + 1) % _BITS",
    ),
    "cpu checksum: pieces of vectors not balanced": (
        "engines/cpu_sums.py",
        "(rest + (1 << (bits - 1))) >> bits",
        "rest >> bits - 1 << 1 >> 1",
    ),
    "cpu checksum: sums of blocks too long for FP64": (
        "engines/cpu_sums.py",
        "return 53 - _PIECE - (length - 1).bit_length()",
        "return 64 - _PIECE - (length - 1).bit_length()",
    ),
    "cpu checksum: int64 sums overflow": (
        "engines/cpu_sums.py",
        "self._total %= PRIME",
        "pass",
    ),
    "cpu checksum: one piece of an operand too few": (
        "engines/cpu_checksum.py",
        "most // _OPERAND_BITS + 1)",
        "max(1, most // _OPERAND_BITS))",
    ),
    "cpu checksum: values that are no integers": (
        "engines/cpu_checksum.py",
        "            np.rint(term, out=term)\n",
        "",
    ),
    "cpu checksum: sums that mean nothing count": (
        "engines/cpu_sums.py",
        "|= ~exact",
        "|= False",
    ),
    "cpu checksum: z B' of the tile above": (
        "engines/cpu_checksum.py",
        "self._of_columns[rows.start]",
        "next(iter(self._of_columns.values()))",
    ),
    "cpu checksum: x of the columns before": (
        "engines/cpu_checksum.py",
        "moved = columns != self._columns",
        "moved = not self._x.size",
    ),
    "cpu checksum: the head is not counted": (
        "engines/cpu_checksum.py",
        "terms = limbs if head is None else [*limbs, head]",
        "terms = limbs if head is None else [*limbs, 0 * head]",
    ),
    "prepared: exponents of another number of moduli": (
        "precision/schemes.py",
        'lambda: (engine.line_exponents(a, *kind, left=True),), "exponents", kind\n',
        'lambda: (engine.line_exponents(a, *kind, left=True),), "exponents"\n',
    ),
    "prepared: planes of another scheme": (
        "engines/cpu_operand.py",
        "        scheme,\n        whole,\n",
        "        whole,\n",
    ),
    "prepared: planes of the other role": (
        "engines/cpu_operand.py",
        'Keeper(prepared, HOST, limit, "cpu", left, x.shape',
        'Keeper(prepared, HOST, limit, "cpu", x.shape',
    ),
    "prepared: planes of the operand as it lies otherwise": (
        "engines/cpu_operand.py",
        "left, x.shape, x.strides)",
        "left, x.shape)",
    ),
    "prepared: stacks that are repeated": (
        "gemm.py",
        "return prepared if stack.shape[0] == math.prod(x.shape[:-2]) else None",
        "return prepared",
    ),
    "prepared: parts of a batch taken for whole operands": (
        "precision/multiply.py",
        "prepared[0] if a is self.a else None,",
        "prepared[0],",
    ),
    "prepared: values outlive closing": (
        "engines/prepared.py",
        "            if of.values is not values:\n",
        "            if False:\n",
    ),
    "prepared: the value used last goes first": (
        "engines/prepared.py",
        "oldest = next(iter(order))",
        "oldest = next(reversed(order))",
    ),
    "prepared: bytes of owners that are no more": (
        "engines/prepared.py",
        "        self._orphans.extend(kept)\n",
        "",
    ),
    "prepared: a failed check keeps what failed": (
        "precision/multiply.py",
        "        forget(prepared)\n",
        "",
    ),
    "prepared: on a device, planes of another number of moduli": (
        "engines/cuda_sides.py",
        "            self.variant,\n            self._conjugated,\n",
        "            self._conjugated,\n",
    ),
    "prepared: on a device, exponents without lent bits": (
        "engines/cuda_sides.py",
        "            gained(scheme, self.left),\n",
        "",
    ),
    "prepared: on a device, another stream's": (
        "engines/cuda.py",
        '"cuda", place, stream, left,',
        '"cuda", place, left,',
    ),
    "prepared: on a device, planes of the first tile": (
        "engines/cuda_sides.py",
        "            (lines.start, lines.stop),\n",
        "",
    ),
    "prepared: on a device, nothing dropped for want of memory": (
        "engines/cuda_shortage.py",
        "dropped = drop_prepared(device.place())",
        "dropped = 0",
    ),
    "slices: one bit less always": (
        "engines/cpu_slices.py",
        "mu -= mantissa > float(slicing.largest_mantissa)",
        "mu -= 1",
    ),
    "slices: digits that do not fit": (
        "engines/cpu_slices.py",
        "high = rest >= base / 2",
        "high = rest > base / 2",
    ),
    "slices: the partner of another slice": (
        "engines/cpu_slices.py",
        "partner = i + weight + 1 - s",
        "partner = i + weight + 2 - s - (s > 1)",
    ),
    "slices: runs not added up": (
        "engines/cpu_slices.py",
        "if first and not number:",
        "if first:",
    ),
    "slices: other slices of a prepared operand": (
        "engines/cpu_slices.py",
        "key = slicing.num_slices, slicing.bits_per_slice",
        "key = slicing.bits_per_slice",
    ),
    "slices: float64 from the largest weight down": (
        "engines/cpu_slices.py",
        "for part, w in zip(parts, weights, strict=True):\n                    total",
        "for part, w in zip(parts[::-1], weights[::-1], strict=True):\n"
        "                    total",
    ),
    "slices: pairs of the other side": (
        "routes/scipy_blas.py",
        'routine.multiply if side == "L" else routine.multiply_turned',
        "routine.multiply",
    ),
    "slices: one product of dsyr2k": (
        "routes/scipy_blas.py",
        "if routine.mirrors:",
        "if True:",
    ),
    "slices: bound without the pairs left out": (
        "numerics/slice_bounds.py",
        "bound += pairs_bound(a, b, mu, nu, slicing)",
        "pass",
    ),
    "cuda slices: the last bit of the largest entry": (
        "_kernels/slices.cuh",
        "((f << zeros) > most)",
        "((f << zeros) >= most)",
    ),
    "cuda slices: ties up": (
        "_kernels/slices.cuh",
        "tie_up = (uint32)lost | ((uint32)value & 1)",
        "tie_up = true",
    ),
    "cuda slices: no carry of a negative number": (
        "_kernels/slices.cuh",
        "(above ^ flip) + (negative && !value)",
        "(above ^ flip)",
    ),
    "cuda slices: no carry of the offsets": (
        "_kernels/slices.cuh",
        " + (result.low < low);",
        ";",
    ),
    "cuda slices: digits across two words": (
        "_kernels/slices.cuh",
        "(uint32)(low | high)",
        "(uint32)low",
    ),
    "cuda slices: subnormal numbers are 0 in every line": (
        "_kernels/slices.cuh",
        "exponent <= 1086 - 66",
        "true",
    ),
    "cuda slices: upper words of the largest entries": (
        "_kernels/slice_exponents.cu",
        "&largest, &special);\n  }\n",
        "&largest, &special);\n    largest = largest >> 32 << 32;\n  }\n",
    ),
    "cuda slices: the last digits only": (
        "_kernels/slices.cu",
        "if (first + i < NUM_SLICES)",
        "if (first + 4 <= NUM_SLICES)",
    ),
    "cuda slices: one read forgets what is not finite": (
        "_kernels/slices.cu",
        "facts.special[fact] = (int)special;",
        "facts.special[fact] = 0;",
    ),
    "cuda slices: a sum without its sign": (
        "_kernels/recombine.cuh",
        ": (int)(low >> 32);",
        ": (int64)(uint32)(low >> 32);",
    ),
    "cuda slices: long sums without their top": (
        "_kernels/recombine.cuh",
        "column[i] += high;",
        "column[i] += 0;",
    ),
    "cuda slices: sums of one weight added one by one": (
        "_kernels/recombine.cu",
        "if (l + 1 < NUM_SUMS && sum_shift(l + 1) == sum_shift(l)) continue;",
        "",
    ),
    "cuda slices: weights counted from 0": (
        "_kernels/slice_tables.py",
        "#define LEAST_SHIFT {b * least}",
        "#define LEAST_SHIFT {0 * least}",
    ),
    "cuda slices: one word too few": (
        "_kernels/slice_tables.py",
        "(bound.bit_length() + 1 + 31) // 32",
        "bound.bit_length() // 32",
    ),
    "cuda slices: sums that int32 does not hold": (
        "engines/cuda_slices.py",
        "limit // (k <<",
        "2 * limit // (k <<",
    ),
    "cuda slices: a run does not add to the one before": (
        "engines/cuda_slices.py",
        "accumulate=add or number > 0",
        "accumulate=add",
    ),
    "cuda slices: a block of k does not add to the one before": (
        "engines/cuda_slices.py",
        "accumulate=add or number > 0",
        "accumulate=number > 0",
    ),
    "cuda slices: B's slices in A's order": (
        "engines/cuda_slices.py",
        "((count - 1) * k, -k)",
        "(0, k)",
    ),
    "cuda slices: pairs of C^T are those of C": (
        "engines/cuda_slices.py",
        "slicing, keepers = slicing.turned(), keepers[::-1]",
        "keepers = keepers[::-1]",
    ),
    "cuda slices: prepared in the other order": (
        "engines/cuda_slices.py",
        "            self._left,\n            (lines.start",
        "            (lines.start",
    ),
    "cuda slices: planes of the last tile kept": (
        "engines/cuda_slices.py",
        "self._lines, self._planes = lines, None",
        "self._lines = lines",
    ),
    "choice: a child keeps the parent's engine": (
        "engines/choice.py",
        "    cuda_engine.cache_clear()\n",
        "",
    ),
    "complex: imaginary parts of A with one sign": (
        "engines/complex_operand.py",
        "    _put_negative(x.imag, minus)\n",
        "    minus[...] = x.imag\n",
    ),
    "complex: signs by np.negative": (
        "engines/complex_operand.py",
        "    out[...] = x\n",
        "    np.negative(x, out=out)\n    return\n",
    ),
    "complex: slices that mirror as real ones do": (
        "config.py",
        "return slicing.is_exact if is_complex else slicing.symmetric",
        "return slicing.symmetric",
    ),
    "cuda shortcuts: kept values of any operand": (
        "engines/cuda.py",
        "find_all([(keepers[i], name) for i, name in recording.wanted])",
        "find_all([(keepers[0], name) for i, name in recording.wanted])",
    ),
    "cuda shortcuts: kept values where they were recorded": (
        "engines/cuda_replay.py",
        "pointers = map(device.pointer, _arrays(kept))",
        "pointers = self._kept = getattr(self, '_kept', None) or "
        "[device.pointer(x) for x in _arrays(kept)]",
    ),
    "cuda shortcuts: what was made is recorded": (
        "engines/cuda_replay.py",
        "self.is_complete, self.has_made = False, True",
        "pass",
    ),
    "cuda shortcuts: a shortcut to kept values": (
        "engines/cuda.py",
        "recording if certified is None and not kept else None",
        "recording if certified is None else None",
    ),
    "arithmetic: engines round as they find it": (
        "gemm.py",
        "    with hooks.arithmetic():\n        served",
        "    if True:\n        served",
    ),
    "arithmetic: bounds round as they find it": (
        "gemm.py",
        "    with hooks.arithmetic():\n        bound",
        "    if True:\n        bound",
    ),
    "arithmetic: operands lose subnormal numbers": (
        "routes/decision.py",
        "with hooks.arithmetic():",
        "if True:",
    ),
    "einsum: any casting will do": (
        "routes/einsum.py",
        "if not all(np.can_cast(",
        "if False and not all(np.can_cast(",
    ),
    "complex: rows of a pair with maxima of their own": (
        "engines/cpu_stages.py",
        "rows = np.tile(np.maximum(rows[:, :m], rows[:, m:]), 2)",
        "rows = rows[:, : 2 * m]",
    ),
    "complex: parts of an inner index rebalanced apart": (
        "engines/cpu_rebalance.py",
        'if family == "complex":',
        'if family == "none":',
    ),
    "complex: legacy modulo the real P": (
        "engines/residue_system.py",
        "moduli, shift = moduli_of(num_moduli, family), 0",
        "moduli, shift = moduli_of(num_moduli), 0",
    ),
    "complex: wraps at the real P": (
        "engines/cpu_reconstruct.py",
        "kind = system.num_moduli, system.family",
        'kind = system.num_moduli, "real"',
    ),
    "complex: begins with 15 moduli": (
        "precision/schemes.py",
        'return COMPLEX_AUTO_MODULI if family == "complex" else AUTO_MODULI',
        "return AUTO_MODULI",
    ),
    "complex: climbs the real table": (
        "precision/schemes.py",
        "return Scheme(more, scheme.scaling, scheme.shift + lent, family)",
        "return Scheme(more, scheme.scaling, scheme.shift + lent)",
    ),
    "complex: lends bits by the real table": (
        "precision/schemes.py",
        "(Scheme(f[0], scaling, f[1], family), f[2]) if f else other",
        "(Scheme(f[0], scaling, f[1]), f[2]) if f else other",
    ),
    "complex: more moduli than there are": (
        "precision/schemes.py",
        "    if num_moduli > most:\n",
        "    if num_moduli > most + 40:\n",
    ),
    "complex: a failed check names embedded rows": (
        "complex_products.py",
        "wrong = tuple(sorted({i % m for i in error.rows}))",
        "wrong = error.rows",
    ),
    "complex: a failed check counts from its chunk": (
        "complex_products.py",
        "CheckError(error.matrix + start,",
        "CheckError(error.matrix,",
    ),
    "complex: whole operands kept of chunks": (
        "complex_products.py",
        "(len(parts) > 1 and x is None)",
        "(len(parts) > 1000 and x is None)",
    ),
    "complex: flops of real products": (
        "stats.py",
        'each = 8 if self.dtype.startswith("complex") else 2',
        "each = 2",
    ),
    "complex: a bound of one part for both": (
        "engines/complex_operand.py",
        "    out.imag[...] = parts[:, m:]\n",
        "    out.imag[...] = parts[:, :m]\n",
    ),
    "cuda complex: the first modulus is 256": (
        "_kernels/residues.cuh",
        "FIRST_IS_256 && l == 0",
        "l == 0",
    ),
    "cuda complex: half of P rounded down": (
        "_kernels/render.py",
        "words((product + 1) // 2, value_words)",
        "words(product // 2, value_words)",
    ),
    "cuda complex: columns in pairs": (
        "engines/cuda_accurate.py",
        "pairs = maxima[turned]",
        "pairs = maxima[0]",
    ),
    "cuda complex: tiles on Hopper by the real table": (
        "engines/cuda_tiles.py",
        "    return 0 if moduli[0] == MODULI[0] else len(MODULI)\n",
        "    return 0\n",
    ),
    "cuda complex: exponents for the real M": (
        "engines/cuda_stages.py",
        "limit_words(scheme.num_moduli, scheme.family)",
        "limit_words(scheme.num_moduli)",
    ),
    "complex pairs: conjugates with the planes of operands": (
        "_kernels/lines_in_clusters.cu",
        "{side.x.conjugated ? stride : 0, side.x.conjugated ? 0 : stride}",
        "{0, stride}",
    ),
    "complex pairs: conjugates outside clusters": (
        "_kernels/lines.cuh",
        "(uint64)(word & conjugated) << 63",
        "(uint64)0",
    ),
    "complex pairs: conjugates of C^T": (
        "engines/cuda_sides.py",
        "            conjugated=self.conjugated[::-1],\n",
        "            conjugated=self.conjugated,\n",
    ),
    "complex pairs: recordings serve conjugates": (
        "engines/cuda.py",
        "            conjugated,\n            kept,",
        "            kept,",
    ),
    "complex pairs: what is kept of an operand serves its conjugate": (
        "engines/cuda_sides.py",
        "            self._conjugated,\n            gained(",
        "            gained(",
    ),
    "complex pairs: a certificate for k products": (
        "engines/cuda_certificate.py",
        "k = left.words[2]",
        "k = left.x.shape[2]",
    ),
    "complex pairs: a certificate of real parts only": (
        "engines/cuda.py",
        "for i in range(parts)]",
        "for i in range(1)]",
    ),
    "complex pairs: parts of the certificate's rows in one order": (
        "_kernels/cut_planes.cuh",
        "    target[step] = part[1];\n    target[step + half] = part[0];\n",
        "    target[step] = part[0];\n    target[step + half] = part[1];\n",
    ),
    "complex pairs: parts of the certificate's rows in one order in clusters": (
        "_kernels/lines_in_clusters.cu",
        "again + !part * half",
        "again + part * half",
    ),
    "complex pairs: blocks of k as long as real ones": (
        "tiling.py",
        "deep = min(k, exact_k or INT8_K_BLOCK // parts)",
        "deep = min(k, exact_k or INT8_K_BLOCK)",
    ),
    "complex pairs: warps told by halves of a line": (
        "_kernels/facts_in_clusters.cuh",
        "    found = join(found, slots.words[turn][slot + WARP][word]);\n",
        "    found = join(found, 0);\n",
    ),
    "complex pairs: norms of a line below 2^32": (
        "_kernels/facts_in_clusters.cuh",
        "norms = sum_of_warp(told<blocks>",
        "norms = sum_of_warp((uint32)told<blocks>",
    ),
    "complex pairs: every other entry of lines copied along k": (
        "_kernels/shared_lines.cuh",
        "other ? source + half : x.data",
        "other ? source : x.data",
    ),
    "complex pairs: the weights of real parts": (
        "_kernels/limbs.cuh",
        "if (PARTS > 1) other.row += part",
        "if (PARTS > 2) other.row += part",
    ),
    "complex pairs: the digits of real parts": (
        "_kernels/reconstruct.cuh",
        "int at = part * RESIDUES + i;",
        "int at = i;",
    ),
    "complex pairs: an odd P has a half": (
        "_kernels/limbs.cuh",
        "bool beyond = FIRST_IS_256 && !negative;",
        "bool beyond = !negative;",
    ),
    "complex pairs: sums of x only among floats": (
        "_kernels/render.py",
        "below += 255 * 8 * max(map(abs, powers(root_of_minus_one(p)))) + p",
        "below += p",
    ),
    "complex pairs: wide integers keep their offset": (
        "_kernels/residues.cuh",
        "dot4(low, wide_rotated_low[row], wide_rotated_start[row])",
        "dot4(low, wide_rotated_low[row], 0)",
    ),
    "complex pairs: imaginary infinities of one sign": (
        "_kernels/results.cuh",
        "if (PARTS == 2 && !part) x ^=",
        "if (PARTS == 3 && !part) x ^=",
    ),
    "complex pairs: infinities of the real part in both": (
        "_kernels/results.cuh",
        "a.at(batch_a, row, h ^ part)",
        "a.at(batch_a, row, h)",
    ),
    "dask: registered twice": (
        "dask/chunks.py",
        "if not is_valid_chunk_type(OzArray):",
        "if True:",
    ),
    "dask: no percentiles": (
        "dask/chunks.py",
        "        percentile_lookup: percentile_lookup.dispatch(np.ndarray),\n",
        "",
    ),
    "dask: counts are ndarrays": (
        "dask/chunks.py",
        "OzArray(count) if",
        "count if",
    ),
    "dask: repeated bytes count": (
        "dask/chunks.py",
        "if stride or not n)",
        "if True)",
    ),
    "dask: nothing takes room": (
        "dask/chunks.py",
        "if stride or not n)",
        "if stride)",
    ),
    "dask: unwrapped chunks are views": (
        "dask/chunks.py",
        "np.array(x, **kwargs)",
        "np.asarray(x, **kwargs)",
    ),
    "dask: token of the memory": (
        "dask/chunks.py",
        "np.ascontiguousarray(x)",
        "np.asarray(x)",
    ),
    "dask: token of an ndarray": (
        "dask/chunks.py",
        'return "OzArray", normalize_token(np.ascontiguousarray(x)), x.shape',
        "return normalize_token(np.ascontiguousarray(x))",
    ),
    "dask: scope of the worker's own thread": (
        "dask/plugin.py",
        '"local": False',
        '"local": True',
    ),
    "dask: a port is a number of a worker": (
        "dask/plugin.py",
        ' and ":" not in str(name)',
        "",
    ),
    "dask: the process's pool gets a device": (
        "dask/plugin.py",
        'if key != "offload"',
        "if True",
    ),
    "dask: distributed's own threads get no device": (
        "dask/plugin.py",
        "threads = (TaskThreads, ThreadPoolExecutor)",
        "threads = (ThreadPoolExecutor,)",
    ),
    "dask: the device stays": (
        "dask/plugin.py",
        "del executor.submit",
        "pass",
    ),
    "dask: a setup that fails leaves its scope": (
        "dask/plugin.py",
        "stack.enter_context(enabled(**self._options))",
        "enabled(**self._options).__enter__()",
    ),
    "dask: clients send what not all workers read": (
        "dask/plugin.py",
        "if not _here:",
        "if False:",
    ),
    "dask: a worker that left still counts": (
        "dask/plugin.py",
        "            stack.callback(_here.discard, id(worker))\n",
        "",
    ),
    "array: the device's copy survives a write on the host": (
        "array/storage.py",
        '            if self.shared != "device":\n                self.drop_device()\n',
        "",
    ),
    "array: the host's copy survives a write on the device": (
        "array/storage.py",
        "    self._host_current = False\n                    self._made",
        "    self._made",
    ),
    "array: prepared operands outlive a write": (
        "array/storage.py",
        "            self._close(each)\n",
        "            pass\n",
    ),
    "array: a copy of shared device memory is taken for current": (
        "array/storage.py",
        "self._host_current = self.shared is None",
        "self._host_current = True",
    ),
    "array: writes on the device beside a lent ndarray": (
        "array/storage.py",
        "not self.is_lent and not self._writing",
        "not self._writing",
    ),
    "array: prepared operands of memory that others write": (
        "array/storage.py",
        "            or self.shared\n",
        "",
    ),
    "array: arguments of functions are writeable": (
        "array/adopt.py",
        "                view.flags.writeable = False\n",
        "",
    ),
    "array: overlapping operands on a device": (
        "array/elementwise.py",
        "np.may_share_memory(view, x) and not _same(view, x)",
        "False",
    ),
    "array: overlapping assignment on a device": (
        "array/indexing.py",
        "        if np.may_share_memory(given, target):\n            return False\n",
        "",
    ),
    "array: indices wrap on a device": (
        "array/indexing.py",
        "if index.size and not -length <= index.min() <= index.max() < length:",
        "if False:",
    ),
    "array: errstate unheard on a device": (
        "array/elementwise.py",
        "_QUIET.issuperset(np.geterr().values())",
        "True",
    ),
    "array: results on a device lie in C order": (
        "array/elementwise.py",
        "x.shape == shape and x.flags.c_contiguous",
        "x.shape == shape",
    ),
    "array: numpy.asarray gives the memory itself": (
        "array/oz_array.py",
        "return storage.lend_current(self._view)",
        "return self._read()",
    ),
    "array: views take indices for memory": (
        "array/functions.py",
        "*mapped(args[arrays:], current)",
        "*mapped(args[arrays:], twin)",
    ),
    "array: entries of object arrays are ours": (
        "array/adopt.py",
        " or self._has_objects()",
        "",
    ),
    "array: what is pickled out of band can be written": (
        "array/oz_array.py",
        "(self._storage.lend(self._read()),)",
        "(self._read(),)",
    ),
    "array: views begin where the memory does": (
        "array/storage.py",
        "        return address(view) - address(host)\n",
        "        return 0\n",
    ),
    "array: shared memory with gaps or backwards begins where it is lowest": (
        "array/storage.py",
        "view.flags.forc and host.flags.forc",
        "view.flags.forc",
    ),
    "array: strict mode lets functions fetch": (
        "array/core.py",
        'check_conversion(f"numpy.{name}", "OzArray on a device")',
        "pass",
    ),
}


def tests_of(name: str) -> tuple[str, ...]:
    """Return the tests that should notice a fault, the likeliest first."""
    if name.startswith("dask"):
        return (*QUICK, "tests/dask")
    if name.startswith("complex: "):
        return COMPLEX_TESTS
    if name.startswith("complex pairs: "):
        return QUICK + COMPLEX_PAIRS_TESTS
    if name.startswith(("routes: ", "einsum: ", "blas: ")):
        return ROUTES_TESTS
    if name.startswith("slices"):
        return QUICK + SLICES_TESTS
    if name.startswith("arithmetic"):
        return ("tests/engines/test_environment.py",)
    if name.startswith("array: "):
        return ARRAY_TESTS
    if name.startswith("prepared: "):
        on_device = ("-k", "device or stream") if " on a device" in name else ()
        return PREPARED_TESTS + on_device
    if "checksum: " in name:
        return CHECKSUM_TESTS
    if not name.startswith("cuda "):
        return TESTS
    if name.startswith("cuda complex"):
        return QUICK + CUDA_COMPLEX_TESTS
    if name.startswith("cuda slices"):
        return QUICK + CUDA_SLICES_TESTS
    if name.startswith("cuda shortcuts"):
        return QUICK + CUDA_SHORTCUTS_TESTS
    if name.startswith("cuda hopper"):
        return QUICK + CUDA_HOPPER_TESTS
    if name.startswith("cuda residue tiles"):
        return QUICK + CUDA_TILES_TESTS
    if name.startswith("cuda single"):
        return QUICK + CUDA_SINGLE_TESTS
    if name.startswith("cuda checksum"):
        return QUICK + CUDA_CHECKSUM_TESTS
    if name.startswith(("cuda clusters", "cuda winograd")):
        return QUICK + CUDA_LINES_TESTS
    if Path(FAULTS[name][0]).name in ARITHMETIC:
        return QUICK + ARITHMETIC_TESTS + CUDA_TESTS
    return QUICK + CUDA_TESTS


def caught_by(name: str, folder: Path) -> str | None:
    """Return the first failing test with the fault planted, or None."""
    file, right, wrong = FAULTS[name]
    path = folder / "np_ozaki" / file
    text = path.read_text(encoding="utf-8")
    if right not in text:
        raise SystemExit(f"{name}: {file} no longer holds {right!r}")
    path.write_text(text.replace(right, wrong), encoding="utf-8")
    try:
        result = subprocess.run(
            [*PYTEST, *tests_of(name)],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(folder),
                "HYPOTHESIS_PROFILE": "no-shrinking",
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        path.write_text(text, encoding="utf-8")
    if not result.returncode:
        return None
    failed = [x for x in result.stdout.splitlines() if x.startswith(("FAILED", "ERR"))]
    return failed[0] if failed else f"exit status {result.returncode}"


def main() -> int:
    """Plant every fault whose name holds the argument; return the exit status."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    survivors = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "copy"
        ignored = shutil.ignore_patterns(".git", "__pycache__", ".hypothesis")
        shutil.copytree(ROOT, folder, ignore=ignored)
        # An installed np_ozaki has the kernels inside.
        (folder / "np_ozaki" / "_kernels").symlink_to(Path("..") / "kernels")
        for name in (fault for fault in FAULTS if wanted in fault):
            test = caught_by(name, folder)
            survivors += test is None
            print(f"{name}: {test or 'SURVIVED'}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
