/* np_ozaki._hooks: hooks in C functions of NumPy and SciPy, with one gate in front.
 *
 * This file holds the gate, the life of a hook and the module; loops.c, builtins.c,
 * blas.c and imports.c know how a kind of function is hooked.  environment.c is about
 * the arithmetic of a thread.
 */
#include "hooks.h"

#include <string.h>

#define INTERFACE 4

/* ---- State ---- */

volatile int32_t gate_depth = 0;
volatile uint64_t gate_min_flops = 0;
THREAD_LOCAL Py_ssize_t unrouted_count = 0;

static PyObject *is_finalizing = NULL;
static PyInterpreterState *home_interpreter = NULL;
static PyObject *owner = NULL; /* whose handlers these are; NULL: nobody's */

/* ---- One hook ---- */

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

PyObject *
handler_to_ask(hook *self)
{
    PyObject *handler = self->handler;
    if (handler == NULL) {
        return NULL; /* uninstalled after this thread had fetched our function */
    }
    /* NumPy before 2.4 can be imported into subinterpreters, where it shares its
     * functions; the handler's objects belong to the interpreter that installed. */
    if (PyInterpreterState_Get() != home_interpreter) {
        return NULL;
    }
    if (interpreter_is_finalizing() != 0) {
        return NULL; /* with an exception, if asking failed */
    }
    return Py_NewRef(handler); /* the call may drop the hook's own reference */
}

PyObject *
answer_of(PyObject *handler, PyObject *arguments, PyObject *keywords)
{
    PyObject *answer = NULL;
    if (arguments != NULL) {
        unrouted_count++;
        enter_arithmetic();
        answer = PyObject_Call(handler, arguments, keywords);
        leave_arithmetic();
        unrouted_count--;
        Py_DECREF(arguments);
    }
    Py_DECREF(handler);
    return answer;
}

any_function
native_of(any_function volatile *native)
{
    any_function found = LOAD_SMALL(native);
    while (found == NULL) {
        /* Another thread is between the two statements of a publish().  It holds the
         * GIL and blocks on nothing, so this ends; and who gets here holds none. */
        found = LOAD_SMALL(native);
    }
    return found;
}

/* ---- Installing ---- */

static hook *(*const tables[])(int index) = {
    loop_hook, builtin_hook, blas_hook, import_hook};

static hook *
hook_named(const char *name)
{
    for (size_t kind = 0; kind < sizeof tables / sizeof *tables; kind++) {
        hook *found;
        for (int i = 0; (found = tables[kind](i)) != NULL; i++) {
            if (strcmp(found->name, name) == 0) {
                return found;
            }
        }
    }
    PyErr_Format(PyExc_LookupError, "there is no hook named %s", name);
    return NULL;
}

static void
set_handler(hook *self, PyObject *handler)
{
    PyObject *old = self->handler;
    Py_XINCREF(handler);
    self->handler = handler;
    Py_XDECREF(old); /* last: it can run arbitrary code */
}

/* What handler_to_ask() needs; the same for every hook. */
static int
learn_interpreter(void)
{
    PyObject *finalizing = PySys_GetObject("is_finalizing");
    if (finalizing == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "sys.is_finalizing is missing");
        return -1;
    }
    Py_INCREF(finalizing);
    Py_XDECREF(is_finalizing);
    is_finalizing = finalizing;
    home_interpreter = PyInterpreterState_Get();
    return 0;
}

PyDoc_STRVAR(install_doc,
"install(name, target, handler, /)\n--\n\n"
"Put the hook of this name into the target, or only replace its handler.");

static PyObject *
install(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    const char *name;
    PyObject *target, *handler;
    if (!PyArg_ParseTuple(arguments, "sOO:install", &name, &target, &handler)) {
        return NULL;
    }
    hook *self = hook_named(name);
    if (self == NULL) {
        return NULL;
    }
    if (!PyCallable_Check(handler)) {
        return PyErr_Format(PyExc_TypeError, "handler %R is not callable", handler);
    }
    if (self->target == NULL) {
        if (learn_interpreter() < 0 || self->publish(self, target) < 0) {
            return NULL;
        }
        self->target = Py_NewRef(target);
    }
    else if (self->target != target) {
        return PyErr_Format(PyExc_ValueError, "%s is hooked in %R, not in %R", name,
                            self->target, target);
    }
    set_handler(self, handler);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(uninstall_doc,
"uninstall(name, /)\n--\n\n"
"Restore what the hook had replaced; True if the native function is in place now.\n\n"
"False: another library has put its function on top of this one.  Then ours stays\n"
"in the chain and passes every call on.");

static PyObject *
uninstall(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    const char *name;
    if (!PyArg_ParseTuple(arguments, "s:uninstall", &name)) {
        return NULL;
    }
    hook *self = hook_named(name);
    if (self == NULL) {
        return NULL;
    }
    int native = 1;
    if (self->target != NULL) {
        native = self->withdraw(self);
        if (native < 0) {
            return NULL;
        }
        if (native) {
            Py_CLEAR(self->target);
        }
    }
    set_handler(self, NULL);
    return PyBool_FromLong(native);
}

PyDoc_STRVAR(set_owner_doc,
"set_owner(owner, /)\n--\n\n"
"Note whose handlers are going to be installed: a package may be imported twice.");

static PyObject *
set_owner(PyObject *Py_UNUSED(module), PyObject *wanted)
{
    PyObject *old = owner;
    owner = Py_NewRef(wanted);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(is_owner_doc,
"is_owner(owner, /)\n--\n\n"
"Whether that was noted last.");

static PyObject *
is_owner(PyObject *Py_UNUSED(module), PyObject *asked)
{
    return PyBool_FromLong(owner == asked);
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
"Route products of at least `min_flops` (2*m*n*k of one matrix, complex 8*m*n*k)\n"
"while depth > 0.");

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

PyDoc_STRVAR(learn_arrays_doc,
"learn_arrays(probes, /)\n--\n\n"
"Compare what C finds in some ndarrays with what Python says; TypeError if they\n"
"differ.  Needed once, before the hooks of builtin functions.");

static PyMethodDef module_methods[] = {
    {"install", install, METH_VARARGS, install_doc},
    {"uninstall", uninstall, METH_VARARGS, uninstall_doc},
    {"set_owner", set_owner, METH_O, set_owner_doc},
    {"is_owner", is_owner, METH_O, is_owner_doc},
    {"learn_arrays", learn_arrays, METH_O, learn_arrays_doc},
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
    .m_doc = "Gated hooks in C functions of NumPy and SciPy; see np_ozaki.hooks.",
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
    PyObject *arithmetic_type = arithmetic_scope_type();
    int failed = scope_type == NULL || arithmetic_type == NULL
                 || PyModule_AddObjectRef(module, "UnroutedScope", scope_type) < 0
                 || PyModule_AddObjectRef(module, "ArithmeticScope", arithmetic_type) < 0
                 || PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0;
    Py_XDECREF(scope_type);
    Py_XDECREF(arithmetic_type);
    if (failed) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
