/* The inner loops of NumPy's matrix product ufuncs, one for each dtype.
 *
 * `a @ b` on plain arrays goes through C to the matmul ufunc, so no Python name can
 * be replaced to catch it.  PyUFunc_ReplaceLoopBySignature swaps the loop of one type
 * signature instead.  The loops installed here ask, cheapest first: is a scope open,
 * may this thread be routed, is the product large enough?  Only then they take the GIL
 * and call the Python handler.
 *
 *     handler(a_pointer, a_strides, b_pointer, b_strides, out_pointer, out_strides,
 *             outer, m, k, n, dtype) -> None | int
 *
 * Strides are bytes: (outer, m, k), (outer, k, n), (outer, m, n); all four ufuncs are
 * told in these terms.  The dtype is NumPy's character.  None declines and the native loop runs; an int says that `out`
 * is written and which floating-point flags NumPy shall find (RAISE_* below).
 */
#include "hooks.h"

#include <fenv.h>

/* ---- NumPy's side ---- */

/* args: a, b, out.  dimensions: outer, then the core dimensions in order of their
 * first appearance in the signature.  steps, in bytes: the outer steps of a, b, out,
 * then the core steps of a, b, out. */
typedef void (*inner_loop)(char **args, const Py_ssize_t *dimensions,
                           const Py_ssize_t *steps, void *data);

typedef int (*replace_loop_by_signature)(PyObject *ufunc, inner_loop replacement,
                                         const int *signature,
                                         inner_loop *replaced);

/* Places in the table behind the `_UFUNC_API` capsule; part of NumPy's C ABI. */
enum { API_UFUNC_TYPE = 0, API_REPLACE_LOOP = 30 };

/* The capsule's table, or NULL with an exception set. */
static void **
ufunc_api(void)
{
    PyObject *module = PyImport_ImportModule("numpy._core._multiarray_umath");
    if (module == NULL) {
        return NULL;
    }
    PyObject *capsule = PyObject_GetAttrString(module, "_UFUNC_API");
    Py_DECREF(module);
    if (capsule == NULL) {
        return NULL;
    }
    /* The table is static memory of NumPy, so it outlives the capsule. */
    void **api = (void **)PyCapsule_GetPointer(capsule, NULL);
    Py_DECREF(capsule);
    return api;
}

/* ---- The tables ---- */

typedef struct {
    const char *character; /* NumPy's */
    int number;            /* NumPy's */
    int flops;             /* REAL_FLOPS or COMPLEX_FLOPS */
} dtype;

enum { FLOAT64, COMPLEX128, FLOAT32, COMPLEX64, NUM_DTYPES };

static const dtype dtypes[NUM_DTYPES] = {
    [FLOAT64] = {"d", NPY_FLOAT64, REAL_FLOPS},
    [COMPLEX128] = {"D", NPY_COMPLEX128, COMPLEX_FLOPS},
    [FLOAT32] = {"f", NPY_FLOAT32, REAL_FLOPS},
    [COMPLEX64] = {"F", NPY_COMPLEX64, COMPLEX_FLOPS},
};

/* Where a ufunc's dimensions and steps hold those of a matrix product; 0 where it has
 * none: that size is 1 and that stride 0. */
typedef struct {
    unsigned char m, k, n;
    unsigned char a_m, a_k, b_k, b_n, out_m, out_n;
} places;

typedef struct {
    hook base;
    places at;
    inner_loop routed[NUM_DTYPES];
    any_function volatile native[NUM_DTYPES];
} loop;

static int publish(hook *self, PyObject *ufunc);
static int withdraw(hook *self);

/* NumPy hands a loop no word of which ufunc and dtype it serves: each has its own. */
#define DECLARED(ufunc, dtype)                                                     \
    static void routed_##ufunc##_##dtype(char **, const Py_ssize_t *,              \
                                         const Py_ssize_t *, void *);
#define OF_EVERY_DTYPE(each, ufunc)                                                \
    each(ufunc, FLOAT64) each(ufunc, COMPLEX128) each(ufunc, FLOAT32)              \
        each(ufunc, COMPLEX64)

OF_EVERY_DTYPE(DECLARED, MATMUL)
OF_EVERY_DTYPE(DECLARED, VECDOT)
OF_EVERY_DTYPE(DECLARED, MATVEC)
OF_EVERY_DTYPE(DECLARED, VECMAT)

#define ENTRY(ufunc, dtype) [dtype] = routed_##ufunc##_##dtype,
#define LOOP(name, ufunc, ...)                                                     \
    [ufunc] = {{name, publish, withdraw, NULL, NULL, NULL},                        \
               {__VA_ARGS__},                                                      \
               {OF_EVERY_DTYPE(ENTRY, ufunc)},                                     \
               {NULL}}

