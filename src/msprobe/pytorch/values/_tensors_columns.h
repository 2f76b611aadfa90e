/* SPDX-License-Identifier: Apache-2.0
 *
 * A part of _tensors.c: many tensors read at once, for facts, signatures and the monitor. `fill_columns`,
 * `fill_prints` and `fill_measures` differ in what they keep of each and where they put it.
 */

/* Whether the storage of a tensor reaches to its last element: one that was given back does not. */
static int is_covered(PyObject *tensor, const struct view *view)
{
    PyObject *storage = PyObject_CallMethodNoArgs(tensor, names.untyped_storage);
    int64_t size_bytes = storage ? take_int(PyObject_CallMethodNoArgs(storage, names.nbytes)) : 0;
    int64_t offset = storage ? take_int(PyObject_CallMethodNoArgs(tensor, names.storage_offset)) : 0;
    Py_XDECREF(storage);
    return view->data && offset >= 0 && (offset + view->count) * (int64_t)view->itemsize <= size_bytes;
}

/* Tensors whose elements were found to lie in one block. Asking for all that makes it one takes longer
 * than reading a small tensor, and the parameters of a model are the same in each step: one that has the
 * address, and the memory, of one that was found is asked little more. It is that tensor, or a newer one
 * of the same allocator in its place, which may show its elements with another sign. */
#define FOUND_BLOCKS (1 << 12)

static struct {
    const PyObject *tensor; /* the address alone */
    const char *data;
    int64_t count;
    int kind;
} found_blocks[FOUND_BLOCKS];

/* Whether this is a plain tensor on the CPU with elements in one block, in order; `view` is then
 * where. It has no exception. */
static int is_block(PyObject *tensor, struct view *view)
{
    size_t place = (uintptr_t)tensor / sizeof(void *) * 0x9e3779b1u >> 8 & (FOUND_BLOCKS - 1);
    int found = 0;
    if (found_blocks[place].tensor == tensor && is_plain_class(tensor) && torch.dlpack &&
        read_by_dlpack(tensor, view) == 0 && view->kind == found_blocks[place].kind &&
        view->data == found_blocks[place].data) {
        finish_view(view);
        found = view->count == found_blocks[place].count && is_dense(view, 1) &&
                is_plainly_stored(tensor, view) > 0;
    }
    PyErr_Clear();
    if (found) return 1;
    found = read_view(tensor, view) > 0 && view->count && is_dense(view, 1) &&
            is_covered(tensor, view) && !PyErr_Occurred();
    PyErr_Clear();
    if (found) {
        found_blocks[place].tensor = tensor;
        found_blocks[place].data = view->data;
        found_blocks[place].count = view->count;
        found_blocks[place].kind = view->kind;
    }
    return found;
}

/* Return `done`, 0 where a tensor is left because of an exception, -1 without memory. */
static int unless_failed(int done)
{
    if (!PyErr_Occurred()) return done;
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) return -1;
    PyErr_Clear();
    return 0;
}

