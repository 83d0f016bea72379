/* A look into ndarrays: shape and dtype, before any Python runs.
 *
 * PyArrayObject and PyArray_Descr have kept the members below since NumPy 1.0; that
 * they have them here and now is compared with Python's view before it is relied on.
 */
#include "hooks.h"

typedef struct {
    PyObject_HEAD
    char *data;
    int nd;
    Py_ssize_t *dimensions;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *descr;
} array_object;

typedef struct {
    PyObject_HEAD
    PyTypeObject *typeobj;
    char kind, type, byteorder, former_flags;
    int type_num;
} descr_object;

static PyTypeObject *ndarray_type = NULL; /* NULL until learn_arrays() */

/* -1 with an exception; a value of -1 never occurs here. */
static Py_ssize_t
integer_attribute(PyObject *object, const char *name)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    if (value == NULL) {
        return -1;
    }
    Py_ssize_t number = PyLong_AsSsize_t(value);
    Py_DECREF(value);
    return number;
}

/* 1: C and Python see the same; 0: they do not; -1: exception.  Pointers come last,
 * when the plain members around them have agreed. */
static int
looks_as_known(PyObject *probe, PyObject *dtype, PyObject *shape)
{
    Py_ssize_t array_size = integer_attribute((PyObject *)Py_TYPE(probe),
                                              "__basicsize__");
    Py_ssize_t dtype_size = integer_attribute((PyObject *)Py_TYPE(dtype),
                                              "__basicsize__");
    Py_ssize_t ndim = integer_attribute(probe, "ndim");
    Py_ssize_t number = integer_attribute(dtype, "num");
    if (PyErr_Occurred()) {
        return -1;
    }
    const array_object *array = (const array_object *)probe;
    if (array_size < (Py_ssize_t)sizeof(array_object)
        || dtype_size < (Py_ssize_t)sizeof(descr_object) || array->nd != ndim
        || array->descr != dtype || PyTuple_Size(shape) != ndim
        || ((const descr_object *)dtype)->type_num != number) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < ndim; i++) {
        if (array->dimensions[i] != PyLong_AsSsize_t(PyTuple_GetItem(shape, i))) {
            return 0;
        }
    }
    return 1;
}

static int
check_probe(PyObject *probe)
{
    PyObject *dtype = PyObject_GetAttrString(probe, "dtype");
    PyObject *shape = PyObject_GetAttrString(probe, "shape");
    int known = -1;
    if (dtype != NULL && shape != NULL) {
        known = looks_as_known(probe, dtype, shape);
    }
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    return known;
}

PyObject *
learn_arrays(PyObject *Py_UNUSED(module), PyObject *probes)
{
    Py_ssize_t count = PyTuple_Size(probes);
    if (count < 1) {
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_ValueError, "no probes");
    }
    PyTypeObject *type = Py_TYPE(PyTuple_GetItem(probes, 0));
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *probe = PyTuple_GetItem(probes, i);
        int known = Py_TYPE(probe) == type ? check_probe(probe) : 0;
        if (known < 0) {
            return NULL;
        }
        if (!known) {
            return PyErr_Format(PyExc_TypeError,
                                "arrays of type %R have an unknown layout", type);
        }
    }
    ndarray_type = type; /* never freed: a static type of NumPy */
    Py_RETURN_NONE;
}

int
arrays_are_known(void)
{
    return ndarray_type != NULL;
}

/* ---- The gate ---- */

static int
type_number(const array_object *array)
{
    return ((const descr_object *)array->descr)->type_num;
}

/* Operands of one dtype have a product of that dtype. */
static int
may_be_routed(const array_object *a, const array_object *b)
{
    int number = type_number(a);
    return number != type_number(b) || number == NPY_FLOAT64
           || number == NPY_COMPLEX128 || number == NPY_FLOAT32
           || number == NPY_COMPLEX64;
}

static int
is_complex(const array_object *array)
{
    int number = type_number(array);
    return number >= NPY_COMPLEX64 && number <= NPY_CLONGDOUBLE;
}

static uint64_t
size_without(const array_object *array, int left_out)
{
    uint64_t size = 1;
    for (int i = 0; i < array->nd; i++) {
        if (i != left_out) {
            size = saturating_product(size, (uint64_t)array->dimensions[i]);
        }
    }
    return size;
}

/* numpy.float64 is a float, too. */
static int
is_scalar(PyObject *object)
{
    return PyFloat_Check(object) || PyLong_Check(object);
}

int
pair_passes(PyObject *left, PyObject *right, enum summed_axis summed)
{
    if (Py_TYPE(left) != ndarray_type || Py_TYPE(right) != ndarray_type) {
        return !is_scalar(left) && !is_scalar(right);
    }
    const array_object *a = (const array_object *)left;
    const array_object *b = (const array_object *)right;
    if (a->nd == 0 || b->nd == 0 || !may_be_routed(a, b)) {
        return 0;
    }
    int axis = b->nd - 1;
    if (summed == UNKNOWN) {
        axis = -1; /* no matrix product has more flops than all by all entries */
    }
    else if (summed == LAST_BUT_ONE && b->nd > 1) {
        axis--;
    }
    uint64_t each = 2 * (is_complex(a) || is_complex(b) ? COMPLEX_FLOPS : REAL_FLOPS);
    uint64_t flops = saturating_product(
        each, saturating_product(size_without(a, -1), size_without(b, axis)));
    return GATE_LETS_PASS(flops);
}