enum { MATMUL, VECDOT, MATVEC, VECMAT, NUM_LOOPS };

static loop loops[NUM_LOOPS] = {
    /* (m,k),(k,n)->(m,n) */
    LOOP("matmul", MATMUL, .m = 1, .k = 2, .n = 3, .a_m = 3, .a_k = 4, .b_k = 5,
         .b_n = 6, .out_m = 7, .out_n = 8),
    /* (k),(k)->() */
    LOOP("vecdot", VECDOT, .k = 1, .a_k = 3, .b_k = 4),
    /* (m,k),(k)->(m) */
    LOOP("matvec", MATVEC, .m = 1, .k = 2, .a_m = 3, .a_k = 4, .b_k = 5, .out_m = 6),
    /* (k),(k,n)->(n) */
    LOOP("vecmat", VECMAT, .k = 1, .n = 2, .a_k = 3, .b_k = 4, .b_n = 5, .out_n = 6),
};

hook *
loop_hook(int index)
{
    return index < NUM_LOOPS ? &loops[index].base : NULL;
}

static Py_ssize_t
size_at(const Py_ssize_t *dimensions, unsigned char place)
{
    return place == 0 ? 1 : dimensions[place];
}

static Py_ssize_t
stride_at(const Py_ssize_t *steps, unsigned char place)
{
    return place == 0 ? 0 : steps[place];
}

/* ---- The handler ---- */

enum { RAISE_OVERFLOW = 1, RAISE_INVALID = 2, RAISE_UNDERFLOW = 4 };
enum { RAISE_ALL = RAISE_OVERFLOW | RAISE_INVALID | RAISE_UNDERFLOW };

enum { DECLINED = -1, FAILED = -2 }; /* else the flags to raise */

static int
flags_from(PyObject *answer, const char *name)
{
    if (answer == Py_None) {
        return DECLINED;
    }
    /* A bool is an int, but `return True` for "done" would raise an overflow. */
    if (!PyLong_Check(answer) || PyBool_Check(answer)) {
        PyErr_Format(PyExc_TypeError,
                     "the %s handler returned %R: it must return None "
                     "(declined) or an int (floating-point flags)",
                     name, answer);
        return FAILED;
    }
    int overflow;
    long flags = PyLong_AsLongAndOverflow(answer, &overflow);
    if (overflow != 0 || flags < 0 || flags > RAISE_ALL) {
        PyErr_Format(PyExc_ValueError,
                     "the %s handler returned %R: floating-point flags lie "
                     "in 0..%d",
                     name, answer, (int)RAISE_ALL);
        return FAILED;
    }
    return (int)flags;
}

static PyObject *
loop_arguments(const places *at, int of, char **args, const Py_ssize_t *dimensions,
               const Py_ssize_t *steps)
{
    return Py_BuildValue(
        "(N(nnn)N(nnn)N(nnn)nnnns)",
        PyLong_FromVoidPtr(args[0]), steps[0], stride_at(steps, at->a_m),
        stride_at(steps, at->a_k),
        PyLong_FromVoidPtr(args[1]), steps[1], stride_at(steps, at->b_k),
        stride_at(steps, at->b_n),
        PyLong_FromVoidPtr(args[2]), steps[2], stride_at(steps, at->out_m),
        stride_at(steps, at->out_n),
        dimensions[0], size_at(dimensions, at->m), size_at(dimensions, at->k),
        size_at(dimensions, at->n), dtypes[of].character);
}

/* Call with the GIL held and no error set. */
static int
ask_handler(loop *self, int of, char **args, const Py_ssize_t *dimensions,
            const Py_ssize_t *steps)
{
    PyObject *handler = handler_to_ask(&self->base);
    if (handler == NULL) {
        return PyErr_Occurred() ? FAILED : DECLINED;
    }
    PyObject *answer = answer_of(
        handler, loop_arguments(&self->at, of, args, dimensions, steps), NULL);
    if (answer == NULL) {
        return FAILED;
    }
    int outcome = flags_from(answer, self->base.name);
    Py_DECREF(answer);
    return outcome;
}

static int
fenv_flags(int flags)
{
    return ((flags & RAISE_OVERFLOW) ? FE_OVERFLOW : 0)
           | ((flags & RAISE_INVALID) ? FE_INVALID : 0)
           | ((flags & RAISE_UNDERFLOW) ? FE_UNDERFLOW : 0);
}

