/* Builtin functions of NumPy: dot, inner, c_einsum and ndarray.dot.
 *
 * CPython calls a builtin through the pointer in its PyMethodDef at every call, by
 * every way of calling there is.  So that pointer is replaced, once, and whoever holds
 * the function object is caught: earlier imports, bound methods, callers inside NumPy.
 * The object itself, its signature and its pickle stay as they are.
 *
 *     handler(arguments, keywords) -> NotImplemented | anything
 *
 * `arguments` is a tuple, for a method with the object first; `keywords` a dict or
 * None.  NotImplemented declines and the native function runs.
 *
 * The gate looks into arrays before any Python runs (arrays.c).
 */
#include "hooks.h"

#include <string.h>

/* ---- CPython's side ---- */

/* The first members of PyCFunctionObject, which the stable ABI does not show; this
 * form since Python 2. */
typedef struct {
    PyObject_HEAD
    PyMethodDef *definition;
} builtin_object;

PyMethodDef *
method_definition(PyObject *builtin, const char *name)
{
    if (!PyObject_TypeCheck(builtin, &PyCFunction_Type)) {
        PyErr_Format(PyExc_TypeError, "%R is not a builtin function", builtin);
        return NULL;
    }
    PyMethodDef *found = ((builtin_object *)builtin)->definition;
    if (found->ml_meth != PyCFunction_GetFunction(builtin)
        || found->ml_flags != PyCFunction_GetFlags(builtin)) {
        PyErr_Format(PyExc_TypeError, "%R has an unknown layout", builtin);
        return NULL;
    }
    if (strcmp(found->ml_name, name) != 0) {
        PyErr_Format(PyExc_TypeError, "%R is %s, not %s", builtin, found->ml_name,
                     name);
        return NULL;
    }
    return found;
}

/* ---- One call ---- */

/* Arguments by whichever convention the function is called. */
typedef struct {
    PyObject *self;         /* of a method: its first argument; else NULL */
    PyObject *const *array; /* the fast conventions */
    PyObject *tuple;        /* the others */
    Py_ssize_t count;       /* in `array` or `tuple` */
    PyObject *names;        /* keywords whose values follow in `array`; may be NULL */
    PyObject *keywords;     /* a dict; may be NULL */
} call;

static Py_ssize_t
num_positional(const call *c)
{
    return c->count + (c->self != NULL);
}

/* Borrowed. */
static PyObject *
positional(const call *c, Py_ssize_t i)
{
    if (c->self != NULL) {
        if (i == 0) {
            return c->self;
        }
        i--;
    }
    return c->array != NULL ? c->array[i] : PyTuple_GetItem(c->tuple, i);
}

static PyObject *
positional_tuple(const call *c)
{
    if (c->tuple != NULL && c->self == NULL) {
        return Py_NewRef(c->tuple);
    }
    Py_ssize_t count = num_positional(c);
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++) {
        PyTuple_SetItem(tuple, i, Py_NewRef(positional(c, i)));
    }
    return tuple;
}

