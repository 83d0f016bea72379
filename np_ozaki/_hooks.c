/* np_ozaki._hooks: the inner loop of np.matmul for float64, with a gate in front.
 *
 * `a @ b` on plain arrays goes through C to the matmul ufunc, so no Python name can
 * be replaced to catch it.  PyUFunc_ReplaceLoopBySignature swaps the loop of one type
 * signature instead.  The loop installed here asks, cheapest first: is a scope open,
 * is the product large enough, may this thread be routed?  Only then it takes the
 * GIL and calls the Python handler.
 *
 *     handler(a_pointer, a_strides, b_pointer, b_strides, out_pointer, out_strides,
 *             outer, m, k, n) -> None | int
 *
 * Strides are bytes: (outer, m, k), (outer, k, n), (outer, m, n).  None declines and
 * the native loop runs; an int says that `out` is written and which floating-point
 * flags NumPy shall find (RAISE_* below).
 *
 * Stable ABI, no NumPy headers: the four things needed from NumPy are named in the
 * section "NumPy's side".  Every static object below is written with the GIL held.
 * CPython never unloads an extension module, so the loop's address stays valid in
 * threads that fetched it before an uninstall.
 */
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <fenv.h>
#include <stdint.h>

#define INTERFACE 1

/* ---- Atomics and thread-local storage without <stdatomic.h> or <threads.h> ---- */

#if defined(_MSC_VER) && !defined(__clang__)

#include <intrin.h>
#define THREAD_LOCAL __declspec(thread)

/* Aligned volatile accesses up to a pointer's size do not tear. */
#define LOAD_SMALL(object) (*(object))
#define STORE_SMALL(object, value) (*(object) = (value))

static uint64_t
load_wide(volatile uint64_t *object)
{
    return (uint64_t)_InterlockedCompareExchange64(
        (volatile __int64 *)object, 0, 0);
}

static void
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

/* ---- NumPy's side ---- */

/* args: a, b, out.  dimensions: outer, m, k, n.  steps, in bytes: the outer steps of
 * a, b, out, then a_m, a_k, b_k, b_n, out_m, out_n. */
typedef void (*matmul_loop)(char **args, const Py_ssize_t *dimensions,
                            const Py_ssize_t *steps, void *data);

typedef int (*replace_loop_by_signature)(PyObject *ufunc, matmul_loop replacement,
                                         const int *signature,
                                         matmul_loop *replaced);

/* Places in the table behind the `_UFUNC_API` capsule; part of NumPy's C ABI. */
enum { API_UFUNC_TYPE = 0, API_REPLACE_LOOP = 30 };

enum { NPY_DOUBLE_NUMBER = 12 };
static const int float64_signature[3] = {
    NPY_DOUBLE_NUMBER, NPY_DOUBLE_NUMBER, NPY_DOUBLE_NUMBER};

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

/* ---- State ---- */

static matmul_loop volatile native_loop = NULL;
static volatile int32_t gate_depth = 0;
static volatile uint64_t gate_min_flops = 0;

/* Non-zero where this thread's products must stay native: inside the handler, and
 * between enter_unrouted and leave_unrouted. */
static THREAD_LOCAL Py_ssize_t unrouted_count = 0;

static PyObject *current_handler = NULL;
static PyObject *hooked_ufunc = NULL; /* NULL while not installed */
static PyObject *is_finalizing = NULL;
static PyInterpreterState *home_interpreter = NULL;

/* ---- The loop ---- */

enum { RAISE_OVERFLOW = 1, RAISE_INVALID = 2, RAISE_UNDERFLOW = 4 };
enum { RAISE_ALL = RAISE_OVERFLOW | RAISE_INVALID | RAISE_UNDERFLOW };

enum { DECLINED = -1, FAILED = -2 }; /* else the flags to raise */

static uint64_t
saturating_product(uint64_t a, uint64_t b)
{
    return (b != 0 && a > UINT64_MAX / b) ? UINT64_MAX : a * b;
}

/* 2*m*k*n of one matrix of the batch. */
static uint64_t
flops_of(const Py_ssize_t *dimensions)
{
    uint64_t m = (uint64_t)dimensions[1];
    uint64_t k = (uint64_t)dimensions[2];
    uint64_t n = (uint64_t)dimensions[3];
    if (((m | k | n) >> 20) == 0) {
        return 2 * m * k * n; /* below 2^61: spares the divisions */
    }
    return saturating_product(saturating_product(2 * m, k), n);
}