/* Whether the product is settled: done, or failed with an exception set. */
static int
settled_by_handler(loop *self, int of, char **args, const Py_ssize_t *dimensions,
                   const Py_ssize_t *steps)
{
    /* NumPy clears the flags before the first loop call of a ufunc call, so these
     * come from earlier matrices of the same batch and are to be kept. */
    int earlier = fetestexcept(FE_OVERFLOW | FE_INVALID | FE_UNDERFLOW
                               | FE_DIVBYZERO);
    PyGILState_STATE gil = PyGILState_Ensure();
    if (PyErr_Occurred()) {
        /* NumPy looks for errors after the last loop call only: an earlier matrix
         * failed, and Python must not be entered with its exception set. */
        PyGILState_Release(gil);
        return 1;
    }
    int outcome = ask_handler(self, of, args, dimensions, steps);
    PyGILState_Release(gil);

    feclearexcept(FE_ALL_EXCEPT); /* the engine's own roundings concern nobody */
    if (outcome == FAILED) {
        return 1; /* no flags: a warning would meet the exception that is set */
    }
    int raised = earlier | (outcome == DECLINED ? 0 : fenv_flags(outcome));
    if (raised != 0) {
        feraiseexcept(raised);
    }
    return outcome != DECLINED;
}

/* ---- The loops ---- */

static uint64_t
loop_flops(const places *at, int of, const Py_ssize_t *dimensions)
{
    return saturating_product(
        (uint64_t)dtypes[of].flops,
        flops_of(size_at(dimensions, at->m), size_at(dimensions, at->k),
                 size_at(dimensions, at->n)));
}

static void
run(loop *self, int of, char **args, const Py_ssize_t *dimensions,
    const Py_ssize_t *steps, void *data)
{
    if (GATE_IS_OPEN() && GATE_LETS_PASS(loop_flops(&self->at, of, dimensions))
        && settled_by_handler(self, of, args, dimensions, steps)) {
        return;
    }
    ((inner_loop)native_of(&self->native[of]))(args, dimensions, steps, data);
}

#define ROUTED(ufunc, dtype)                                                       \
    static void routed_##ufunc##_##dtype(char **args, const Py_ssize_t *dimensions, \
                                         const Py_ssize_t *steps, void *data)      \
    {                                                                              \
        run(&loops[ufunc], dtype, args, dimensions, steps, data);                  \
    }

OF_EVERY_DTYPE(ROUTED, MATMUL)
OF_EVERY_DTYPE(ROUTED, VECDOT)
OF_EVERY_DTYPE(ROUTED, MATVEC)
OF_EVERY_DTYPE(ROUTED, VECMAT)

/* ---- Installing ---- */

/* Put a loop into a ufunc and return the one that was there, or NULL with an
 * exception. */
static inner_loop
exchange(void **api, PyObject *ufunc, int of, inner_loop replacement)
{
    int number = dtypes[of].number;
    const int signature[3] = {number, number, number};
    replace_loop_by_signature replace =
        (replace_loop_by_signature)api[API_REPLACE_LOOP];
    inner_loop replaced = NULL;
    if (replace(ufunc, replacement, signature, &replaced) < 0) {
        PyErr_Format(PyExc_TypeError, "%R has no loop of dtype \"%s\"", ufunc,
                     dtypes[of].character);
        return NULL;
    }
    return replaced;
}

/* Put our loops into a ufunc, of the first `count` dtypes. */
static int
put_in(void **api, loop *self, PyObject *ufunc, int count)
{
    for (int of = 0; of < count; of++) {
        inner_loop replaced = exchange(api, ufunc, of, self->routed[of]);
        if (replaced == NULL) {
            while (of-- > 0) {
                exchange(api, ufunc, of, (inner_loop)self->native[of]);
            }
            return -1;
        }
        /* Whoever had stacked a loop on ours may have put ours back since. */
        if (replaced != self->routed[of]) {
            STORE_SMALL(&self->native[of], (any_function)replaced);
        }
    }
    return 0;
}

/* Nothing here releases the GIL between publishing a loop and storing the native
 * pointer.  NumPy fetches the pointer of a loop with the GIL held, so no thread can
 * run the routed loop before its native one is known. */
static int
publish(hook *base, PyObject *ufunc)
{
    void **api = ufunc_api();
    if (api == NULL) {
        return -1;
    }
    if (!PyObject_TypeCheck(ufunc, (PyTypeObject *)api[API_UFUNC_TYPE])) {
        PyErr_Format(PyExc_TypeError, "%s is hooked in a ufunc, not in %R",
                     base->name, ufunc);
        return -1;
    }
    return put_in(api, (loop *)base, ufunc, NUM_DTYPES);
}

/* All loops or none: a hook is in its target or it is not. */
static int
withdraw(hook *base)
{
    loop *self = (loop *)base;
    void **api = ufunc_api();
    if (api == NULL) {
        return -1;
    }
    for (int of = 0; of < NUM_DTYPES; of++) {
        inner_loop found =
            exchange(api, base->target, of, (inner_loop)self->native[of]);
        if (found != self->routed[of]) {
            exchange(api, base->target, of, found);
            return put_in(api, self, base->target, of);
        }
    }
    return 1;
}
