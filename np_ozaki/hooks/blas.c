/* SciPy's BLAS: the routines behind the f2py objects of scipy.linalg.blas.
 *
 * An f2py object checks and copies its arguments and then calls the Fortran routine
 * whose address lies in its only FortranDataDef.  That address is replaced, once, so
 * f2py's contract stays f2py's, and whoever holds the object is caught: the attribute,
 * earlier imports, get_blas_funcs.
 *
 *     handler(*arguments) -> None | True
 *
 * Arguments in Fortran's order: characters as str, integers as int, scalars as float
 * or complex, arrays as addresses.  None declines and the native routine runs; True says that the
 * output is written.  An exception becomes that of the f2py call.
 */
#include "hooks.h"

#include <string.h>

/* ---- f2py's side ---- */

enum { F2PY_MAX_DIMS = 40 };

typedef struct {
    char *name;
    int rank;
    Py_ssize_t dims[F2PY_MAX_DIMS];
    int type;
    int elsize; /* since NumPy 1.24; before, padding on 64-bit machines */
    void *data;
} fortran_definition;

typedef struct {
    PyObject_HEAD
    int len;
    fortran_definition *defs;
    PyObject *dict;
} fortran_object;

/* ---- The table ---- */

/* Signs in a signature: character, integer, array, and scalars by NumPy's letters. */
enum {
    CHARACTER = 'c',
    INTEGER = 'i',
    ARRAY = 'p',
    FLOAT32 = 'f',
    COMPLEX64 = 'F',
    FLOAT64 = 'd',
    COMPLEX128 = 'D'
};
enum { MOST_ARGUMENTS = 13 };

/* Places of the sizes among the arguments.  No routine has a size in place 0: there
 * it means 1.  The inner size of a routine with a side is m or n by that side. */
enum { BY_SIDE = -1 };

typedef struct {
    hook base;
    const char *signature;
    any_function routed;
    signed char m, n, k;
    signed char flops; /* REAL_FLOPS or COMPLEX_FLOPS */
    fortran_definition *definition; /* static memory of SciPy */
} routine;

static int publish(hook *self, PyObject *fortran);
static int withdraw(hook *self);

/* each(name, arguments, signature, m, n, k, flops) of the routines of one letter x,
 * whose scalars are s; those of Hermitian matrices have real ones, r, too. */
