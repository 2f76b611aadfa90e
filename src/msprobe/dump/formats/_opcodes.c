/* SPDX-License-Identifier: Apache-2.0
 *
 * msprobe.dump.formats._opcodes: the frequent opcodes of a pickle that is read as data, exactly as
 * _Machine in pickle.py carries them out. It stops in front of every other opcode, and of all that
 * is damaged or unusual, and leaves that to Python. It imports and calls nothing that a pickle names.
 */
#include "../../capture/_limited_api.h"

/* What `setup` was given: GlobalName of OrderedDict, Described, PersistentId, the mark. */
static struct {
    PyObject *ordered_dict, *described, *reference, *mark;
} given;

static uint32_t number(const unsigned char *bytes, int count)
{
    uint32_t found = 0;
    for (int each = 0; each < count; each++) found |= (uint32_t)bytes[each] << 8 * each;
    return found;
}

/* Push a new reference; it is given away. */
static int push(PyObject *stack, PyObject *value)
{
    if (!value) return -1;
    int error = PyList_Append(stack, value);
    Py_DECREF(value);
    return error;
}

/* Replace the uppermost `count` objects by one, whose reference is given away. */
static int replace(PyObject *stack, Py_ssize_t count, PyObject *value)
{
    Py_ssize_t size = PyList_GET_SIZE(stack);
    if (!value || PyList_SetSlice(stack, size - count, size, NULL) < 0) {
        Py_XDECREF(value);
        return -1;
    }
    return push(stack, value);
}

/* A tuple of the uppermost `count` objects; tuples of one small number are shared. */
static PyObject *tuple_of(PyObject *stack, Py_ssize_t count, PyObject *singles)
{
    Py_ssize_t size = PyList_GET_SIZE(stack);
    PyObject *last = count == 1 ? PyList_GET_ITEM(stack, size - 1) : NULL;
    if (last && PyLong_CheckExact(last)) {
        PyObject *shared = PyDict_GetItemWithError(singles, last);
        if (shared) return Py_NewRef(shared);
        if (PyErr_Occurred()) return NULL;
        PyObject *made = PyTuple_Pack(1, last);
        if (made && PyDict_SetItem(singles, last, made) < 0) Py_CLEAR(made);
        return made;
    }
    PyObject *items = PyList_GetSlice(stack, size - count, size);
    PyObject *made = items ? PyList_AsTuple(items) : NULL;
    Py_XDECREF(items);
    return made;
}

/* Number of objects above the last mark; -1 if there is no mark. */
static Py_ssize_t above_mark(PyObject *stack)
{
    Py_ssize_t size = PyList_GET_SIZE(stack);
    for (Py_ssize_t place = size; place-- > 0;)
        if (PyList_GET_ITEM(stack, place) == given.mark) return size - place - 1;
    return -1;
}

/* Whether a reference to outside is one to a storage. */
static int is_storage(PyObject *value)
{
    return PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) > 1
           && PyUnicode_CheckExact(PyTuple_GET_ITEM(value, 0))
           && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(value, 0), "storage") == 0;
}

static int reduce(PyObject *stack)
{
    Py_ssize_t size = PyList_GET_SIZE(stack);
    PyObject *function = PyList_GET_ITEM(stack, size - 2);
    PyObject *arguments = PyList_GET_ITEM(stack, size - 1);
    if (function == given.ordered_dict) return replace(stack, 2, PyDict_New());
    PyObject *parts[] = {function, arguments};
    return replace(stack, 2, PyObject_Vectorcall(given.described, parts, 2, NULL));
}

/* Carry out the opcode at `at`, with `left` bytes behind it. Return the bytes of its argument, -1
 * for an error, -2 for one that is left to Python. */