static int
flags_from(PyObject *answer)
{
    if (answer == Py_None) {
        return DECLINED;
    }
    /* A bool is an int, but `return True` for "done" would raise an overflow. */
    if (!PyLong_Check(answer) || PyBool_Check(answer)) {
        PyErr_Format(PyExc_TypeError,
                     "the matmul handler returned %R: it must return None "
                     "(declined) or an int (floating-point flags)",
                     answer);
        return FAILED;
    }
    int overflow;
    long flags = PyLong_AsLongAndOverflow(answer, &overflow);
    if (overflow != 0 || flags < 0 || flags > RAISE_ALL) {
        PyErr_Format(PyExc_ValueError,
                     "the matmul handler returned %R: floating-point flags lie "
                     "in 0..%d",
                     answer, (int)RAISE_ALL);
        return FAILED;
    }
    return (int)flags;
}

static PyObject *
call_handler(PyObject *handler, char **args, const Py_ssize_t *dimensions,
             const Py_ssize_t *steps)
{
    PyObject *arguments = Py_BuildValue(
        "(N(nnn)N(nnn)N(nnn)nnnn)",
        PyLong_FromVoidPtr(args[0]), steps[0], steps[3], steps[4],
        PyLong_FromVoidPtr(args[1]), steps[1], steps[5], steps[6],
        PyLong_FromVoidPtr(args[2]), steps[2], steps[7], steps[8],
        dimensions[0], dimensions[1], dimensions[2], dimensions[3]);
    if (arguments == NULL) {
        return NULL;
    }
    PyObject *answer = PyObject_CallObject(handler, arguments);
    Py_DECREF(arguments);
    return answer;
}

/* The handler's modules may be half torn down by then. */
static int
interpreter_is_finalizing(void)
{
    PyObject *answer = PyObject_CallObject(is_finalizing, NULL);
    if (answer == NULL) {
        return -1;
    }
    int finalizing = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return finalizing;
}

