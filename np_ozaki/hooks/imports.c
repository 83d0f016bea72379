/* A look at extension modules as they are imported, by CPython's _imp.exec_dynamic.
 *
 *     handler(module) -> ignored
 *
 * Called after the module was executed.  An exception becomes that of the import.
 * Why here: a program may import SciPy's BLAS inside a scope, and a finder in
 * sys.meta_path or a replaced __import__ would be seen by every program that looks.
 */
#include "hooks.h"

static int publish(hook *self, PyObject *function);
static int withdraw(hook *self);

static hook watch = {"imports", publish, withdraw, NULL, NULL, NULL};
static PyMethodDef *definition = NULL; /* static memory of CPython */

hook *
import_hook(int index)
{
    return index == 0 ? &watch : NULL;
}

static PyObject *
watched_exec_dynamic(PyObject *self, PyObject *module)
{
    PyObject *result = ((PyCFunction)native_of(&watch.native))(self, module);
    if (result == NULL) {
        return NULL;
    }
    PyObject *handler = handler_to_ask(&watch);
    if (handler == NULL) {
        if (PyErr_Occurred()) {
            Py_CLEAR(result);
        }
        return result;
    }
    PyObject *answer = answer_of(handler, PyTuple_Pack(1, module), NULL);
    if (answer == NULL) {
        Py_CLEAR(result);
    }
    Py_XDECREF(answer);
    return result;
}

static int
publish(hook *self, PyObject *function)
{
    PyMethodDef *found = method_definition(function, "exec_dynamic");
    if (found == NULL) {
        return -1;
    }
    if (found->ml_flags != METH_O) {
        PyErr_Format(PyExc_TypeError, "%R has an unknown calling convention (%d)",
                     function, found->ml_flags);
        return -1;
    }
    definition = found;
    STORE_SMALL(&self->native, (any_function)found->ml_meth);
    found->ml_meth = watched_exec_dynamic;
    return 0;
}

static int
withdraw(hook *self)
{
    if (definition->ml_meth != watched_exec_dynamic) {
        return 0;
    }
    definition->ml_meth = (PyCFunction)self->native;
    return 1;
}
