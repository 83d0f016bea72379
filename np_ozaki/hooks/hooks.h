/* What the parts of np_ozaki._hooks share: the gate, and the life of one hook.
 *
 * Stable ABI, no NumPy headers.  Every static object is written with the GIL held.
 * CPython never unloads an extension module, so the addresses of the functions here
 * stay valid in threads that fetched them before an uninstall.
 */
#ifndef NP_OZAKI_HOOKS_H
#define NP_OZAKI_HOOKS_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* ---- Atomics and thread-local storage without <stdatomic.h> or <threads.h> ---- */

#if defined(_MSC_VER) && !defined(__clang__)

#include <intrin.h>
#define THREAD_LOCAL __declspec(thread)

/* Aligned volatile accesses up to a pointer's size do not tear. */
#define LOAD_SMALL(object) (*(object))
#define STORE_SMALL(object, value) (*(object) = (value))

static __inline uint64_t
load_wide(volatile uint64_t *object)
{
    return (uint64_t)_InterlockedCompareExchange64(
        (volatile __int64 *)object, 0, 0);
}

static __inline void
store_wide(volatile uint64_t *object, uint64_t value)
{
    /* The exchange intrinsic for 64 bits is missing on 32-bit x86. */
    __int64 expected = (__int64)load_wide(object);
    for (;;) {
        __int64 found = _InterlockedCompareExchange64(
            (volatile __int64 *)object, (__int64)value, expected);
        if (found == expected) {
            return;
        }
        expected = found;
    }
}

#else

#define THREAD_LOCAL _Thread_local
#define LOAD_SMALL(object) __atomic_load_n((object), __ATOMIC_ACQUIRE)
#define STORE_SMALL(object, value) \
    __atomic_store_n((object), (value), __ATOMIC_RELEASE)
#define load_wide(object) __atomic_load_n((object), __ATOMIC_ACQUIRE)
#define store_wide(object, value) \
    __atomic_store_n((object), (value), __ATOMIC_RELEASE)

#endif

/* ---- The gate ---- */

extern volatile int32_t gate_depth;
extern volatile uint64_t gate_min_flops;

/* Non-zero where this thread's products must stay native: inside a handler, and
 * between enter_unrouted and leave_unrouted. */
extern THREAD_LOCAL Py_ssize_t unrouted_count;

/* Cheapest first: all that is paid outside a scope is the load of the depth. */
#define GATE_IS_OPEN() (LOAD_SMALL(&gate_depth) > 0 && unrouted_count == 0)
#define GATE_LETS_PASS(flops) ((flops) >= load_wide(&gate_min_flops))

static inline uint64_t
saturating_product(uint64_t a, uint64_t b)
{
    return (b != 0 && a > UINT64_MAX / b) ? UINT64_MAX : a * b;
}

/* 2*m*k*n, of a real product; sizes are not negative. */
static inline uint64_t
flops_of(Py_ssize_t m_size, Py_ssize_t k_size, Py_ssize_t n_size)
{
    uint64_t m = (uint64_t)m_size, k = (uint64_t)k_size, n = (uint64_t)n_size;
    if (((m | k | n) >> 20) == 0) {
        return 2 * m * k * n; /* below 2^61: spares the divisions */
    }
    return saturating_product(saturating_product(2 * m, k), n);
}

/* ---- One hook ---- */

typedef void (*any_function)(void);

typedef struct hook hook;
struct hook {
    const char *name; /* as in np_ozaki.hooks */
    /* Put our function in the place of the target's and learn the native one: 0, or
     * -1 with an exception and nothing changed. */
    int (*publish)(hook *self, PyObject *target);
    /* 1: the native function is back.  0: somebody stacked a function on ours, which
     * stays; removing theirs would switch it off behind their back.  -1: exception. */
    int (*withdraw)(hook *self);
    PyObject *handler;            /* NULL: declines everything */
    PyObject *target;             /* NULL while not installed */
    any_function volatile native; /* never NULL again after the first publish; of a
                                   * ufunc, whose loops are several, always NULL */
};

/* The hook at a place of each part's table; NULL past its end. */
hook *loop_hook(int index);
hook *builtin_hook(int index);
hook *blas_hook(int index);
hook *import_hook(int index);

/* The handler, a new reference; NULL without an exception where it must not be asked.
 * Call with the GIL held and no error set. */
PyObject *handler_to_ask(hook *self);

/* The handler's answer; products of this thread are native meanwhile.  Steals both
 * references; `arguments` may be NULL with an exception set, which comes back. */
PyObject *answer_of(PyObject *handler, PyObject *arguments, PyObject *keywords);

/* What the target did before; waits for a publish() that is half done. */
any_function native_of(any_function volatile *native);

/* The method table entry of a builtin function or bound builtin method, for this name
 * only; NULL with an exception where CPython does not look as known. */
PyMethodDef *method_definition(PyObject *builtin, const char *name);

/* ---- Arithmetic ---- */

/* Between these this thread rounds to nearest, with subnormal numbers (environment.c);
 * they nest. */
void enter_arithmetic(void);
void leave_arithmetic(void);

/* The type of a context manager that calls them. */
PyObject *arithmetic_scope_type(void);

/* ---- Dtypes ---- */

/* NumPy's type numbers. */
enum {
    NPY_FLOAT32 = 11,
    NPY_FLOAT64 = 12,
    NPY_COMPLEX64 = 14,
    NPY_COMPLEX128 = 15,
    NPY_CLONGDOUBLE = 16
};

/* A complex product is four real ones. */
enum { REAL_FLOPS = 1, COMPLEX_FLOPS = 4 };

/* ---- Arrays ---- */

/* Module function: np_ozaki.hooks shows what ndarrays look like before builtins. */
PyObject *learn_arrays(PyObject *module, PyObject *probes);

int arrays_are_known(void);

/* The axis of the right operand that is summed; the left operand's is its last. */
enum summed_axis { LAST, LAST_BUT_ONE, UNKNOWN };

/* Whether two operands are worth a question: 0 for scalars, and for exact ndarrays of
 * another dtype or below the gate; 1 for all else, about which Python decides. */
int pair_passes(PyObject *left, PyObject *right, enum summed_axis summed);

#endif