/* Call with the GIL held and no error set. */
static int
ask_handler(char **args, const Py_ssize_t *dimensions, const Py_ssize_t *steps)
{
    PyObject *handler = current_handler;
    if (handler == NULL) {
        return DECLINED; /* uninstalled after this thread had fetched the loop */
    }
    /* NumPy before 2.4 can be imported into subinterpreters, where it shares the
     * loop tables; the handler's objects belong to the interpreter that installed. */
    if (PyInterpreterState_Get() != home_interpreter) {
        return DECLINED;
    }
    int finalizing = interpreter_is_finalizing();
    if (finalizing != 0) {
        return finalizing < 0 ? FAILED : DECLINED;
    }
    /* A second install may drop the module's reference during the call. */
    Py_INCREF(handler);
    PyObject *answer = call_handler(handler, args, dimensions, steps);
    Py_DECREF(handler);
    if (answer == NULL) {
        return FAILED;
    }
    int outcome = flags_from(answer);
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
settled_by_handler(char **args, const Py_ssize_t *dimensions,
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
    unrouted_count++;
    int outcome = ask_handler(args, dimensions, steps);
    unrouted_count--;
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

static void
routed_loop(char **args, const Py_ssize_t *dimensions, const Py_ssize_t *steps,
            void *data)
{
    if (LOAD_SMALL(&gate_depth) > 0
        && flops_of(dimensions) >= load_wide(&gate_min_flops)
        && unrouted_count == 0
        && settled_by_handler(args, dimensions, steps)) {
        return;
    }
    matmul_loop native = LOAD_SMALL(&native_loop);
    while (native == NULL) {
        /* Another thread is between the two statements of publish().  It holds the
         * GIL and blocks on nothing, so this ends; and who gets here holds none. */
        native = LOAD_SMALL(&native_loop);
    }
    native(args, dimensions, steps, data);
}

/* ---- Installing ---- */

/* Nothing here releases the GIL between publishing the loop and storing the native
 * pointer.  NumPy fetches the pointer of a loop with the GIL held, so no thread can
 * run routed_loop before native_loop is known. */
static int
publish(PyObject *ufunc)
{
    void **api = ufunc_api();
    if (api == NULL) {
        return -1;
    }
    if (!PyObject_TypeCheck(ufunc, (PyTypeObject *)api[API_UFUNC_TYPE])) {
        PyErr_Format(PyExc_TypeError, "install() takes a ufunc, not %R", ufunc);
        return -1;
    }
    PyObject *finalizing = PySys_GetObject("is_finalizing");
    if (finalizing == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "sys.is_finalizing is missing");
        return -1;
    }
    replace_loop_by_signature replace =
        (replace_loop_by_signature)api[API_REPLACE_LOOP];
    matmul_loop replaced = NULL;
    if (replace(ufunc, routed_loop, float64_signature, &replaced) < 0) {
        PyErr_Format(PyExc_TypeError, "%R has no float64 loop", ufunc);
        return -1;
    }
    /* Whoever had stacked a loop on ours may have put ours back since. */
    if (replaced != routed_loop) {
        STORE_SMALL(&native_loop, replaced);
    }
    Py_INCREF(finalizing);
    Py_XDECREF(is_finalizing);
    is_finalizing = finalizing;
    home_interpreter = PyInterpreterState_Get();
    Py_INCREF(ufunc);
    hooked_ufunc = ufunc;
    return 0;
}

static void
set_handler(PyObject *handler)
{
    PyObject *old = current_handler;
    Py_XINCREF(handler);
    current_handler = handler;
    Py_XDECREF(old); /* last: it can run arbitrary code */
}

PyDoc_STRVAR(install_doc,
"install(matmul_ufunc, handler, /)\n--\n\n"
"Put the routed loop into the ufunc, or only replace the handler.");

static PyObject *
install(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *ufunc, *handler;
    if (!PyArg_ParseTuple(arguments, "OO:install", &ufunc, &handler)) {
        return NULL;
    }
    if (!PyCallable_Check(handler)) {
        return PyErr_Format(PyExc_TypeError, "handler %R is not callable", handler);
    }
    if (hooked_ufunc == NULL) {
        if (publish(ufunc) < 0) {
            return NULL;
        }
    }
    else if (hooked_ufunc != ufunc) {
        return PyErr_Format(PyExc_ValueError, "%R is hooked already, %R cannot be",
                            hooked_ufunc, ufunc);
    }
    set_handler(handler);
    Py_RETURN_NONE;
}

/* 1: the native pointer is back.  0: somebody stacked a loop on ours, which stays.
 * Removing theirs would switch it off behind their back. */
static int
withdraw(void)
{
    void **api = ufunc_api();
    if (api == NULL) {
        return -1;
    }
    replace_loop_by_signature replace =
        (replace_loop_by_signature)api[API_REPLACE_LOOP];
    matmul_loop found = NULL;
    replace(hooked_ufunc, native_loop, float64_signature, &found);
    if (found != routed_loop) {
        matmul_loop ignored;
        replace(hooked_ufunc, found, float64_signature, &ignored);
        return 0;
    }
    Py_CLEAR(hooked_ufunc);
    return 1;
}

PyDoc_STRVAR(uninstall_doc,
"uninstall()\n--\n\n"
"Restore the native loop; True if it is the ufunc's loop now.\n\n"
"False: another library has put its loop on top of this one.  Then the routed\n"
"loop stays in the chain and passes every product on.");

static PyObject *
uninstall(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    int native = 1;
    if (hooked_ufunc != NULL) {
        native = withdraw();
        if (native < 0) {
            return NULL;
        }
    }
    set_handler(NULL);
    return PyBool_FromLong(native);
}

/* ---- The gate ---- */

/* Saturating: no product reaches 2^63 flops. */
static int
natural_number(PyObject *number, const char *name, uint64_t *value)
{
    int overflow;
    long long small = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (small == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (overflow < 0 || (overflow == 0 && small < 0)) {
        PyErr_Format(PyExc_ValueError, "%s=%R must not be negative", name, number);
        return -1;
    }
    *value = overflow > 0 ? UINT64_MAX : (uint64_t)small;
    return 0;
}

PyDoc_STRVAR(set_gate_doc,
"set_gate(depth, min_flops, /)\n--\n\n"
"Route products of at least `min_flops` (2*m*n*k of one matrix) while depth > 0.");

static PyObject *
set_gate(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *depth_object, *min_flops_object;
    uint64_t depth, min_flops;
    if (!PyArg_ParseTuple(arguments, "OO:set_gate", &depth_object,
                          &min_flops_object)
        || natural_number(depth_object, "depth", &depth) < 0
        || natural_number(min_flops_object, "min_flops", &min_flops) < 0) {
        return NULL;
    }
    store_wide(&gate_min_flops, min_flops);
    STORE_SMALL(&gate_depth, depth > INT32_MAX ? INT32_MAX : (int32_t)depth);
    Py_RETURN_NONE;
}

/* ---- Threads that stay native ---- */

PyDoc_STRVAR(enter_unrouted_doc,
"enter_unrouted()\n--\n\n"
"Keep this thread's products native until as many leave_unrouted() calls.");

static PyObject *
enter_unrouted(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    unrouted_count++;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(leave_unrouted_doc,
"leave_unrouted()\n--\n\n"
"Undo one enter_unrouted() of this thread.");

static PyObject *
leave_unrouted(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (unrouted_count == 0) {
        PyErr_SetString(PyExc_RuntimeError,
                        "leave_unrouted() without enter_unrouted() in this thread");
        return NULL;
    }
    unrouted_count--;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(swap_unrouted_doc,
"swap_unrouted(count, /)\n--\n\n"
"Set this thread's count of open enter_unrouted() calls; return the old one.");

static PyObject *
swap_unrouted(PyObject *Py_UNUSED(module), PyObject *number)
{
    Py_ssize_t count = PyLong_AsSsize_t(number);
    if (count == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (count < 0) {
        return PyErr_Format(PyExc_ValueError, "count=%R must not be negative",
                            number);
    }
    PyObject *old = PyLong_FromSsize_t(unrouted_count);
    if (old != NULL) {
        unrouted_count = count;
    }
    return old;
}

/* A context manager in C, because Ctrl-C can strike between the bytecodes of a
 * Python __enter__ or __exit__ and would leave the count wrong for ever. */
static PyObject *
scope_exit(PyObject *self, PyObject *Py_UNUSED(exception))
{
    return leave_unrouted(self, NULL);
}

static PyMethodDef scope_methods[] = {
    {"__enter__", enter_unrouted, METH_NOARGS, enter_unrouted_doc},
    {"__exit__", scope_exit, METH_VARARGS, leave_unrouted_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot scope_slots[] = {
    {Py_tp_methods, scope_methods},
    {Py_tp_doc, "Keeps this thread's products native; reentrant, without state."},
    {0, NULL},
};

static PyType_Spec scope_spec = {
    .name = "np_ozaki._hooks.UnroutedScope",
    .basicsize = sizeof(PyObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = scope_slots,
};

/* ---- Module ---- */

static PyMethodDef module_methods[] = {
    {"install", install, METH_VARARGS, install_doc},
    {"uninstall", uninstall, METH_NOARGS, uninstall_doc},
    {"set_gate", set_gate, METH_VARARGS, set_gate_doc},
    {"enter_unrouted", enter_unrouted, METH_NOARGS, enter_unrouted_doc},
    {"leave_unrouted", leave_unrouted, METH_NOARGS, leave_unrouted_doc},
    {"swap_unrouted", swap_unrouted, METH_O, swap_unrouted_doc},
    {NULL, NULL, 0, NULL},
};

/* Single-phase with m_size -1: the state is the process's, and CPython then refuses
 * the module in isolated subinterpreters by itself. */
static PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "np_ozaki._hooks",
    .m_doc = "The gated inner loop of np.matmul; see np_ozaki.hooks.",
    .m_size = -1,
    .m_methods = module_methods,
};

PyMODINIT_FUNC
PyInit__hooks(void)
{
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL) {
        return NULL;
    }
    PyObject *scope_type = PyType_FromSpec(&scope_spec);
    int failed = scope_type == NULL
                 || PyModule_AddObjectRef(module, "UnroutedScope", scope_type) < 0
                 || PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0
                 || PyModule_AddIntConstant(module, "RAISE_OVERFLOW",
                                            RAISE_OVERFLOW) < 0
                 || PyModule_AddIntConstant(module, "RAISE_INVALID",
                                            RAISE_INVALID) < 0
                 || PyModule_AddIntConstant(module, "RAISE_UNDERFLOW",
                                            RAISE_UNDERFLOW) < 0;
    Py_XDECREF(scope_type);
    if (failed) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
