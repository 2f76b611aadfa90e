/* SPDX-License-Identifier: Apache-2.0
 *
 * msprobe.dump._lines: the lines of a journal that are not in its file yet, and where in it each
 * record lies; whether a tree of facts holds NaN or an infinity; the rows of a signature. Everything
 * is as in lines.py, facts.py and signature_file.py.
 *
 * No lock is needed: a line is put together first, by code that may run Python's, and then added
 * with its entry of the index without giving Python's lock away.
 */
#include "../capture/_limited_api.h"

/* Bytes of memory that are kept for the next lines. */
#define LARGEST_KEPT (1 << 20)

/* What `setup` was given. */
static struct {
    PyObject *raw, *span, *call, *encode, *encode_text, *structure, *astuple;
    PyObject *order_name, *parent_name, *stack_name; /* attributes of a `Call` */
} given;

/* ---- text ------------------------------------------------------------------------------------ */

/* Bytes in the making. */
struct text {
    char *start;
    size_t used, capacity;
};

static int reserve(struct text *text, size_t count)
{
    if (text->used + count <= text->capacity) return 0;
    size_t capacity = 2 * (text->used + count);
    char *start = PyMem_Realloc(text->start, capacity);
    if (!start) return PyErr_NoMemory(), -1;
    text->start = start;
    text->capacity = capacity;
    return 0;
}

static int put_bytes(struct text *text, const char *bytes, size_t count)
{
    if (reserve(text, count) < 0) return -1;
    memcpy(text->start + text->used, bytes, count);
    text->used += count;
    return 0;
}

static int put(struct text *text, const char *words)
{
    return put_bytes(text, words, strlen(words));
}

static int put_buffer(struct text *text, PyObject *object)
{
    Py_buffer buffer;
    if (!object || PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE) < 0) return -1;
    int failed = put_bytes(text, buffer.buf, (size_t)buffer.len);
    PyBuffer_Release(&buffer);
    return failed;
}

/* Put the result of a call, bytes, and release it; -1 with an exception. */
static int take_buffer(struct text *text, PyObject *bytes)
{
    int failed = put_buffer(text, bytes);
    Py_XDECREF(bytes);
    return failed;
}

static int put_int(struct text *text, int64_t number)
{
    char digits[24];
    return put_bytes(text, digits, (size_t)PyOS_snprintf(digits, sizeof digits, "%lld",
                                                         (long long)number));
}

/* Put a text as JSON. */
static int put_name(struct text *text, PyObject *name)
{
    const char *characters = PyUnicode_CheckExact(name) ? ascii_of(name) : NULL;
    int is_plain = characters != NULL;
    Py_ssize_t count = is_plain ? PyUnicode_GET_LENGTH(name) : 0;
    for (Py_ssize_t i = 0; i < count && is_plain; i++)
        is_plain = characters[i] >= ' ' && characters[i] < 127 && characters[i] != '"' &&
                   characters[i] != '\\';
    if (!is_plain) return take_buffer(text, PyObject_CallOneArg(given.encode_text, name));
    return put(text, "\"") || put_bytes(text, characters, (size_t)count) || put(text, "\"") ? -1 : 0;
}

/* Put a part of a record that is encoded already, nothing, or anything else. */
static int put_leaf(struct text *text, PyObject *value)
{
    if (value == Py_None) return put(text, "null");
    if ((PyObject *)Py_TYPE(value) == given.raw) return put_buffer(text, value);
    return take_buffer(text, PyObject_CallOneArg(given.encode, value));
}

static int put_part(struct text *text, PyObject *value)
{
    if (!PyList_CheckExact(value)) return put_leaf(text, value);
    int failed = put(text, "[");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value) && !failed; i++) {
        PyObject *one = Py_NewRef(PyList_GET_ITEM(value, i));
        failed = (i && put(text, ",")) || put_leaf(text, one);
        Py_DECREF(one);
    }
    return failed || put(text, "]") ? -1 : 0;
}

static int has_names_only(PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value))
        if (!PyUnicode_CheckExact(key)) return 0;
    return 1;
}

