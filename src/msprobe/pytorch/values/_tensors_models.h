/* SPDX-License-Identifier: Apache-2.0
 *
 * A part of _tensors.c: what models hold, found again in each step.
 */

/* The modules that a module is in. */
struct around {
    PyObject *module;
    const struct around *around;
};

static int is_open(const struct around *at, const PyObject *module)
{
    for (; at; at = at->around)
        if (at->module == module) return 1;
    return 0;
}

/* The attributes of `ModelContents` that are filled, and the names of the kinds of tensors. */
struct contents {
    PyObject *names, *tensors, *same_as, *modules, *training, *parameter, *buffer;
};

static int add_tensor(const struct contents *to, PyObject *path, PyObject *key, PyObject *tensor,
                      PyObject *kind)
{
    PyObject *name = PyUnicode_Concat(path, key), *address = PyLong_FromVoidPtr(tensor);
    PyObject *first = name && address ? PyDict_SetDefault(to->names, address, name) : NULL;
    PyObject *row = first ? PyTuple_Pack(3, name, tensor, kind) : NULL;
    int failed = !row || PyList_Append(to->tensors, row) < 0 ||
                 PyList_Append(to->same_as, first == name ? Py_None : first) < 0;
    Py_XDECREF(row);
    Py_XDECREF(address);
    Py_XDECREF(name);
    return failed ? -1 : 0;
}

/* Return a dictionary of a module; NULL with an exception if it is one with ways of its own. */
static PyObject *plain_table(PyObject *module, PyObject *name)
{
    PyObject *table = PyObject_GetAttr(module, name);
    if (table && !PyDict_CheckExact(table)) {
        PyErr_SetString(PyExc_TypeError, "a module keeps its parts in another way");
        Py_CLEAR(table);
    }
    return table;
}

static int add_tensors(const struct contents *to, PyObject *module, PyObject *path, PyObject *name,
                       PyObject *kind)
{
    PyObject *table = plain_table(module, name), *key, *tensor;
    Py_ssize_t at = 0;
    int failed = !table;
    while (!failed && PyDict_Next(table, &at, &key, &tensor))
        failed = tensor != Py_None && add_tensor(to, path, key, tensor, kind) < 0;
    Py_XDECREF(table);
    return failed ? -1 : 0;
}

static PyObject *path_inside(PyObject *path, PyObject *key)
{
    static PyObject *compiled_part, *dot;
    if (!dot && (!(compiled_part = PyUnicode_InternFromString("_orig_mod")) ||
                 !(dot = PyUnicode_InternFromString("."))))
        return NULL;
    int is_compiled = PyObject_RichCompareBool(key, compiled_part, Py_EQ);
    if (is_compiled) return is_compiled < 0 ? NULL : Py_NewRef(path);
    PyObject *joined = PyUnicode_Concat(path, key);
    PyObject *inside = joined ? PyUnicode_Concat(joined, dot) : NULL;
    Py_XDECREF(joined);
    return inside;
}

/* As `ModelContents.add`. */
static int add_module(const struct contents *to, PyObject *module, PyObject *path, PyObject *mode,
                      const struct around *around)
{
    if (PyList_Append(to->modules, module) < 0) return -1;
    PyObject *training = PyObject_GetAttr(module, names.training);
    int failed = !training;
    if (!failed && training != mode) {
        Py_ssize_t length = PyUnicode_GET_LENGTH(path);
        PyObject *name = PyUnicode_Substring(path, 0, length ? length - 1 : 0);
        failed = !name || PyDict_SetItem(to->training, name, training) < 0;
        Py_XDECREF(name);
    }
    failed = failed || add_tensors(to, module, path, names._parameters, to->parameter) < 0 ||
             add_tensors(to, module, path, names._buffers, to->buffer) < 0;
    PyObject *table = failed ? NULL : plain_table(module, names._modules), *key, *inner;
    struct around here = {module, around};
    Py_ssize_t at = 0;
    failed = !table || Py_EnterRecursiveCall(" in the parts of a module");
    int is_deeper = !failed;
    while (!failed && PyDict_Next(table, &at, &key, &inner)) {
        if (inner == Py_None || is_open(&here, inner)) continue; /* a module may hold one around it */
        PyObject *inside = path_inside(path, key);
        failed = !inside || add_module(to, inner, inside, training, &here) < 0;
        Py_XDECREF(inside);
    }
    if (is_deeper) Py_LeaveRecursiveCall();
    Py_XDECREF(table);
    Py_XDECREF(training);
    return failed ? -1 : 0;
}

static PyObject *add_model(PyObject *module, PyObject *args)
{
    PyObject *model, *path;
    struct contents to;
    if (!PyArg_ParseTuple(args, "OU(O!O!O!O!O!OO)", &model, &path, &PyDict_Type, &to.names,
                          &PyList_Type, &to.tensors, &PyList_Type, &to.same_as, &PyList_Type,
                          &to.modules, &PyDict_Type, &to.training, &to.parameter, &to.buffer))
        return NULL;
    if (add_module(&to, model, path, Py_None, NULL) < 0) return NULL;
    Py_RETURN_NONE;
}

/* Everything that gives the tensors of models their names and places. */
struct parts {
    PyObject *tensors;
    const PyObject **addresses;
    size_t count, room;
};

static int note_part(struct parts *to, const PyObject *part)
{
    if (to->count == to->room) {
        size_t room = to->room ? 2 * to->room : 1024;
        const PyObject **larger = PyMem_Realloc(to->addresses, room * sizeof *larger);
        if (!larger) return PyErr_NoMemory(), -1;
        to->addresses = larger;
        to->room = room;
    }
    to->addresses[to->count++] = part;
    return 0;
}

static int note_parts(struct parts *to, PyObject *module, const struct around *around)
{
    PyObject *tables[] = {names._parameters, names._buffers, names._modules}, *key, *part;
    struct around here = {module, around};
    int failed = note_part(to, module) < 0 || Py_EnterRecursiveCall(" in the parts of a module");
    if (failed) return -1;
    for (int i = 0; !failed && i < 3; i++) {
        PyObject *table = plain_table(module, tables[i]);
        Py_ssize_t at = 0;
        failed = !table;
        while (!failed && PyDict_Next(table, &at, &key, &part)) {
            if (part == Py_None || (i == 2 && is_open(&here, part))) continue;
            failed = note_part(to, key) < 0 ||
                     (i == 2 ? note_parts(to, part, &here) < 0
                             : note_part(to, part) < 0 || PyList_Append(to->tensors, part) < 0);
        }
        Py_XDECREF(table);
    }
    Py_LeaveRecursiveCall();
    return failed ? -1 : 0;
}

static PyObject *find_tensors(PyObject *module, PyObject *models)
{
    struct parts parts = {PyList_New(0)};
    int failed = !parts.tensors || !PyList_CheckExact(models);
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(models); i++)
        failed = note_parts(&parts, PyList_GET_ITEM(models, i), NULL) < 0;
    Py_ssize_t size_bytes = (Py_ssize_t)(parts.count * sizeof *parts.addresses);
    PyObject *key = failed ? NULL : PyBytes_FromStringAndSize((const char *)parts.addresses, size_bytes);
    PyObject *found = key ? PyTuple_Pack(2, parts.tensors, key) : NULL;
    if (!found && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "expected a list of modules");
    Py_XDECREF(key);
    Py_XDECREF(parts.tensors);
    PyMem_Free(parts.addresses);
    return found;
}
