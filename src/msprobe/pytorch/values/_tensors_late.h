/* SPDX-License-Identifier: Apache-2.0
 *
 * A part of _tensors.c: texts of values whose numbers come later. A record has a mark in the place of such
 * a value's JSON; `LateText` knows the values, and puts them in when they are there.
 */

typedef struct {
    PyObject_HEAD
    PyObject *text, *values; /* bytes with marks; the values in the order of these */
} LateText;

static void LateText_dealloc(LateText *self)
{
    Py_XDECREF(self->text);
    Py_XDECREF(self->values);
    free_object(self, PyObject_Free);
}

/* Put a text with its values in the place of their marks; -1 with an exception. */
static int put_filled(struct text *text, const char *from, size_t count, PyObject *values, int *bad)
{
    const char *end = from + count;
    Py_ssize_t next = 0;
    while (from < end) {
        const char *mark = from;
        while (mark < end && (unsigned char)*mark > MARKS[1]) mark++;
        if (put_bytes(text, from, (size_t)(mark - from))) return -1;
        if (mark == end) break;
        PyObject *item = next < PyList_GET_SIZE(values) ? PyList_GET_ITEM(values, next++) : NULL;
        if (!item || !Py_IS_TYPE(item, ValueType)) {
            PyErr_SetString(PyExc_ValueError, "a mark without its value");
            return -1;
        }
        Value *value = (Value *)item;
        if (fill_value(value) < 0 || put_value_text(text, value, *mark == MARKS[1])) return -1;
        PyObject *counts = PyTuple_GET_ITEM(value->numbers, 4);
        *bad |= counts != Py_None && is_bad(counts);
        from = mark + 1;
    }
    return 0;
}

static PyObject *LateText_fill(LateText *self, PyObject *ignored)
{
    struct text text;
    begin_text(&text);
    int bad = 0;
    int failed = put_filled(&text, PyBytes_AS_STRING(self->text),
                            (size_t)PyBytes_GET_SIZE(self->text), self->values, &bad);
    PyObject *raw = end_values(&text, failed ? -1 : 1);
    PyObject *pair = raw ? PyTuple_Pack(2, raw, bad ? Py_True : Py_False) : NULL;
    Py_XDECREF(raw);
    return pair;
}

static PyMethodDef LATE_TEXT_METHODS[] = {
    {"fill", (PyCFunction)LateText_fill, METH_NOARGS,
     "fill() -> (msgspec.Raw, whether a value has a NaN or +Inf); the numbers have come"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot LATE_TEXT_SLOTS[] = {
    {Py_tp_dealloc, (void *)LateText_dealloc},
    {Py_tp_methods, LATE_TEXT_METHODS},
    {Py_tp_doc, (void *)"JSON in which the numbers of some values are still missing."},
    {0, NULL},
};

static PyType_Spec LATE_TEXT_SPEC = {
    .name = "msprobe.pytorch.values._tensors.LateText",
    .basicsize = sizeof(LateText),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = LATE_TEXT_SLOTS,
};

/* Return the text, or what becomes of it when the numbers of `values` have come. */
static PyObject *finished(PyObject *bytes, PyObject *values)
{
    if (!bytes || !values) return bytes ? PyObject_CallOneArg(torch.raw, bytes) : NULL;
    LateText *late = PyObject_New(LateText, LateTextType);
    if (!late) return NULL;
    late->text = Py_NewRef(bytes);
    late->values = Py_NewRef(values);
    return (PyObject *)late;
}