/* Put the data of a record: a dict by its parts, as most of them are encoded already. */
static int put_data(struct text *text, PyObject *data)
{
    if (!PyDict_CheckExact(data) || !has_names_only(data)) return put_leaf(text, data);
    PyObject *items = PyDict_Items(data);
    int failed = !items || put(text, "{");
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        failed = (i && put(text, ",")) || put_name(text, PyTuple_GET_ITEM(item, 0)) ||
                 put(text, ":") || put_part(text, PyTuple_GET_ITEM(item, 1));
    }
    Py_XDECREF(items);
    return failed || put(text, "}") ? -1 : 0;
}

/* ---- lines ----------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    struct text waiting;
    Py_ssize_t size_bytes; /* of all lines so far */
    PyObject *records, *calls;
} Lines;

static int Lines_init(Lines *self, PyObject *args, PyObject *kwargs)
{
    PyObject *records, *calls;
    if (!PyArg_ParseTuple(args, "nO!O!", &self->size_bytes, &PyDict_Type, &records, &PyDict_Type,
                          &calls))
        return -1;
    Py_XSETREF(self->records, Py_NewRef(records));
    Py_XSETREF(self->calls, Py_NewRef(calls));
    return 0;
}

static void Lines_dealloc(Lines *self)
{
    PyMem_Free(self->waiting.start);
    Py_XDECREF(self->records);
    Py_XDECREF(self->calls);
    free_object(self, PyObject_Free);
}

/* Add a whole line; return the size of what waits. */
static PyObject *add(Lines *self, const struct text *line)
{
    if (put_bytes(&self->waiting, line->start, line->used) < 0) return NULL;
    self->size_bytes += (Py_ssize_t)line->used;
    return PyLong_FromSize_t(self->waiting.used);
}

/* Add a line, then an entry under its name to a table of the index. */
static PyObject *add_entry(Lines *self, const struct text *line, PyObject *table, PyObject *name,
                           PyObject *entry)
{
    PyObject *size = entry && reserve(&self->waiting, line->used) == 0 ? add(self, line) : NULL;
    if (size && PyDict_SetItem(table, name, entry) < 0) Py_CLEAR(size);
    Py_XDECREF(entry);
    return size;
}

static PyObject *Lines_record(Lines *self, PyObject *args)
{
    PyObject *name, *data, *size = NULL;
    Py_ssize_t order;
    if (!PyArg_ParseTuple(args, "UnO", &name, &order, &data)) return NULL;
    struct text line = {0};
    if (!put(&line, "[\"r\",") && !put_int(&line, order) && !put(&line, ",") &&
        !put_name(&line, name) && !put(&line, ",")) {
        size_t begin = line.used;
        if (!put_data(&line, data)) {
            Py_ssize_t length = (Py_ssize_t)(line.used - begin);
            if (!put(&line, "]\n"))
                size = add_entry(self, &line, self->records, name,
                                 PyObject_CallFunction(given.span, "nnn", order,
                                                       self->size_bytes + (Py_ssize_t)begin,
                                                       length));
        }
    }
    PyMem_Free(line.start);
    return size;
}

static PyObject *Lines_call(Lines *self, PyObject *args)
{
    PyObject *name, *parent, *stack, *size = NULL;
    Py_ssize_t order;
    if (!PyArg_ParseTuple(args, "UnOO", &name, &order, &parent, &stack)) return NULL;
    int64_t number = stack == Py_None ? 0 : PyLong_AsLongLong(stack);
    if (number == -1 && PyErr_Occurred()) return NULL;
    struct text line = {0};
    if (!put(&line, "[\"c\",") && !put_int(&line, order) && !put(&line, ",") &&
        !put_name(&line, name) && !put(&line, ",") &&
        !(parent == Py_None ? put(&line, "null") : put_name(&line, parent)) && !put(&line, ",") &&
        !(stack == Py_None ? put(&line, "null") : put_int(&line, number)) && !put(&line, "]\n"))
        size = add_entry(self, &line, self->calls, name,
                         PyObject_CallFunction(given.call, "nOO", order, parent, stack));
    PyMem_Free(line.start);
    return size;
}

static PyObject *Lines_line(Lines *self, PyObject *bytes)
{
    struct text line = {0};
    PyObject *size = put_buffer(&line, bytes) < 0 ? NULL : add(self, &line);
    PyMem_Free(line.start);
    Py_XDECREF(size);
    return size ? PyLong_FromSsize_t(self->size_bytes) : NULL;
}