#define ROUTINES_OF(each, x, s, flops)                                             \
    each(x##gemm, 13, "cciii" s "pipi" s "pi", 2, 3, 4, flops)                     \
    each(x##gemv, 11, "cii" s "pipi" s "pi", 1, 2, 0, flops)                       \
    each(x##symm, 12, "ccii" s "pipi" s "pi", 2, 3, BY_SIDE, flops)                \
    each(x##syrk, 10, "ccii" s "pi" s "pi", 2, 2, 3, flops)                        \
    each(x##syr2k, 12, "ccii" s "pipi" s "pi", 2, 2, 3, flops)                     \
    each(x##trmm, 11, "ccccii" s "pipi", 4, 5, BY_SIDE, flops)                     \
    each(x##trsm, 11, "ccccii" s "pipi", 4, 5, BY_SIDE, flops)
#define HERMITIAN_ROUTINES_OF(each, x, s, r)                                       \
    each(x##hemm, 12, "ccii" s "pipi" s "pi", 2, 3, BY_SIDE, COMPLEX_FLOPS)        \
    each(x##herk, 10, "ccii" r "pi" r "pi", 2, 2, 3, COMPLEX_FLOPS)                \
    each(x##her2k, 12, "ccii" s "pipi" r "pi", 2, 2, 3, COMPLEX_FLOPS)
#define ALL_ROUTINES(each)                                                         \
    ROUTINES_OF(each, d, "d", REAL_FLOPS)                                          \
    ROUTINES_OF(each, z, "D", COMPLEX_FLOPS)                                       \
    HERMITIAN_ROUTINES_OF(each, z, "D", "d")                                       \
    ROUTINES_OF(each, s, "f", REAL_FLOPS)                                          \
    ROUTINES_OF(each, c, "F", COMPLEX_FLOPS)                                       \
    HERMITIAN_ROUTINES_OF(each, c, "F", "f")

/* f2py passes no lengths of character arguments, so none are passed on. */
#define TAKE_10                                                                    \
    void *a0, void *a1, void *a2, void *a3, void *a4, void *a5, void *a6,          \
        void *a7, void *a8, void *a9
#define PASS_10 a0, a1, a2, a3, a4, a5, a6, a7, a8, a9
#define TAKE_11 TAKE_10, void *a10
#define PASS_11 PASS_10, a10
#define TAKE_12 TAKE_11, void *a11
#define PASS_12 PASS_11, a11
#define TAKE_13 TAKE_12, void *a12
#define PASS_13 PASS_12, a12

#define DECLARED(name, count, signature, m, n, k, flops)                           \
    static void routed_##name(TAKE_##count);
ALL_ROUTINES(DECLARED)

#define INDEX(name, count, signature, m, n, k, flops) INDEX_##name,
enum { ALL_ROUTINES(INDEX) NUM_ROUTINES };

#define ENTRY(name, count, signature, m, n, k, flops)                              \
    {{#name, publish, withdraw, NULL, NULL, NULL}, signature,                      \
     (any_function)routed_##name, m, n, k, flops, NULL},
static routine routines[NUM_ROUTINES] = {ALL_ROUTINES(ENTRY)};

hook *
blas_hook(int index)
{
    return index < NUM_ROUTINES ? &routines[index].base : NULL;
}

/* ---- The handler ---- */

static Py_ssize_t
size_argument(void **arguments, signed char place)
{
    if (place == 0) {
        return 1;
    }
    int size = *(const int *)arguments[place];
    return size < 0 ? 0 : size;
}

static char
letter(const void *argument)
{
    char c = *(const char *)argument;
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

static uint64_t
routine_flops(const routine *self, void **arguments)
{
    signed char inner = self->k;
    if (inner == BY_SIDE) {
        inner = letter(arguments[0]) == 'L' ? self->m : self->n;
    }
    return saturating_product((uint64_t)self->flops,
                              flops_of(size_argument(arguments, self->m),
                                       size_argument(arguments, inner),
                                       size_argument(arguments, self->n)));
}

static PyObject *
decoded(char sign, void *argument)
{
    switch (sign) {
    case CHARACTER: {
        const char text[2] = {letter(argument), '\0'};
        return PyUnicode_FromString(text);
    }
    case INTEGER:
        return PyLong_FromLong(*(const int *)argument);
    case FLOAT32:
        return PyFloat_FromDouble((double)*(const float *)argument);
    case COMPLEX64:
        return PyComplex_FromDoubles((double)((const float *)argument)[0],
                                     (double)((const float *)argument)[1]);
    case FLOAT64:
        return PyFloat_FromDouble(*(const double *)argument);
    case COMPLEX128:
        return PyComplex_FromDoubles(((const double *)argument)[0],
                                     ((const double *)argument)[1]);
    default:
        return PyLong_FromVoidPtr(argument);
    }
}

static PyObject *
routine_arguments(const routine *self, void **arguments)
{
    Py_ssize_t count = (Py_ssize_t)strlen(self->signature);
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *item = decoded(self->signature[i], arguments[i]);
        if (item == NULL) {
            Py_CLEAR(tuple);
        }
        else {
            PyTuple_SetItem(tuple, i, item);
        }
    }
    return tuple;
}

/* Call with the GIL held.  Whether the call is settled: done, or failed with an
 * exception set, which f2py looks for after the routine. */
static int
settled_with_gil(routine *self, void **arguments)
{
    if (PyErr_Occurred()) {
        return 1;
    }
    PyObject *handler = handler_to_ask(&self->base);
    if (handler == NULL) {
        return PyErr_Occurred() != NULL;
    }
    PyObject *answer = answer_of(handler, routine_arguments(self, arguments), NULL);
    if (answer == NULL) {
        return 1;
    }
    int settled = answer != Py_None;
    if (settled && answer != Py_True) {
        PyErr_Format(PyExc_TypeError,
                     "the %s handler returned %R: it must return None (declined) "
                     "or True (done)",
                     self->base.name, answer);
    }
    Py_DECREF(answer);
    return settled;
}

static int
settled_by_handler(routine *self, void **arguments)
{
    if (!GATE_IS_OPEN() || !GATE_LETS_PASS(routine_flops(self, arguments))) {
        return 0;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    int settled = settled_with_gil(self, arguments);
    PyGILState_Release(gil);
    return settled;
}

/* ---- The routines ---- */

#define ROUTED(name, count, signature, m, n, k, flops)                             \
    static void routed_##name(TAKE_##count)                                        \
    {                                                                              \
        routine *self = &routines[INDEX_##name];                                   \
        void *arguments[MOST_ARGUMENTS] = {PASS_##count};                          \
        if (!settled_by_handler(self, arguments)) {                                \
            ((void (*)(TAKE_##count))native_of(&self->base.native))(PASS_##count); \
        }                                                                          \
    }
ALL_ROUTINES(ROUTED)

/* ---- Installing ---- */

/* What f2py offers to C callers.  It remembers the address from the first time that it
 * is asked, so asking before the exchange also keeps those callers native. */
static void *
native_address(PyObject *fortran)
{
    PyObject *capsule = PyObject_GetAttrString(fortran, "_cpointer");
    if (capsule == NULL) {
        return NULL;
    }
    void *address = PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
    Py_DECREF(capsule);
    return address;
}

/* 1 if the object's type is f2py's and large enough for what is read here. */
static int
is_fortran(PyObject *object)
{
    PyObject *type = (PyObject *)Py_TYPE(object);
    PyObject *name = PyObject_GetAttrString(type, "__name__");
    PyObject *size = PyObject_GetAttrString(type, "__basicsize__");
    int known = name != NULL && size != NULL
                && PyUnicode_CompareWithASCIIString(name, "fortran") == 0
                && PyLong_AsSsize_t(size) >= (Py_ssize_t)sizeof(fortran_object);
    Py_XDECREF(name);
    Py_XDECREF(size);
    return known && !PyErr_Occurred();
}

static int
publish(hook *base, PyObject *object)
{
    routine *self = (routine *)base;
    if (!is_fortran(object)) {
        PyErr_Format(PyExc_TypeError, "%R is not an object of f2py", object);
        return -1;
    }
    void *native = native_address(object);
    if (native == NULL) {
        return -1;
    }
    fortran_object *fortran = (fortran_object *)object;
    if (fortran->len != 1 || fortran->defs->rank != -1
        || strcmp(fortran->defs->name, base->name) != 0
        || fortran->defs->data != native) {
        PyErr_Format(PyExc_TypeError, "%R has an unknown layout", object);
        return -1;
    }
    self->definition = fortran->defs;
    STORE_SMALL(&base->native, (any_function)native);
    fortran->defs->data = (void *)self->routed;
    return 0;
}

static int
withdraw(hook *base)
{
    routine *self = (routine *)base;
    if (self->definition->data != (void *)self->routed) {
        return 0;
    }
    self->definition->data = (void *)base->native;
    return 1;
}
