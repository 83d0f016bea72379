/* The arithmetic of this thread as programs find it: rounding to nearest, subnormal
 * numbers as they are, no traps.
 *
 * Other libraries leave it otherwise: those built with -ffast-math flush subnormal
 * numbers to zero in every program that loads them, interval arithmetic rounds up or
 * down.  An engine's sums would have other bits then, and no certificate holds.
 */
#include "hooks.h"

#if defined(__SSE2__) || defined(_M_X64)

#include <xmmintrin.h>
typedef unsigned int environment;

/* But for the flags of what happened: all masked, to nearest, nothing flushed. */
#define KEPT_BITS 0x3fu
#define USUAL 0x1f80u

static environment
current(void)
{
    return _mm_getcsr();
}

static void
set(environment wanted)
{
    _mm_setcsr(wanted);
}

static int
is_usual(environment found)
{
    return (found & 0xffffu & ~KEPT_BITS) == USUAL;
}

static environment
usual_from(environment found)
{
    return (found & KEPT_BITS) | USUAL;
}

#elif defined(__aarch64__) && defined(__GNUC__)

typedef uint64_t environment;

static environment
current(void)
{
    environment found;
    __asm__ volatile("mrs %0, fpcr" : "=r"(found));
    return found;
}

static void
set(environment wanted)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(wanted));
}

static int
is_usual(environment found)
{
    return found == 0;
}

static environment
usual_from(environment found)
{
    (void)found;
    return 0;
}

#else

#include <fenv.h>
typedef int environment; /* without what the standard has no word for */

static environment
current(void)
{
    return fegetround();
}

static void
set(environment wanted)
{
    fesetround(wanted);
}

static int
is_usual(environment found)
{
    return found == FE_TONEAREST;
}

static environment
usual_from(environment found)
{
    (void)found;
    return FE_TONEAREST;
}

#endif

static THREAD_LOCAL Py_ssize_t depth = 0;
static THREAD_LOCAL environment before;

void
enter_arithmetic(void)
{
    if (depth++ == 0) {
        before = current();
        if (!is_usual(before)) {
            set(usual_from(before));
        }
    }
}

void
leave_arithmetic(void)
{
    if (--depth == 0 && !is_usual(before)) {
        set(before);
    }
}

PyDoc_STRVAR(enter_doc,
"__enter__()\n--\n\n"
"Set this thread's arithmetic, until as many exits.");

static PyObject *
enter(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    enter_arithmetic();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(leave_doc,
"__exit__(*exception)\n--\n\n"
"Set it as it was before the first entry.");

static PyObject *
leave(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(exception))
{
    if (depth == 0) {
        PyErr_SetString(PyExc_RuntimeError, "left without having been entered");
        return NULL;
    }
    leave_arithmetic();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"__enter__", enter, METH_NOARGS, enter_doc},
    {"__exit__", leave, METH_VARARGS, leave_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_methods, methods},
    {Py_tp_doc, "Rounds to nearest, with subnormal numbers; reentrant."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "np_ozaki._hooks.ArithmeticScope",
    .basicsize = sizeof(PyObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

PyObject *
arithmetic_scope_type(void)
{
    return PyType_FromSpec(&spec);
}