static PyObject *Lines_take(Lines *self, PyObject *ignored)
{
    PyObject *bytes =
        PyBytes_FromStringAndSize(self->waiting.start, (Py_ssize_t)self->waiting.used);
    if (bytes) self->waiting.used = 0;
    if (bytes && self->waiting.capacity > LARGEST_KEPT) {
        PyMem_Free(self->waiting.start);
        self->waiting = (struct text){0};
    }
    return bytes;
}

static PyMethodDef LINES_METHODS[] = {
    {"record", (PyCFunction)Lines_record, METH_VARARGS,
     "record(name, order, data) -> bytes that wait"},
    {"call", (PyCFunction)Lines_call, METH_VARARGS,
     "call(name, order, parent | None, stack | None) -> bytes that wait"},
    {"line", (PyCFunction)Lines_line, METH_O, "line(bytes) -> the end of this line in the journal"},
    {"take", (PyCFunction)Lines_take, METH_NOARGS, "take() -> the lines, which no longer wait"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef LINES_MEMBERS[] = {
    {"size_bytes", T_PYSSIZET, offsetof(Lines, size_bytes), READONLY, "size of all lines so far"},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot LINES_SLOTS[] = {
    {Py_tp_new, (void *)PyType_GenericNew},
    {Py_tp_init, (void *)Lines_init},
    {Py_tp_dealloc, (void *)Lines_dealloc},
    {Py_tp_methods, LINES_METHODS},
    {Py_tp_members, LINES_MEMBERS},
    {Py_tp_doc, (void *)"Lines(size_bytes, records, calls): see msprobe.dump.lines"},
    {0, NULL},
};

static PyType_Spec LINES_SPEC = {
    .name = "msprobe.dump._lines.Lines",
    .basicsize = sizeof(Lines),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = LINES_SLOTS,
};

/* ---- records of a journal ---------------------------------------------------------------------- */

/* Where the bytes of a record lie; 0, or -1 with an exception. */
static int find_span(PyObject *records, PyObject *name, Py_ssize_t *offset, Py_ssize_t *length)
{
    PyObject *span = PyDict_GetItemWithError(records, name);
    PyObject *begin = span ? PyObject_GetAttrString(span, "offset") : NULL;
    PyObject *size = begin ? PyObject_GetAttrString(span, "length") : NULL;
    if (size) {
        *offset = PyLong_AsSsize_t(begin);
        *length = PyLong_AsSsize_t(size);
    } else if (!PyErr_Occurred()) {
        PyErr_SetObject(PyExc_KeyError, name);
    }
    Py_XDECREF(begin);
    Py_XDECREF(size);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *extent(PyObject *module, PyObject *args)
{
    PyObject *records, *names;
    Py_ssize_t first, most, low = PY_SSIZE_T_MAX, high = 0, size = 0, offset, length;
    if (!PyArg_ParseTuple(args, "O!O!nn", &PyDict_Type, &records, &PyList_Type, &names, &first,
                          &most))
        return NULL;
    while (first < PyList_GET_SIZE(names) && size < most) {
        if (find_span(records, PyList_GET_ITEM(names, first), &offset, &length) < 0) return NULL;
        if (offset < low) low = offset;
        if (offset + length > high) high = offset + length;
        size += length;
        first++;
    }
    return Py_BuildValue("nnn", first, low, high);
}

static PyObject *join_records(PyObject *module, PyObject *args)
{
    PyObject *records, *names, *result = NULL;
    Py_ssize_t first, last, base, offset, length;
    Py_buffer bytes;
    if (!PyArg_ParseTuple(args, "O!O!nny*n", &PyDict_Type, &records, &PyList_Type, &names, &first,
                          &last, &bytes, &base))
        return NULL;
    struct text text = {0};
    int failed = reserve(&text, (size_t)bytes.len) < 0;
    for (Py_ssize_t i = first; i < last && i < PyList_GET_SIZE(names) && !failed; i++) {
        PyObject *name = PyList_GET_ITEM(names, i);
        failed = find_span(records, name, &offset, &length) < 0;
        if (!failed && (offset < base || length < 0 || offset - base + length > bytes.len)) {
            PyErr_SetString(PyExc_ValueError, "a record lies elsewhere");
            failed = 1;
        }
        failed = failed || (i > first && put(&text, ",\n")) || put_name(&text, name) ||
                 put(&text, ": ") ||
                 put_bytes(&text, (const char *)bytes.buf + (offset - base), (size_t)length);
    }
    if (!failed) result = PyBytes_FromStringAndSize(text.start, (Py_ssize_t)text.used);
    PyMem_Free(text.start);
    PyBuffer_Release(&bytes);
    return result;
}

/* ---- calls of a journal ------------------------------------------------------------------------ */

/* A call by its order; those of one order stay as they came. */
struct placed {
    int64_t order;
    Py_ssize_t index;
};

static int compare_placed(const void *left, const void *right)
{
    const struct placed *one = left, *other = right;
    if (one->order != other->order) return one->order < other->order ? -1 : 1;
    return one->index < other->index ? -1 : 1;
}

/* Return the calls of a table, pairs of name and `Call`, by their order; NULL with an exception. */
static struct placed *place_calls(PyObject *items)
{
    Py_ssize_t count = PyList_GET_SIZE(items);
    struct placed *placed = PyMem_Malloc(((size_t)count + 1) * sizeof *placed);
    if (!placed) return (struct placed *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++) {
        PyObject *call = PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 1);
        PyObject *order = PyObject_GetAttr(call, given.order_name);
        placed[i] = (struct placed){order ? PyLong_AsLongLong(order) : 0, i};
        Py_XDECREF(order);
    }
    if (PyErr_Occurred()) {
        PyMem_Free(placed);
        return NULL;
    }
    qsort(placed, (size_t)count, sizeof *placed, compare_placed);
    return placed;
}

/* Add the name of a call to those with its stack, a dictionary of byte arrays. */
static int add_user(PyObject *users, PyObject *stack, const struct text *name)
{
    PyObject *names = PyDict_GetItemWithError(users, stack);
    if (!names && !PyErr_Occurred() && (names = PyByteArray_FromStringAndSize(NULL, 0))) {
        int failed = PyDict_SetItem(users, stack, names) < 0;
        Py_DECREF(names); /* the dictionary has it */
        if (failed) return -1;
    }
    if (!names) return -1;
    Py_ssize_t used = PyByteArray_GET_SIZE(names), comma = used > 0;
    if (PyByteArray_Resize(names, used + comma + (Py_ssize_t)name->used) < 0) return -1;
    char *end = PyByteArray_AS_STRING(names) + used;
    if (comma) *end++ = ',';
    memcpy(end, name->start, name->used);
    return 0;
}

/* Put the line of a call into `construct`, and its name to those with its stack. */
static int put_call(struct text *construct, PyObject *users, struct text *name, PyObject *item,
                    int is_outside)
{
    PyObject *call = PyTuple_GET_ITEM(item, 1);
    PyObject *parent = PyObject_GetAttr(call, given.parent_name);
    PyObject *stack = parent ? PyObject_GetAttr(call, given.stack_name) : NULL;
    name->used = 0;
    int failed = !stack || put_name(name, PyTuple_GET_ITEM(item, 0));
    if (!failed && !is_outside)
        failed = (construct->used && put(construct, ",\n")) ||
                 put_bytes(construct, name->start, name->used) || put(construct, ": ") ||
                 (parent == Py_None ? put(construct, "null") : put_name(construct, parent));
    if (!failed && stack != Py_None) failed = add_user(users, stack, name);
    Py_XDECREF(parent);
    Py_XDECREF(stack);
    return failed ? -1 : 0;
}

static PyObject *join_calls(PyObject *module, PyObject *args)
{
    PyObject *calls, *result = NULL;
    long long outside;
    if (!PyArg_ParseTuple(args, "O!L", &PyDict_Type, &calls, &outside)) return NULL;
    PyObject *items = PyDict_Items(calls), *users = items ? PyDict_New() : NULL;
    struct placed *placed = users ? place_calls(items) : NULL;
    struct text construct = {0}, name = {0};
    int failed = !placed;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(items); i++)
        failed = put_call(&construct, users, &name, PyList_GET_ITEM(items, placed[i].index),
                          placed[i].order == outside) < 0;
    if (!failed) result = Py_BuildValue("y#O", construct.start ? construct.start : "",
                                        (Py_ssize_t)construct.used, users);
    PyMem_Free(construct.start);
    PyMem_Free(name.start);
    PyMem_Free(placed);
    Py_XDECREF(users);
    Py_XDECREF(items);
    return result;
}

/* ---- NaN and infinities ------------------------------------------------------------------------ */

static int is_nonfinite(PyObject *tree);

/* Whether an item is or holds one; it stays alive meanwhile. */
static int is_item_nonfinite(PyObject *item)
{
    if (PyFloat_CheckExact(item)) return !isfinite(PyFloat_AS_DOUBLE(item));
    Py_INCREF(item);
    int found = is_nonfinite(item);
    Py_DECREF(item);
    return found;
}

static int is_inside_nonfinite(PyObject *tree)
{
    int found = 0;
    if (PyDict_Check(tree)) {
        PyObject *key, *value;
        Py_ssize_t position = 0;
        while (!found && PyDict_Next(tree, &position, &key, &value))
            found = is_item_nonfinite(value);
        return found;
    }
    PyObject *items = PyList_Check(tree) || PyTuple_Check(tree)
                          ? Py_NewRef(tree)
                          : PyObject_CallOneArg(given.astuple, tree);
    if (!items) return -1;
    for (Py_ssize_t i = 0; !found && i < PySequence_Fast_GET_SIZE(items); i++)
        found = is_item_nonfinite(PySequence_Fast_GET_ITEM(items, i));
    Py_DECREF(items);
    return found;
}

/* Whether a tree is or holds a NaN or an infinity; -1 with an exception. */
static int is_nonfinite(PyObject *tree)
{
    if (PyFloat_Check(tree)) return !isfinite(PyFloat_AS_DOUBLE(tree));
    if (tree == Py_None || PyUnicode_Check(tree) || PyLong_Check(tree)) return 0;
    if (!PyDict_Check(tree) && !PyList_Check(tree) && !PyTuple_Check(tree) &&
        !PyObject_TypeCheck(tree, (PyTypeObject *)given.structure))
        return 0;
    if (Py_EnterRecursiveCall(" in facts")) return -1;
    int found = is_inside_nonfinite(tree);
    Py_LeaveRecursiveCall();
    return found;
}

static PyObject *holds_nonfinite(PyObject *module, PyObject *tree)
{
    int found = is_nonfinite(tree);
    return found < 0 ? NULL : PyBool_FromLong(found);
}

/* ---- signatures ------------------------------------------------------------------------------ */

enum { QUANTITIES = 3 };

/* As PRINT and ENTRY in signature_file.py. */
struct print {
    uint64_t checksum;
    double norm, projections[2];
};

struct entry {
    uint64_t checksum;
    double norm;
    float projections[2];
};

/* Take the memory of an array with `count` elements, or with any number if that is negative; return how
 * many, -1 with an exception. */
static Py_ssize_t take_array(PyObject *array, Py_buffer *into, size_t itemsize, Py_ssize_t count,
                             int flags)
{
    if (PyObject_GetBuffer(array, into, PyBUF_C_CONTIGUOUS | flags) < 0) return -1;
    Py_ssize_t found = into->len / (Py_ssize_t)itemsize;
    if (count < 0 || count == found) return found;
    PyErr_SetString(PyExc_ValueError, "arrays of signatures do not fit together");
    PyBuffer_Release(into);
    return -1;
}

static PyObject *fill_entries(PyObject *module, PyObject *args)
{
    PyObject *of, *to;
    Py_buffer prints, entries;
    if (!PyArg_ParseTuple(args, "OO", &of, &to)) return NULL;
    Py_ssize_t count = take_array(of, &prints, sizeof(struct print), -1, 0);
    if (count < 0) return NULL;
    if (take_array(to, &entries, sizeof(struct entry), count, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&prints);
        return NULL;
    }
    const struct print *from = prints.buf;
    Py_ssize_t updates = count / QUANTITIES * (QUANTITIES - 1);
    for (Py_ssize_t i = 0; i < count; i++) {
        struct entry *entry = (struct entry *)entries.buf + i;
        double norm = from[i].norm, both[2] = {from[i].projections[0], from[i].projections[1]};
        if (i >= updates) {
            for (int k = 0; k < 2; k++) both[k] -= from[i - updates].projections[k];
            norm = sqrt((both[0] * both[0] + both[1] * both[1]) / 2);
        }
        *entry = (struct entry){from[i].checksum, norm, {(float)both[0], (float)both[1]}};
    }
    PyBuffer_Release(&entries);
    PyBuffer_Release(&prints);
    Py_RETURN_NONE;
}

/* Sum a row of entries; return the bits that are set in any of the checksums. */
static uint64_t sum_row(const struct entry *entries, const double *signs, Py_ssize_t count,
                        uint64_t *checksums, double *sums)
{
    uint64_t bits = 0;
    double squares = 0, both[2] = {0, 0};
    for (Py_ssize_t i = 0; i < count; i++) {
        bits |= checksums[i] = entries[i].checksum;
        if (!checksums[i]) continue;
        squares += entries[i].norm * entries[i].norm;
        for (int k = 0; k < 2; k++) both[k] += entries[i].projections[k] * signs[2 * i + k];
    }
    sums[0] = bits ? sqrt(squares) : Py_NAN;
    sums[1] = both[0];
    sums[2] = both[1];
    return bits;
}

static PyObject *sum_entries(PyObject *module, PyObject *args)
{
    PyObject *arrays[4], *found = NULL;
    Py_buffer views[4];
    const size_t sizes[] = {sizeof(struct entry), 2 * sizeof(double), sizeof(uint64_t), sizeof(double)};
    if (!PyArg_ParseTuple(args, "OOOO", arrays, arrays + 1, arrays + 2, arrays + 3)) return NULL;
    Py_ssize_t count = -1;
    int taken = 0;
    for (; taken < 4; taken++) {
        Py_ssize_t expected[] = {-1, count / QUANTITIES, count, QUANTITIES * QUANTITIES};
        int flags = taken < 2 ? 0 : PyBUF_WRITABLE;
        Py_ssize_t size = take_array(arrays[taken], views + taken, sizes[taken], expected[taken], flags);
        if (size < 0) break;
        if (!taken) count = size;
    }
    if (taken == 4) {
        uint64_t bits[QUANTITIES];
        Py_ssize_t row = count / QUANTITIES;
        for (int i = 0; i < QUANTITIES; i++)
            bits[i] = sum_row((struct entry *)views[0].buf + i * row, views[1].buf, row,
                              (uint64_t *)views[2].buf + i * row, (double *)views[3].buf + i * QUANTITIES);
        found = Py_BuildValue("KKK", bits[0], bits[1], bits[2]);
    }
    while (taken) PyBuffer_Release(views + --taken);
    return found;
}

/* ---- module ---------------------------------------------------------------------------------- */

static PyObject *setup(PyObject *module, PyObject *args)
{
    if (!PyArg_ParseTuple(args, "OOOOOOO", &given.raw, &given.span, &given.call, &given.encode,
                          &given.encode_text, &given.structure, &given.astuple))
        return NULL;
    Py_INCREF(args); /* keeps all of them for ever */
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"setup", setup, METH_VARARGS,
     "setup(Raw, Span, Call, encode, encode_text, Struct, astuple): what is needed of other modules; "
     "call it once"},
    {"extent", extent, METH_VARARGS,
     "extent(records, names, first, most) -> (last, begin, end): where the records with the names from "
     "`first` to before `last` lie, which are about `most` bytes or all that are left"},
    {"join_records", join_records, METH_VARARGS,
     "join_records(records, names, first, last, bytes, begin) -> lines of such records, with a comma "
     "between; `bytes` are those of the journal from `begin`"},
    {"join_calls", join_calls, METH_VARARGS,
     "join_calls(calls, outside) -> (lines of construct.json, with a comma between; by stack the names "
     "of its calls), by order; calls with the order `outside` have no line"},
    {"fill_entries", fill_entries, METH_VARARGS,
     "fill_entries(prints, entries): see msprobe.dump.signature_file"},
    {"sum_entries", sum_entries, METH_VARARGS,
     "sum_entries(entries, signs, checksums, sums): see msprobe.dump.signature_file"},
    {"holds_nonfinite", holds_nonfinite, METH_O,
     "holds_nonfinite(tree) -> whether there is a NaN or an infinity in structs, dicts, lists, tuples"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_lines", "Lines of a journal, and where each record lies.", -1, METHODS,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__lines(void)
{
    static PyTypeObject *type;
    if (make_type(&type, &LINES_SPEC) < 0) return NULL;
    given.order_name = PyUnicode_InternFromString("order");
    given.parent_name = PyUnicode_InternFromString("parent");
    given.stack_name = PyUnicode_InternFromString("stack");
    if (!given.order_name || !given.parent_name || !given.stack_name) return NULL;
    PyObject *module = PyModule_Create(&MODULE);
    if (module && PyModule_AddObjectRef(module, "Lines", (PyObject *)type) < 0)
        Py_CLEAR(module);
    return module;
}