static Py_ssize_t carry_out(PyObject *stack, PyObject *memo, PyObject *singles,
                            const unsigned char *at, Py_ssize_t left)
{
    static const Py_ssize_t ARGUMENTS[256] = {
        ['h'] = 1, ['j'] = 4, ['q'] = 1, ['r'] = 4, ['K'] = 1, ['M'] = 2, ['X'] = 4,
    };
    Py_ssize_t size = PyList_GET_SIZE(stack), length = ARGUMENTS[*at], count;
    uint32_t argument = left >= length ? number(at + 1, (int)length) : 0;
    if (left < length) return -2;
    int error = 0;
    switch (*at) {
    case 'h':
    case 'j':
        if (argument >= (uint64_t)PyList_GET_SIZE(memo)) return -2;
        error = PyList_Append(stack, PyList_GET_ITEM(memo, argument));
        break;
    case 'q':
    case 'r':
        if (argument != (uint64_t)PyList_GET_SIZE(memo) || !size) return -2;
        error = PyList_Append(memo, PyList_GET_ITEM(stack, size - 1));
        break;
    case 'K':
    case 'M':
        error = push(stack, PyLong_FromUnsignedLong(argument));
        break;
    case 'X':
        if (argument > left - length) return -2;
        error = push(stack, PyUnicode_DecodeUTF8((const char *)at + 5, argument, "surrogatepass"));
        if (error && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear();
            return -2;
        }
        length += argument;
        break;
    case '(':
        error = PyList_Append(stack, given.mark);
        break;
    case 't':
        count = above_mark(stack);
        if (count < 0) return -2;
        /* Never shared: a tuple of one is written without a mark. */
        PyObject *items = PyList_GetSlice(stack, size - count, size);
        PyObject *made = items ? PyList_AsTuple(items) : NULL;
        Py_XDECREF(items);
        error = replace(stack, count + 1, made);
        break;
    case ')':
        error = push(stack, PyTuple_New(0));
        break;
    case 0x85:
    case 0x86:
    case 0x87:
        count = *at - 0x84;
        if (size < count) return -2;
        error = replace(stack, count, tuple_of(stack, count, singles));
        break;
    case 0x88:
    case 0x89:
        error = push(stack, PyBool_FromLong(*at == 0x88));
        break;
    case 'R':
        if (size < 2) return -2;
        /* Entries that such a dict is made with are left to Python. */
        if (PyList_GET_ITEM(stack, size - 2) == given.ordered_dict
            && PyObject_IsTrue(PyList_GET_ITEM(stack, size - 1)) != 0)
            return -2;
        error = reduce(stack);
        break;
    case 'Q':
        if (!size || !is_storage(PyList_GET_ITEM(stack, size - 1))) return -2;
        error = replace(stack, 1,
                        PyObject_CallOneArg(given.reference, PyList_GET_ITEM(stack, size - 1)));
        break;
    default:
        return -2;
    }
    return error ? -1 : length;
}

static PyObject *run(PyObject *module, PyObject *args)
{
    PyObject *pickled, *stack, *memo, *singles;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(args, "O!nO!O!O!", &PyBytes_Type, &pickled, &at, &PyList_Type, &stack,
                          &PyList_Type, &memo, &PyDict_Type, &singles))
        return NULL;
    const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(pickled);
    Py_ssize_t end = PyBytes_GET_SIZE(pickled);
    while (at >= 0 && at < end) {
        Py_ssize_t length = carry_out(stack, memo, singles, bytes + at, end - at - 1);
        if (length == -1) return NULL;
        if (length == -2) break;
        at += 1 + length;
    }
    return PyLong_FromSsize_t(at);
}

static PyObject *setup(PyObject *module, PyObject *args)
{
    if (!PyArg_ParseTuple(args, "OOOO", &given.ordered_dict, &given.described, &given.reference,
                          &given.mark))
        return NULL;
    Py_INCREF(args); /* keeps all of them for ever */
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"setup", setup, METH_VARARGS,
     "setup(OrderedDict's name, Described, PersistentId, mark): call it once"},
    {"run", run, METH_VARARGS,
     "run(pickled, at, stack, memo, singles) -> the place of the first opcode that is not frequent"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_opcodes", "Frequent opcodes of a pickle.", -1, METHODS, NULL, NULL, NULL,
    NULL,
};

PyMODINIT_FUNC PyInit__opcodes(void)
{
    return PyModule_Create(&MODULE);
}