/* A dict or None. */
static PyObject *
keyword_dict(const call *c)
{
    Py_ssize_t count = c->names == NULL ? 0 : PyTuple_Size(c->names);
    if (count == 0) {
        return Py_NewRef(c->keywords != NULL ? c->keywords : Py_None);
    }
    PyObject *dict = PyDict_New();
    for (Py_ssize_t i = 0; dict != NULL && i < count; i++) {
        if (PyDict_SetItem(dict, PyTuple_GetItem(c->names, i),
                           c->array[c->count + i]) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

/* ---- What may go to Python ---- */

/* dot(a, b[, out]); unusual calls are Python's business. */
static int
dot_passes(const call *c)
{
    Py_ssize_t count = num_positional(c);
    return count < 2 || count > 3
           || pair_passes(positional(c, 0), positional(c, 1), LAST_BUT_ONE);
}

/* inner(a, b) */
static int
inner_passes(const call *c)
{
    return num_positional(c) != 2
           || pair_passes(positional(c, 0), positional(c, 1), LAST);
}

/* c_einsum("...", a, b).  Other numbers of operands are no product of two. */
static int
einsum_passes(const call *c)
{
    Py_ssize_t count = num_positional(c);
    if (count == 0 || !PyUnicode_Check(positional(c, 0))) {
        return 1;
    }
    return count == 3 && pair_passes(positional(c, 1), positional(c, 2), UNKNOWN);
}

/* ---- The table ---- */

typedef PyObject *(*varargs_function)(PyObject *, PyObject *);
typedef PyObject *(*keywords_function)(PyObject *, PyObject *, PyObject *);
typedef PyObject *(*fast_function)(PyObject *, PyObject *const *, Py_ssize_t);
typedef PyObject *(*fast_keywords_function)(PyObject *, PyObject *const *, Py_ssize_t,
                                            PyObject *);

enum { NUM_CONVENTIONS = 4 };
static const int conventions[NUM_CONVENTIONS] = {
    METH_VARARGS, METH_VARARGS | METH_KEYWORDS, METH_FASTCALL,
    METH_FASTCALL | METH_KEYWORDS};

typedef struct {
    hook base;
    const char *method_name; /* in NumPy's method table */
    int is_method;
    int (*passes)(const call *);
    any_function routed[NUM_CONVENTIONS];
    PyMethodDef *definition; /* static memory of NumPy */
    PyCFunction installed;   /* one of `routed` */
} builtin;

static int publish(hook *self, PyObject *function);
static int withdraw(hook *self);

/* CPython hands a builtin no word of which function it is, so each has its own. */
#define ROUTED(index)                                                              \
    static PyObject *varargs_##index(PyObject *, PyObject *);                      \
    static PyObject *keywords_##index(PyObject *, PyObject *, PyObject *);         \
    static PyObject *fast_##index(PyObject *, PyObject *const *, Py_ssize_t);      \
    static PyObject *fast_keywords_##index(PyObject *, PyObject *const *,          \
                                           Py_ssize_t, PyObject *);
ROUTED(0)
ROUTED(1)
ROUTED(2)
ROUTED(3)
#undef ROUTED

#define BUILTIN(index, name, method_name, is_method, passes)                       \
    {{name, publish, withdraw, NULL, NULL, NULL}, method_name, is_method, passes,  \
     {(any_function)varargs_##index, (any_function)keywords_##index,               \
      (any_function)fast_##index, (any_function)fast_keywords_##index},            \
     NULL, NULL}

enum { NUM_BUILTINS = 4 };
static builtin builtins[NUM_BUILTINS] = {
    BUILTIN(0, "dot", "dot", 0, dot_passes),
    BUILTIN(1, "ndarray.dot", "dot", 1, dot_passes),
    BUILTIN(2, "inner", "inner", 0, inner_passes),
    BUILTIN(3, "einsum", "c_einsum", 0, einsum_passes),
};

hook *
builtin_hook(int index)
{
    return index < NUM_BUILTINS ? &builtins[index].base : NULL;
}

/* ---- The functions ---- */

/* Whether the call is settled: done, or failed with an exception and no result. */
static int
settled_by_handler(builtin *b, const call *c, PyObject **result)
{
    if (!GATE_IS_OPEN() || !b->passes(c)) {
        return 0;
    }
    *result = NULL;
    PyObject *handler = handler_to_ask(&b->base);
    if (handler == NULL) {
        return PyErr_Occurred() != NULL;
    }
    PyObject *positionals = positional_tuple(c);
    PyObject *keywords = keyword_dict(c);
    PyObject *arguments = NULL;
    if (positionals != NULL && keywords != NULL) {
        arguments = PyTuple_Pack(2, positionals, keywords);
    }
    Py_XDECREF(positionals);
    Py_XDECREF(keywords);
    PyObject *answer = answer_of(handler, arguments, NULL);
    if (answer == Py_NotImplemented) {
        Py_DECREF(answer);
        return 0;
    }
    *result = answer;
    return 1;
}

static PyObject *
run_varargs(builtin *b, PyObject *self, PyObject *tuple, PyObject *keywords,
            int with_keywords)
{
    PyObject *result;
    const call c = {.self = b->is_method ? self : NULL, .tuple = tuple,
                    .count = PyTuple_Size(tuple), .keywords = keywords};
    if (settled_by_handler(b, &c, &result)) {
        return result;
    }
    any_function native = native_of(&b->base.native);
    return with_keywords ? ((keywords_function)native)(self, tuple, keywords)
                         : ((varargs_function)native)(self, tuple);
}

static PyObject *
run_fast(builtin *b, PyObject *self, PyObject *const *array, Py_ssize_t count,
         PyObject *names, int with_keywords)
{
    /* Without arguments the array may be NULL, which stands for a tuple here. */
    static PyObject *const none[1] = {NULL};
    PyObject *result;
    const call c = {.self = b->is_method ? self : NULL,
                    .array = array == NULL ? none : array, .count = count,
                    .names = names};
    if (settled_by_handler(b, &c, &result)) {
        return result;
    }
    any_function native = native_of(&b->base.native);
    return with_keywords
               ? ((fast_keywords_function)native)(self, array, count, names)
               : ((fast_function)native)(self, array, count);
}

#define ROUTED(index)                                                              \
    static PyObject *varargs_##index(PyObject *self, PyObject *tuple)              \
    {                                                                              \
        return run_varargs(&builtins[index], self, tuple, NULL, 0);                \
    }                                                                              \
    static PyObject *keywords_##index(PyObject *self, PyObject *tuple,             \
                                      PyObject *keywords)                          \
    {                                                                              \
        return run_varargs(&builtins[index], self, tuple, keywords, 1);            \
    }                                                                              \
    static PyObject *fast_##index(PyObject *self, PyObject *const *array,          \
                                  Py_ssize_t count)                                \
    {                                                                              \
        return run_fast(&builtins[index], self, array, count, NULL, 0);            \
    }                                                                              \
    static PyObject *fast_keywords_##index(PyObject *self, PyObject *const *array, \
                                           Py_ssize_t count, PyObject *names)      \
    {                                                                              \
        return run_fast(&builtins[index], self, array, count, names, 1);           \
    }
ROUTED(0)
ROUTED(1)
ROUTED(2)
ROUTED(3)

/* ---- Installing ---- */

static int
publish(hook *base, PyObject *function)
{
    builtin *self = (builtin *)base;
    if (!arrays_are_known()) {
        PyErr_SetString(PyExc_RuntimeError, "learn_arrays() comes first");
        return -1;
    }
    PyMethodDef *definition = method_definition(function, self->method_name);
    if (definition == NULL) {
        return -1;
    }
    for (int i = 0; i < NUM_CONVENTIONS; i++) {
        if (definition->ml_flags == conventions[i]) {
            self->definition = definition;
            self->installed = (PyCFunction)self->routed[i];
            STORE_SMALL(&base->native, (any_function)definition->ml_meth);
            definition->ml_meth = self->installed; /* read anew at every call */
            return 0;
        }
    }
    PyErr_Format(PyExc_TypeError, "%R has an unknown calling convention (%d)",
                 function, definition->ml_flags);
    return -1;
}

static int
withdraw(hook *base)
{
    builtin *self = (builtin *)base;
    if (self->definition->ml_meth != self->installed) {
        return 0;
    }
    self->definition->ml_meth = (PyCFunction)base->native;
    return 1;
}
