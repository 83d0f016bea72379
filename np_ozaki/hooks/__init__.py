"""The one place where C functions of NumPy and SciPy are caught.

`a @ b` on plain arrays goes through C to the matmul ufunc, past every Python name, and
so do `numpy.dot` and SciPy's BLAS in their own ways.  The extension `np_ozaki._hooks`
(its sources lie in this folder) replaces C function pointers, once; a gate in C decides
before any Python runs whether a product is worth asking about.  Entering and leaving a
scope only moves the gate (`set_gate`).  No attribute and no dict of NumPy, SciPy or
Python is touched: identity, signature and pickle of the functions stay as they are.

====================  ==========================================================
`table`               name, kind and place of every hook; `NAMES`
`probes`              the self-test each hook passes after it is installed
`installation`        `install`, `status`, `set_gate`
`extension`           loading the extension; `unrouted`, `arithmetic`
`memory`              arrays over the memory that handlers are called with
====================  ==========================================================

Nothing is installed by importing this package.  A hook that cannot work says why in
its `HookStatus`, and every function here stays callable without the extension.

Notes
-----
**Handlers.**  Called with the GIL held; products that a handler makes in its own thread
are native; an exception becomes the exception of the call.  What they are called with
and what they answer depends on the kind of hook:

"loop" (matmul, vecdot, matvec, vecmat)
    ``handler(a_pointer, a_strides, b_pointer, b_strides, out_pointer, out_strides,
    outer, m, k, n, dtype)``: addresses, byte strides and sizes of ``a`` (outer, m, k),
    ``b`` (outer, k, n), ``out`` (outer, m, n), and NumPy's character for the dtype of
    all three, aligned, in native byte order; any size and any stride can be 0, strides
    can be negative.  vecdot and vecmat want conj(a) if it is complex.  NumPy splits
    some batches into several calls.  ``out`` is uninitialised memory that overlaps
    neither operand.  None declines: the native loop runs.  An int is the answer when
    ``out`` is written: RAISE_* bits for NumPy's ``errstate``, 0 for none.
"builtin" (dot, ndarray.dot, inner, einsum)
    ``handler(arguments, keywords)``: the positional arguments as a tuple, those of a
    method with the object first, and a dict or None.  NotImplemented declines; anything
    else is the result.
"BLAS" (dgemm, dgemv, dsymm, dsyrk, dsyr2k, dtrmm, dtrsm; zgemm and so on, with
zhemm, zherk, zher2k)
    ``handler(*arguments)`` in the order of the Fortran routine: upper-case letters,
    ints, floats or complex scalars, and addresses for arrays (`array_from_fortran`).
    None declines, True says that the output is written.

**Threads and forks.**  The gate and the handlers belong to the process, `unrouted` to
the thread.  A forked child inherits all of it in the state of the forking thread;
whether its engine still works is the handlers' business.

**Imports of SciPy.**  Its BLAS module may be imported after the first scope was
entered, also inside one.  Until then CPython's ``_imp.exec_dynamic`` is hooked like a
builtin function, so that the module is seen in the moment it exists; then that pointer
goes back.  The alternatives were worse: importing scipy.linalg in every program that
enters a scope costs 0.2 to 0.5 s, a finder in ``sys.meta_path`` or another
``__import__`` is visible to every program that looks, and an audit hook can never be
removed.

**Legacy subinterpreters** (NumPy before 2.4) share NumPy's functions with the main one.
Their products stay native, but under Python 3.11 a small product there waits for ever
while a scope is open in the main interpreter: `PyGILState_Ensure` knows only one
interpreter a thread.
"""

from np_ozaki.hooks.extension import arithmetic, unrouted
from np_ozaki.hooks.installation import HookStatus, install, set_gate, status
from np_ozaki.hooks.memory import array_from_fortran, array_from_loop
from np_ozaki.hooks.table import DTYPES, NAMES

__all__ = [
    "DTYPES",
    "NAMES",
    "RAISE_INVALID",
    "RAISE_OVERFLOW",
    "RAISE_UNDERFLOW",
    "HookStatus",
    "arithmetic",
    "array_from_fortran",
    "array_from_loop",
    "install",
    "set_gate",
    "status",
    "unrouted",
]

RAISE_OVERFLOW = 1
RAISE_INVALID = 2
RAISE_UNDERFLOW = 4
"""Bits of a loop handler's answer: the floating-point flags that NumPy shall find."""