/* Add a place to the list of those that are left; 0, or -1 with an exception. */
static int leave(PyObject *left, Py_ssize_t place)
{
    PyObject *number = PyLong_FromSsize_t(place);
    int failed = !number || PyList_Append(left, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

static int has_places(PyObject *tensors, Py_ssize_t count)
{
    if (PyList_GET_SIZE(tensors) == count) return 1;
    PyErr_SetString(PyExc_ValueError, "expected one place for each tensor");
    return 0;
}

/* Reading so little takes no longer than asking whether it was written. */
#define SMALL_BYTES (1 << 14)
#define FEWEST_PROBES 8
#define BYTES_OF_PROBE (1 << 15)
#define PROBE_WORDS 8 /* a line of the processor's cache */

/* A key of a large tensor in one block that changes with its memory, with torch's counter of its
 * writes, and with some of its bytes; 0 for a small one, and where torch counts no writes. */
static uint64_t probe(PyObject *tensor, const struct view *view)
{
    size_t size_bytes = (size_t)view->count * view->itemsize, count = size_bytes / BYTES_OF_PROBE;
    if (size_bytes <= SMALL_BYTES) return 0;
    if (count < FEWEST_PROBES) count = FEWEST_PROBES;
    int64_t version = version_of(tensor);
    if (version < 0) return 0;
    uint64_t key = (uint64_t)version ^ (uint64_t)(uintptr_t)view->data;
    size_t gap = (size_bytes - 8 * PROBE_WORDS) / (count - 1);
    for (size_t i = 0; i < count; i++) {
        uint64_t words[PROBE_WORDS];
        memcpy(words, view->data + i * gap, sizeof words);
        for (int k = 0; k < PROBE_WORDS; k++) {
            key = (key ^ words[k]) * 0xbf58476d1ce4e5b9u;
            key ^= key >> 31;
        }
    }
    return key ? key : 1;
}

/* How tensors are read. `known` is None, or a dictionary: address of a tensor -> (weak reference to
 * it, `probe`, bytes of what was read of it). Where the tensors are the same each time, and what was
 * read of them is kept by their places, `keys` has the `probe` of each, 0 where it is unknown. */
struct reading {
    PyObject *known, *crc32;
    uint64_t *keys;
    int asks;        /* of which tensors it is asked */
    int has_rows;    /* whether tensors are left whose elements are read in Python */
    int has_samples; /* whether elements are kept */
};

enum { ASK_NONE, ASK_ALL, ASK_FROZEN };

static int is_right_reading(const struct reading *reading)
{
    if (reading->known == Py_None || PyDict_Check(reading->known)) return 1;
    PyErr_SetString(PyExc_TypeError, "expected a dictionary or None");
    return 0;
}

static int is_asked(const struct reading *reading, PyObject *tensor)
{
    return reading->asks == ASK_ALL ||
           (reading->asks == ASK_FROZEN && (PyObject *)Py_TYPE(tensor) == torch.parameter &&
            flag(tensor, names.requires_grad) == 0);
}

/* Return what is known of a tensor, NULL perhaps with an exception. */
static PyObject *find_bytes(PyObject *known, PyObject *tensor, PyObject *address, PyObject *key)
{
    PyObject *row = PyDict_GetItemWithError(known, address);
    if (!row || PyObject_RichCompareBool(PyTuple_GET_ITEM(row, 1), key, Py_EQ) != 1) return NULL;
    PyObject *referent = PyObject_CallNoArgs(PyTuple_GET_ITEM(row, 0));
    Py_XDECREF(referent);
    return referent == tensor ? Py_NewRef(PyTuple_GET_ITEM(row, 2)) : NULL;
}

/* Keep `size` bytes of what was read of a tensor; 0, or -1 with an exception. */
static int keep_bytes(PyObject *known, PyObject *tensor, PyObject *address, PyObject *key,
                    const void *content, size_t size)
{
    PyObject *reference = PyWeakref_NewRef(tensor, NULL), *row = NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(content, (Py_ssize_t)size);
    if (reference && bytes) row = PyTuple_Pack(3, reference, key, bytes);
    int failed = !row || PyDict_SetItem(known, address, row) < 0;
    Py_XDECREF(reference);
    Py_XDECREF(bytes);
    Py_XDECREF(row);
    return failed ? -1 : 0;
}

/* How an element of a type is read; 0 of types whose elements are read in Python. */
static char format_of(int kind)
{
    static const struct {
        const char *name;
        char format;
    } FORMATS[] = {{"float32", 'f'}, {"bfloat16", 't'}, {"float16", 'e'}, {"float64", 'd'},
                   {"int64", 'q'},   {"int32", 'i'},    {"int16", 'h'},   {"int8", 'b'},
                   {"uint8", 'B'},   {"bool", 'B'}};
    const char *name = native->kind(kind).name;
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (strcmp(FORMATS[i].name, name) == 0) return FORMATS[i].format;
    return 0;
}

/* A tensor among those that are read at once. */
struct row {
    PyObject *tensor;
    PyObject *key; /* under which it will be known, or NULL */
    Py_ssize_t place;
};

/* Prepare reading a tensor; 1, or 0 where it is left, perhaps because of an exception. */
static int prepare_block(const struct reading *reading, PyObject *tensor, Py_ssize_t place,
                         struct msprobe_block *block, PyObject **key)
{
    struct view view;
    if (!is_block(tensor, &view) || (reading->has_rows && !format_of(view.kind))) return 0;
    int64_t step = reading->has_samples ? (view.count - 1) / (MSPROBE_SAMPLES - 1) : view.count;
    block->start = view.data;
    block->count = (Py_ssize_t)view.count;
    block->sample_step = step < 1 ? 1 : (Py_ssize_t)step;
    block->kind = view.kind;
    block->is_known = 0;
    *key = NULL;
    uint64_t number = reading->known == Py_None && !reading->keys ? 0 : probe(tensor, &view);
    if (reading->keys) {
        block->is_known = number && number == reading->keys[place] && is_asked(reading, tensor);
        reading->keys[place] = number;
        return !PyErr_Occurred();
    }
    if (!number) return 1;
    *key = PyLong_FromUnsignedLongLong(number);
    if (*key && is_asked(reading, tensor)) {
        PyObject *address = PyLong_FromVoidPtr(tensor);
        PyObject *bytes = address ? find_bytes(reading->known, tensor, address, *key) : NULL;
        if (bytes) memcpy(&block->print, PyBytes_AS_STRING(bytes), sizeof block->print);
        block->is_known = bytes != NULL;
        Py_XDECREF(bytes);
        Py_XDECREF(address);
    }
    if (block->is_known || PyErr_Occurred()) Py_CLEAR(*key);
    return !PyErr_Occurred();
}

/* Complete what was read of a tensor, and keep it; 0, or -1 with an exception. */
static int finish_block(const struct reading *reading, const struct row *row,
                        struct msprobe_block *block)
{
    if (!block->is_known && !block->print.has_checksum) {
        Py_ssize_t size_bytes = block->count * (Py_ssize_t)native->kind(block->kind).itemsize;
        PyObject *memory = PyMemoryView_FromMemory((char *)block->start, size_bytes, PyBUF_READ);
        block->print.checksum =
            memory ? (uint32_t)take_int(PyObject_CallOneArg(reading->crc32, memory)) : 0;
        Py_XDECREF(memory);
    }
    if (PyErr_Occurred()) return -1;
    if (!row->key) return 0;
    PyObject *address = PyLong_FromVoidPtr(row->tensor);
    int failed = !address || keep_bytes(reading->known, row->tensor, address, row->key, &block->print,
                                        sizeof block->print) < 0;
    Py_XDECREF(address);
    return failed ? -1 : 0;
}

typedef int (*put_fn)(void *state, Py_ssize_t place, const struct msprobe_block *block);

/* Read a list of tensors, and put what was found of each; return the places of those that are left. */
static PyObject *read_all(PyObject *tensors, Py_ssize_t count, const struct reading *reading,
                          put_fn put, void *state)
{
    struct msprobe_block *blocks = PyMem_Calloc((size_t)count + 1, sizeof *blocks);
    struct row *rows = PyMem_Calloc((size_t)count + 1, sizeof *rows);
    PyObject *left = NULL;
    if (!blocks || !rows) PyErr_NoMemory();
    else if (has_places(tensors, count) && is_right_reading(reading)) left = PyList_New(0);
    size_t taken = 0;
    for (Py_ssize_t i = 0; left && i < count; i++) {
        struct row *row = rows + taken;
        row->tensor = Py_NewRef(PyList_GET_ITEM(tensors, i));
        row->place = i;
        int done = unless_failed(prepare_block(reading, row->tensor, i, blocks + taken, &row->key));
        if (done > 0) taken++;
        else Py_DECREF(row->tensor);
        if (done < 0 || (!done && leave(left, i) < 0)) Py_CLEAR(left);
    }
    if (left) native->read_blocks(blocks, taken);
    for (size_t k = 0; k < taken; k++) {
        int done = left && finish_block(reading, rows + k, blocks + k) == 0 &&
                   put(state, rows[k].place, blocks + k);
        if (left && (done = unless_failed(done)) <= 0)
            if (done < 0 || leave(left, rows[k].place) < 0) Py_CLEAR(left);
        Py_XDECREF(rows[k].key);
        Py_DECREF(rows[k].tensor);
    }
    PyMem_Free(rows);
    PyMem_Free(blocks);
    return left;
}

/* As PRINT in dump/signature_file.py: NaN where there is no number. */
struct print {
    uint64_t checksum;
    double norm, projections[2];
};

static int put_print(void *prints, Py_ssize_t place, const struct msprobe_block *block)
{
    struct print *out = (struct print *)prints + place;
    const struct msprobe_print *found = &block->print;
    if (block->is_known) return 1; /* it is there */
    out->checksum = found->checksum ? found->checksum : 1;
    out->norm = found->has_norm ? found->norm : NAN;
    for (int k = 0; k < 2; k++)
        out->projections[k] = found->has_projections ? found->projections[k] : NAN;
    return 1;
}

static PyObject *fill_prints(PyObject *module, PyObject *args)
{
    PyObject *tensors, *left = NULL;
    struct reading reading = {.known = Py_None};
    Py_buffer out, keys = {0};
    if (!PyArg_ParseTuple(args, "O!w*z*iO", &PyList_Type, &tensors, &out, &keys, &reading.asks,
                          &reading.crc32))
        return NULL;
    Py_ssize_t count = out.len / (Py_ssize_t)sizeof(struct print);
    reading.keys = keys.buf;
    if (keys.buf && keys.len != count * (Py_ssize_t)sizeof *reading.keys)
        PyErr_SetString(PyExc_ValueError, "expected the key of each tensor");
    else
        left = read_all(tensors, count, &reading, put_print, out.buf);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&out);
    return left;
}

/* ---- measures, for the monitor ----------------------------------------------------------------- */

struct measuring {
    struct msprobe_measures *of;
    double threshold, *bins; /* `bins` may be NULL */
    PyObject *known;         /* as in `reading` */
};

static int measure_view(const struct measuring *measuring, Py_ssize_t place, PyObject *tensor,
                        const struct view *view)
{
    PyObject *storage = PyObject_CallMethodNoArgs(tensor, names.untyped_storage);
    int64_t size_bytes = storage ? take_int(PyObject_CallMethodNoArgs(storage, names.nbytes)) : 0;
    int64_t offset = storage ? take_int(PyObject_CallMethodNoArgs(tensor, names.storage_offset)) : 0;
    Py_XDECREF(storage);
    if (PyErr_Occurred()) return -1;
    double *bins = measuring->bins ? measuring->bins + place * MSPROBE_BINS : NULL;
    return native->measure(view->kind, view->data, view->ndim, view->shape, view->strides,
                           size_bytes - offset * (int64_t)view->itemsize, measuring->threshold, bins,
                           measuring->of + place);
}

static int fill_measure(const struct measuring *measuring, Py_ssize_t place, PyObject *tensor)
{
    struct view view;
    if (read_view(tensor, &view) <= 0) return 0;
    int may_be_known = measuring->known != Py_None && !measuring->bins && is_dense(&view, 1);
    uint64_t number = may_be_known && is_covered(tensor, &view) ? probe(tensor, &view) : 0;
    if (!number) return measure_view(measuring, place, tensor, &view) == 0;
    PyObject *address = PyLong_FromVoidPtr(tensor), *key = PyLong_FromUnsignedLongLong(number);
    PyObject *bytes = address && key ? find_bytes(measuring->known, tensor, address, key) : NULL;
    struct msprobe_measures *out = measuring->of + place;
    int failed = PyErr_Occurred() != NULL;
    if (bytes)
        memcpy(out, PyBytes_AS_STRING(bytes), sizeof *out);
    else if (!failed)
        failed = measure_view(measuring, place, tensor, &view) < 0 ||
                 keep_bytes(measuring->known, tensor, address, key, out, sizeof *out) < 0;
    Py_XDECREF(bytes);
    Py_XDECREF(address);
    Py_XDECREF(key);
    return !failed;
}

/* Measure each of a list of tensors; return the places of those that are left. */
static PyObject *measure_all(PyObject *tensors, Py_ssize_t count, const struct measuring *measuring)
{
    PyObject *left = PyList_New(0);
    for (Py_ssize_t i = 0; left && i < PyList_GET_SIZE(tensors) && i < count; i++) {
        PyObject *tensor = Py_NewRef(PyList_GET_ITEM(tensors, i));
        int done = unless_failed(fill_measure(measuring, i, tensor));
        Py_DECREF(tensor);
        if (done < 0 || (!done && leave(left, i) < 0)) Py_CLEAR(left);
    }
    return left;
}

static PyObject *fill_measures(PyObject *module, PyObject *args)
{
    PyObject *tensors, *bins, *left = NULL;
    struct measuring measuring;
    Py_buffer out, filled = {0};
    if (!PyArg_ParseTuple(args, "O!w*dOO", &PyList_Type, &tensors, &out, &measuring.threshold, &bins,
                          &measuring.known))
        return NULL;
    Py_ssize_t count = out.len / (Py_ssize_t)sizeof *measuring.of;
    if (measuring.known != Py_None && !PyDict_Check(measuring.known))
        PyErr_SetString(PyExc_TypeError, "expected a dictionary or None");
    else if (bins == Py_None || PyObject_GetBuffer(bins, &filled, PyBUF_WRITABLE) == 0) {
        measuring.of = out.buf;
        measuring.bins = filled.buf;
        if (filled.obj && filled.len != count * MSPROBE_BINS * (Py_ssize_t)sizeof(double))
            PyErr_SetString(PyExc_ValueError, "expected the bins of each tensor");
        else if (has_places(tensors, count))
            left = measure_all(tensors, count, &measuring);
        if (filled.obj) PyBuffer_Release(&filled);
    }
    PyBuffer_Release(&out);
    return left;
}

#define ELEMENT(TYPE, MAKE)                                                                     \
    {                                                                                           \
        TYPE element;                                                                           \
        memcpy(&element, at, sizeof element);                                                   \
        return MAKE(element);                                                                   \
    }

static PyObject *element_at(const char *at, char format)
{
    switch (format) {
    case 'f': ELEMENT(float, PyFloat_FromDouble)
    case 'd': ELEMENT(double, PyFloat_FromDouble)
    case 'q': ELEMENT(int64_t, PyLong_FromLongLong)
    case 'i': ELEMENT(int32_t, PyLong_FromLong)
    case 'h': ELEMENT(int16_t, PyLong_FromLong)
    case 'b': ELEMENT(int8_t, PyLong_FromLong)
    case 'B': ELEMENT(uint8_t, PyLong_FromLong)
    case 'e': return PyFloat_FromDouble(PyFloat_Unpack2(at, 1));
    default: { /* bfloat16: the upper half of a float32 */
        float element;
        char wide[4] = {0, 0, at[0], at[1]};
        memcpy(&element, wide, sizeof element);
        return PyFloat_FromDouble(element);
    }
    }
}

/* The elements at `sample_index` (dump/facts.py). */
static PyObject *samples_of(const struct msprobe_block *block, char format)
{
    Py_ssize_t count = block->count < MSPROBE_SAMPLES ? block->count : MSPROBE_SAMPLES;
    PyObject *samples = PyList_New(count);
    for (Py_ssize_t i = 0; samples && i < count; i++) {
        PyObject *element = element_at(block->samples[i], format);
        if (element) PyList_SET_ITEM(samples, i, element);
        else Py_CLEAR(samples);
    }
    return samples;
}

/* Lists with an item for each tensor. */
struct columns {
    PyObject *checksum, *norm, *projections, *samples, *elements;
    int has_samples;
};

/* Put an item, whose reference it takes, into a list. */
static int put_item(PyObject *list, Py_ssize_t place, PyObject *item)
{
    return item ? PyList_SetItem(list, place, item) : -1;
}

static PyObject *norm_of(const struct msprobe_print *content)
{
    if (!content->has_norm) Py_RETURN_NONE;
    return PyFloat_FromDouble(content->norm);
}

static PyObject *projections_of(const struct msprobe_print *content)
{
    if (!content->has_projections) Py_RETURN_NONE;
    return Py_BuildValue("(dd)", content->projections[0], content->projections[1]);
}

static int put_row(void *state, Py_ssize_t place, const struct msprobe_block *block)
{
    const struct columns *columns = state;
    char hex[9];
    snprintf(hex, sizeof hex, "%08x", (unsigned)block->print.checksum);
    PyObject *samples =
        columns->has_samples ? samples_of(block, format_of(block->kind)) : Py_NewRef(Py_None);
    return !(put_item(columns->checksum, place, PyUnicode_FromString(hex)) ||
             put_item(columns->norm, place, norm_of(&block->print)) ||
             put_item(columns->projections, place, projections_of(&block->print)) ||
             put_item(columns->samples, place, samples) ||
             put_item(columns->elements, place, PyLong_FromSsize_t(block->count)));
}

static PyObject *fill_columns(PyObject *module, PyObject *args)
{
    PyObject *tensors;
    struct columns columns;
    struct reading reading = {.has_rows = 1};
    if (!PyArg_ParseTuple(args, "O!(O!O!O!O!O!)OiOp", &PyList_Type, &tensors, &PyList_Type,
                          &columns.checksum, &PyList_Type, &columns.norm, &PyList_Type,
                          &columns.projections, &PyList_Type, &columns.samples, &PyList_Type,
                          &columns.elements, &reading.known, &reading.asks, &reading.crc32,
                          &reading.has_samples))
        return NULL;
    columns.has_samples = reading.has_samples;
    return read_all(tensors, PyList_GET_SIZE(columns.checksum), &reading, put_row, &columns);
}
