/* SPDX-License-Identifier: Apache-2.0
 *
 * msprobe.pytorch.values._tensors: describe plain tensors, each value once.
 *
 * `Memo` remembers the summary of a value while it is provably unchanged and alive. The
 * output of one API is the input of the next: it is summarised (and stored) once. A wrong hit would
 * be a wrong number in a record, so a value is known only if all of this holds:
 *
 * - its storage was *born* in a call that was observed, and is the very storage of the tensor that
 *   is asked about: a weak reference to it is held, so its address cannot be given to another one;
 * - torch's version counter of the tensor has not moved;
 * - our own epoch of the storage has not moved: it counts every observed call that may write without
 *   moving the version (batch norm's running statistics, fused optimisers);
 * - the storage is not *banned*: once a pointer to it escaped (`numpy()`, `data_ptr()`, `.data`, an
 *   operator outside aten, a collective), anything may write to it unseen.
 *
 * Parameters, buffers and loader data are never remembered: they were born elsewhere. Writes can only
 * be observed while the function mode is on: `active` says so, and `clear` forgets everything.
 *
 * Tensors on the CPU are summarised here. Those on other devices are summarised by the caller's
 * `summarise`, whose numbers come later: until then a record has a mark in the place of the value's
 * JSON, a byte that no JSON has; `LateText` knows these values, and puts them in.
 *
 * Nothing here knows torch's headers. A tensor's memory is read through its DLPack table (DLPack 1.2,
 * "C exchange API"), or through its Python attributes where torch has no such table. The caller
 * guarantees that torch functions are disabled, so that no attribute reaches a mode of the user's.
 *
 * `find_edges` searches the autograd graph of a call, by the Python attributes of its nodes.
 */
#include <float.h>

#include "../../capture/_limited_api.h"
#include "../../capture/_native_api.h"

#define MAX_DIMS MSPROBE_MAX_DIMS
/* Entries of either table; those of dead storages are then dropped. Then again when there are twice as
 * many as were alive: with a fixed limit each value of a large model would look through all others. */
#define PRUNE_AT 8192
/* Characters; longer texts are cut off in Python. */
#define LONGEST_TEXT 10000
/* Elements of lists and tuples of scalars that are described here. */
#define SHORT 64

/* ---- DLPack ---------------------------------------------------------------------------------- */

/* The part of the DLPack ABI (version 1) that is used here: https://dmlc.github.io/dlpack. */
struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* strides in elements */
    uint64_t byte_offset;
};

struct dl_exchange_api {
    struct {
        uint32_t major, minor;
        void *previous;
    } header;
    void *allocate, *export_managed, *import_managed;
    int (*read)(void *py_object, struct dl_tensor *out);
    void *current_stream;
};

static const struct {
    uint8_t code, bits;
    const char *name;
} DL_TYPES[] = {
    {2, 16, "float16"},       {4, 16, "bfloat16"},        {2, 32, "float32"},
    {2, 64, "float64"},       {0, 8, "int8"},             {0, 16, "int16"},
    {0, 32, "int32"},         {0, 64, "int64"},           {1, 8, "uint8"},
    {1, 16, "uint16"},        {1, 32, "uint32"},          {1, 64, "uint64"},
    {6, 8, "bool"},           {5, 32, "complex32"},       {5, 64, "complex64"},
    {5, 128, "complex128"},   {10, 8, "float8_e4m3fn"},   {11, 8, "float8_e4m3fnuz"},
    {12, 8, "float8_e5m2"},   {13, 8, "float8_e5m2fnuz"}, {14, 8, "float8_e8m0fnu"},
    {17, 4, "float4_e2m1fn_x2"},
};
#define DL_TYPE_COUNT (int)(sizeof DL_TYPES / sizeof *DL_TYPES)

/* ---- names of torch and constants ------------------------------------------------------------ */

static const struct msprobe_native_api *native;

#define NAMES(X)                                                                                \
    X(is_cpu) X(is_cuda) X(is_meta) X(device) X(ready) X(defer) X(wait_for) X(layout) X(dtype) X(shape) X(stride) X(data_ptr) X(storage_offset) X(_version)   \
    X(requires_grad) X(untyped_storage) X(nbytes) X(_cdata) X(is_neg) X(is_conj) X(_weak_ref)   \
    X(_sequence_nr) X(next_functions) X(variable) X(grad_fn) X(output_nr) X(_is_view) X(_base)  \
    X(metadata) X(msprobe) X(register_hook) X(register_prehook) X(take) X(call) X(remarks)      \
    X(keywords) X(arguments) X(outputs) X(expected) X(has_input_edges) X(_count) X(is_module)   \
    X(step) X(spending_since)     \
    X(current) X(account) X(spent_s) X(lock) X(acquire) X(release) X(__enter__) X(__exit__)       \
    X(sink) X(dump) X(stack) X(around) X(close_lost) X(write_unfinished) X(write_place)           \
    X(put_call) X(put_record) X(index) X(traits) X(owner) X(number) X(next_order)                 \
    X(forward_name) X(backward_name) X(backward_parent) X(lines) X(extra_info) X(record) X(flush) X(last_record) X(records) X(new_draft) X(parts) X(draft) \
    X(adopt) X(inplace) X(observing) X(is_unseen) X(is_plain) X(is_setter) X(_is_compiling_flag) X(_task) X(_pass) X(_stride) X(chance) X(out) X(f_back) X(internal)         \
    X(checkpointed) X(muted) X(asleep) X(operator_name) X(name) X(open_begun) X(note_raised)       \
    X(end_pure) X(end_call) X(is_outlined) X(is_view) X(is_turned) X(f_lasti) X(modules) X(calls) X(start) X(stop) X(runner) X(training) X(_parameters) X(_buffers) X(_modules)
static struct {
#define FIELD(name) PyObject *name;
    NAMES(FIELD)
#undef FIELD
} names;

/* What `setup` was given: types, functions and tables of torch and of this package. */
static struct {
    PyObject *tensor, *parameter, *strided, *is_cow, *expired, *free_weak_ref, *encode, *raw,
        *summary, *raw_of;
    PyObject *kinds; /* dtype -> kind */
    const struct dl_exchange_api *dlpack;
} torch;

static int8_t dl_kinds[DL_TYPE_COUNT];

/* ---- reading a tensor ------------------------------------------------------------------------ */

struct view {
    const char *data;
    int kind, ndim;
    size_t itemsize;
    int64_t count;
    int64_t shape[MAX_DIMS], strides[MAX_DIMS];
};

/* Return the value of an attribute that is true or false; -1 with an exception. */
static int flag(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (!value) return -1;
    int truth = value == Py_True ? 1 : value == Py_False ? 0 : PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

/* Whether a tensor may have a storage, as those of other layouts have none; -1 with an exception. */
static int is_strided(PyObject *tensor)
{
    PyObject *layout = PyObject_GetAttr(tensor, names.layout);
    Py_XDECREF(layout); /* layouts live as long as torch */
    return layout ? layout == torch.strided : -1;
}

static int call_flag(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_CallMethodNoArgs(object, name);
    if (!value) return -1;
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

/* Return the result of a call or attribute as an integer, and release it; -1 with an exception. */
static int64_t take_int(PyObject *number)
{
    if (!number) return -1;
    int64_t value = PyLong_AsLongLong(number);
    Py_DECREF(number);
    return value;
}

static int read_by_dlpack(PyObject *tensor, struct view *view)
{
    struct dl_tensor dl;
    if (torch.dlpack->read(tensor, &dl) != 0) return -1;
    view->kind = -1;
    for (int i = 0; i < DL_TYPE_COUNT; i++)
        if (DL_TYPES[i].code == dl.code && DL_TYPES[i].bits == dl.bits) view->kind = dl_kinds[i];
    if (dl.ndim > MAX_DIMS) view->kind = -1;
    if (view->kind < 0) return 0;
    view->data = (const char *)dl.data + dl.byte_offset;
    view->ndim = dl.ndim;
    memcpy(view->shape, dl.shape, (size_t)dl.ndim * sizeof *dl.shape);
    memcpy(view->strides, dl.strides, (size_t)dl.ndim * sizeof *dl.strides);
    return 0;
}

static int copy_sizes(PyObject *tuple, int64_t *sizes)
{
    if (!tuple) return -1;
    int failed = !PyTuple_Check(tuple);
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(tuple) && i < MAX_DIMS; i++) {
        sizes[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        failed = sizes[i] == -1 && PyErr_Occurred();
    }
    int ndim = failed ? -1 : (int)PyTuple_GET_SIZE(tuple);
    Py_DECREF(tuple);
    return ndim;
}

static int read_by_attributes(PyObject *tensor, struct view *view)
{
    PyObject *dtype = PyObject_GetAttr(tensor, names.dtype);
    if (!dtype) return -1;
    PyObject *kind = PyDict_GetItemWithError(torch.kinds, dtype);
    Py_DECREF(dtype);
    view->kind = kind ? (int)PyLong_AsLong(kind) : -1;
    if (!kind) return PyErr_Occurred() ? -1 : 0;
    view->ndim = copy_sizes(PyObject_GetAttr(tensor, names.shape), view->shape);
    if (view->ndim < 0) return -1;
    if (copy_sizes(PyObject_CallMethodNoArgs(tensor, names.stride), view->strides) < 0) return -1;
    view->data = (const char *)take_int(PyObject_CallMethodNoArgs(tensor, names.data_ptr));
    if (view->ndim > MAX_DIMS) view->kind = -1;
    return PyErr_Occurred() ? -1 : 0;
}

/* Whether the elements have the sign or the conjugation that their memory shows. */
static int is_plainly_stored(PyObject *tensor, const struct view *view)
{
    const char *name = native->kind(view->kind).name;
    if (strncmp(name, "complex", 7) == 0) {
        int conjugate = call_flag(tensor, names.is_conj);
        if (conjugate != 0) return conjugate < 0 ? -1 : 0;
    } else if (name[0] != 'f' && name[0] != 'b') {
        return 1; /* integers */
    }
    int negative = call_flag(tensor, names.is_neg);
    return negative < 0 ? -1 : !negative;
}

static int is_plain_class(PyObject *tensor)
{
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    return type == torch.tensor || type == torch.parameter;
}

/* Put in what follows from kind and shape. */
static void finish_view(struct view *view)
{
    view->itemsize = native->kind(view->kind).itemsize;
    view->count = 1;
    for (int i = 0; i < view->ndim; i++) view->count *= view->shape[i];
}

/* Read where the elements of a tensor of a plain class lie, on whatever device, which may show them
 * with another sign: 1, 0 if it is not plain, -1 with an exception. */
static int read_memory(PyObject *tensor, struct view *view, int has_dlpack)
{
    int strided = is_strided(tensor);
    if (strided <= 0) return strided;
    if (torch.is_cow != Py_None) {
        /* Reading the address would make the copy that torch has put off. */
        PyObject *is_cow = PyObject_CallOneArg(torch.is_cow, tensor);
        Py_XDECREF(is_cow);
        if (is_cow != Py_False) return is_cow ? 0 : -1;
    }
    int failed = torch.dlpack && has_dlpack ? read_by_dlpack(tensor, view)
                                            : read_by_attributes(tensor, view);
    if (failed || view->kind < 0) return failed;
    finish_view(view);
    return 1;
}

/* The same of a tensor whose elements are what their memory shows. */
static int read_place(PyObject *tensor, struct view *view, int has_dlpack)
{
    int outcome = read_memory(tensor, view, has_dlpack);
    return outcome > 0 ? is_plainly_stored(tensor, view) : outcome;
}

/* Read where the elements lie: 1, 0 if this is no plain tensor on the CPU, -1 with an exception. */
static int read_view(PyObject *tensor, struct view *view)
{
    if (!is_plain_class(tensor)) return 0;
    int on_cpu = flag(tensor, names.is_cpu);
    return on_cpu <= 0 ? on_cpu : read_place(tensor, view, 1);
}

/* As `read_view`, of a tensor on another device whose elements are in `available_bytes` at most. */
static int read_device_view(PyObject *tensor, struct view *view)
{
    int is_meta = flag(tensor, names.is_meta);
    if (is_meta) return is_meta < 0 ? -1 : 0;
    int is_cuda = flag(tensor, names.is_cuda);
    return is_cuda < 0 ? -1 : read_place(tensor, view, is_cuda);
}

/* Whether the elements lie within the bytes that are left of their storage. */
static int is_within(const struct view *view, int64_t available_bytes)
{
    int64_t last = 0;
    for (int i = 0; i < view->ndim; i++) last += (view->shape[i] - 1) * view->strides[i];
    return (last + 1) * (int64_t)view->itemsize <= available_bytes;
}

/* Whether the elements fill one block of memory without gaps or overlaps. */
static int is_dense(const struct view *view, int in_order)
{
    int64_t expected = 1;
    int used[MAX_DIMS] = {0};
    for (int done = 0; done < view->ndim; done++) {
        int next = -1;
        for (int i = view->ndim - 1; i >= 0; i--) {
            if (used[i]) continue;
            if (next < 0 || (!in_order && view->strides[i] < view->strides[next])) next = i;
        }
        used[next] = 1;
        if (view->shape[next] == 1) continue;
        if (view->strides[next] != expected) return 0;
        expected *= view->shape[next];
    }
    return 1;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Made when the module is. */
static PyTypeObject *ValueType, *MemoType, *LateTextType, *InputEdgesType, *TapType, *OpenCallType,
    *CallRecorderType, *ApiPathType, *OutlinePathType;

/* The summary and the records of one value. */
typedef struct {
    PyObject_HEAD
    int64_t id;          /* the same wherever this value appears in the step; 0 when unknown */
    PyObject *numbers;   /* (max, min, mean, norm, counts or None, projections or None) */
    struct view *view;   /* of a value on a device until it is filled, else NULL */
    PyObject *device;    /* bytes of its JSON; NULL for the CPU */
    PyObject *text;      /* bytes of its JSON, with requires_grad false; NULL until there are numbers */
    size_t split;        /* where that "false" begins in it */
    PyObject *raws[2];   /* its JSON as `msgspec.Raw`, without and with requires_grad */
    PyObject *md5, *file, *summary;
} Value;

static void Value_dealloc(Value *self)
{
    PyMem_Free(self->view);
    Py_XDECREF(self->numbers);
    Py_XDECREF(self->device);
    Py_XDECREF(self->text);
    Py_XDECREF(self->raws[0]);
    Py_XDECREF(self->raws[1]);
    Py_XDECREF(self->md5);
    Py_XDECREF(self->file);
    Py_XDECREF(self->summary);
    free_object(self, PyObject_Free);
}

/* Text in the making. */
struct text {
    char *start;
    size_t used, capacity;
    int may_wait;     /* whether it takes values whose numbers come later */
    PyObject *unfilled; /* these values, in the order of their marks; NULL for none */
    char inplace[512];
};

static int put_bytes(struct text *text, const char *bytes, size_t count)
{
    if (text->used + count > text->capacity) {
        size_t capacity = 2 * (text->used + count);
        char *start = PyMem_Malloc(capacity);
        if (!start) return PyErr_NoMemory(), -1;
        memcpy(start, text->start, text->used);
        if (text->start != text->inplace) PyMem_Free(text->start);
        text->start = start;
        text->capacity = capacity;
    }
    memcpy(text->start + text->used, bytes, count);
    text->used += count;
    return 0;
}

static int put(struct text *text, const char *words)
{
    return put_bytes(text, words, strlen(words));
}

static int put_int(struct text *text, int64_t number)
{
    char digits[24], *end = digits + sizeof digits, *start = end;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do *--start = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0) *--start = '-';
    return put_bytes(text, start, (size_t)(end - start));
}

static int put_sizes(struct text *text, const char *key, int ndim, const int64_t *sizes)
{
    int failed = put(text, key) || put(text, "[");
    for (int i = 0; i < ndim && !failed; i++)
        failed = (i && put(text, ",")) || put_int(text, sizes[i]);
    return failed || put(text, "]") ? -1 : 0;
}

static void begin_text(struct text *text)
{
    text->start = text->inplace;
    text->used = 0;
    text->capacity = sizeof text->inplace;
    text->may_wait = 0;
    text->unfilled = NULL;
}

static PyObject *end_text(struct text *text, int failed)
{
    PyObject *bytes = failed ? NULL : PyBytes_FromStringAndSize(text->start, (Py_ssize_t)text->used);
    if (text->start != text->inplace) PyMem_Free(text->start);
    return bytes;
}

/* Put a number as Python's `json` writes it, `token` being how the encoder wrote it. */
static int put_number(struct text *text, PyObject *number, const char *token, size_t length)
{
    if (PyFloat_CheckExact(number) && !isfinite(PyFloat_AS_DOUBLE(number))) {
        double x = PyFloat_AS_DOUBLE(number);
        return put(text, isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity");
    }
    return put_bytes(text, token, length);
}

/* Put the keys of `numbers` from `first` to before `last`, whose encoded values begin at `*from`. */
static int put_numbers(struct text *text, PyObject *numbers, const char *const *keys, int count,
                       const char **from)
{
    const char *token = *from;
    for (int i = 0; i < count; i++) {
        size_t length = strcspn(token, ",]");
        if (put(text, keys[i]) ||
            put_number(text, PyTuple_GET_ITEM(numbers, i), token, length))
            return -1;
        token += length + 1;
    }
    *from = token;
    return 0;
}

static const char *const STATISTICS[] = {",\"Max\":", ",\"Min\":", ",\"Mean\":", ",\"Norm\":"};
static const char *const COUNTS[] = {",\"nan_count\":", ",\"pos_inf_count\":",
                                     ",\"neg_inf_count\":", ",\"finite_max\":",
                                     ",\"finite_min\":"};

#define IS_FALSE "false"

/* Write a value's JSON; fields and their order are those of `TensorRecord`. `note` may be NULL. */
static int write_value(Value *value, const struct view *view, PyObject *note)
{
    PyObject *encoded = PyObject_CallOneArg(torch.encode, value->numbers);
    if (!encoded) return -1;
    const char *token = PyBytes_AsString(encoded);
    PyObject *counts = PyTuple_GET_ITEM(value->numbers, 4);
    struct text text;
    begin_text(&text);
    int failed = !token || put(&text, "{\"type\":\"torch.Tensor\",\"dtype\":\"torch.") ||
                 put(&text, native->kind(view->kind).name) || put(&text, "\"") ||
                 put_sizes(&text, ",\"shape\":", view->ndim, view->shape);
    if (!failed) {
        token++; /* the bracket */
        failed = put_numbers(&text, value->numbers, STATISTICS, 4, &token);
    }
    failed = failed || put(&text, ",\"requires_grad\":");
    value->split = text.used;
    failed = failed || put(&text, IS_FALSE);
    if (!failed && value->device)
        failed = put(&text, ",\"device\":") ||
                 put_bytes(&text, PyBytes_AS_STRING(value->device),
                           (size_t)PyBytes_GET_SIZE(value->device));
    if (!failed && view->count && !is_dense(view, 1))
        failed = put_sizes(&text, ",\"stride\":", view->ndim, view->strides);
    if (!failed && value->id)
        failed = put(&text, ",\"value_id\":") || put_int(&text, value->id);
    if (!failed && counts != Py_None) {
        token++;
        failed = put_numbers(&text, counts, COUNTS, 5, &token);
    } else if (!failed) {
        token += strlen("null");
    }
    token++; /* the comma */
    if (!failed && PyTuple_GET_ITEM(value->numbers, 5) != Py_None)
        failed = put(&text, ",\"projections\":") ||
                 put_bytes(&text, token, strcspn(token, "]") + 1);
    if (!failed && note) {
        PyObject *words = PyObject_CallOneArg(torch.encode, note);
        failed = !words || put(&text, ",\"note\":") ||
                 put_bytes(&text, PyBytes_AS_STRING(words), (size_t)PyBytes_GET_SIZE(words));
        Py_XDECREF(words);
    }
    value->text = end_text(&text, failed || put(&text, "}"));
    Py_DECREF(encoded);
    return value->text ? 0 : -1;
}

/* Marks of values whose numbers come later, without and with requires_grad: no JSON has these. */
static const char MARKS[] = {1, 2};

/* Whether a value can be put into a text. */
static int fits(const struct text *text, const Value *value)
{
    return value->text || (value->view && text->may_wait);
}

/* Put the JSON of a value that fits, or its mark. */
static int put_value_text(struct text *text, Value *value, int requires_grad)
{
    if (!value->text) {
        if (!text->unfilled && !(text->unfilled = PyList_New(0))) return -1;
        if (PyList_Append(text->unfilled, (PyObject *)value) < 0) return -1;
        return put_bytes(text, MARKS + requires_grad, 1);
    }
    const char *json = PyBytes_AS_STRING(value->text), *rest = json + value->split;
    if (requires_grad) {
        if (put_bytes(text, json, value->split) || put(text, "true")) return -1;
        json = rest + strlen(IS_FALSE);
    }
    return put_bytes(text, json, (size_t)(PyBytes_AS_STRING(value->text) - json) +
                                     (size_t)PyBytes_GET_SIZE(value->text));
}

/* Return a value's JSON as `msgspec.Raw`. */
static PyObject *value_text(Value *self, int requires_grad)
{
    if (!self->raws[requires_grad]) {
        struct text text;
        begin_text(&text);
        PyObject *bytes = requires_grad ? end_text(&text, put_value_text(&text, self, 1))
                                        : Py_NewRef(self->text);
        self->raws[requires_grad] = bytes ? PyObject_CallOneArg(torch.raw, bytes) : NULL;
        Py_XDECREF(bytes);
    }
    return Py_XNewRef(self->raws[requires_grad]);
}

static PyObject *Value_get_summary(Value *self, void *closure)
{
    if (!self->summary) self->summary = PyObject_CallOneArg(torch.summary, self->numbers);
    return Py_XNewRef(self->summary);
}

/* Take the numbers that have come, or their absence; -1 with an exception. */
static int fill_value(Value *self)
{
    if (self->text) return 0;
    PyObject *pair = PyObject_CallOneArg(torch.raw_of, self->summary), *numbers, *note;
    if (!pair || !PyArg_ParseTuple(pair, "O!O", &PyTuple_Type, &numbers, &note)) {
        Py_XDECREF(pair);
        return -1;
    }
    Py_XSETREF(self->numbers, Py_NewRef(numbers));
    int failed = write_value(self, self->view, note == Py_None ? NULL : note) < 0;
    Py_DECREF(pair);
    if (failed) return -1;
    PyMem_Free(self->view);
    self->view = NULL;
    return 0;
}

static PyMemberDef VALUE_MEMBERS[] = {
    {"id", T_LONGLONG, offsetof(Value, id), READONLY,
     "number shared by all appearances of this value in the step; 0 when unknown"},
    {"md5", T_OBJECT, offsetof(Value, md5), 0, "CRC-32, None until it is set"},
    {"file", T_OBJECT, offsetof(Value, file), 0, "tensor file that holds it, None until it is set"},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef VALUE_ATTRIBUTES[] = {
    {"summary", (getter)Value_get_summary, NULL, "the statistics, a `Summary`", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot VALUE_SLOTS[] = {
    {Py_tp_dealloc, (void *)Value_dealloc},
    {Py_tp_members, VALUE_MEMBERS},
    {Py_tp_getset, VALUE_ATTRIBUTES},
    {Py_tp_doc, (void *)"The summary and the records of one value."},
    {0, NULL},
};

static PyType_Spec VALUE_SPEC = {
    .name = "msprobe.pytorch.values._tensors.Value",
    .basicsize = sizeof(Value),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = VALUE_SLOTS,
};

/* ---- tables ---------------------------------------------------------------------------------- */

/* A storage that was seen, held by a weak reference that keeps its address taken. */
struct storage {
    uint64_t address;
    uint64_t number; /* no other storage has had it in this step */
    PyObject *weak_ref;
    uint32_t epoch;
    uint8_t is_banned, was_born;
    /* All of it was found sound (`check`) as elements of this kind, + 1, in this state. */
    uint8_t sound_kind;
    uint32_t sound_epoch;
    int64_t sound_version;
};

/* A value, where it lies and in which state of the memory it was looked at. */
struct known {
    uint64_t address;
    struct known *next; /* another view that begins at the same address */
    struct storage *storage;
    Value *value;
    int64_t version;
    uint32_t epoch;
    int32_t kind, ndim;
    int64_t sizes[]; /* shape, strides */
};

/* From addresses to structs that begin with their address: open addressing, never full. */
struct table {
    void **slots;
    size_t count, capacity;
};

static size_t slot_of(const struct table *table, uint64_t address)
{
    /* Fibonacci hashing: the low bits of addresses are all the same. */
    size_t slot = (size_t)((address * 0x9e3779b97f4a7c15u) >> 20) & (table->capacity - 1);
    while (table->slots[slot] && *(uint64_t *)table->slots[slot] != address)
        slot = (slot + 1) & (table->capacity - 1);
    return slot;
}

static void *table_get(const struct table *table, uint64_t address)
{
    return table->capacity ? table->slots[slot_of(table, address)] : NULL;
}

/* Put an entry in the place of the one with its address, if there is one; -1 with an exception. */
static int table_put(struct table *table, void *entry)
{
    if (2 * (table->count + 1) > table->capacity) {
        struct table grown = {NULL, 0, table->capacity ? 2 * table->capacity : 256};
        grown.slots = PyMem_Calloc(grown.capacity, sizeof *grown.slots);
        if (!grown.slots) return PyErr_NoMemory(), -1;
        for (size_t i = 0; i < table->capacity; i++)
            if (table->slots[i])
                grown.slots[slot_of(&grown, *(uint64_t *)table->slots[i])] = table->slots[i];
        grown.count = table->count;
        PyMem_Free(table->slots);
        *table = grown;
    }
    size_t slot = slot_of(table, *(uint64_t *)entry);
    table->count += table->slots[slot] == NULL;
    table->slots[slot] = entry;
    return 0;
}

/* Take all entries out; the caller puts back those that stay. */
static struct table table_empty(struct table *table)
{
    struct table before = *table;
    *table = (struct table){NULL, 0, 0};
    return before;
}

/* ---- the memo -------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    struct table storages, known;
    size_t pruned; /* entries of the larger table after the last `prune`; 0 for none */
    int64_t last_id;
    uint64_t last_storage;
    int64_t bad; /* values with a NaN or +Inf that were described */
    double share; /* of the largest number of a type, from which a value is near it */
    PyObject *summarise; /* of tensors on devices; NULL: they are none of ours */
    char active;
} Memo;

static void free_known(struct known *known)
{
    while (known) {
        struct known *next = known->next;
        Py_DECREF(known->value);
        PyMem_Free(known);
        known = next;
    }
}

static void free_storage(struct storage *storage)
{
    PyObject *done = PyObject_CallOneArg(torch.free_weak_ref, storage->weak_ref);
    if (done) Py_DECREF(done);
    else PyErr_WriteUnraisable(storage->weak_ref);
    Py_DECREF(storage->weak_ref);
    PyMem_Free(storage);
}

static int is_full(const Memo *self, const struct table *table)
{
    return table->count >= PRUNE_AT && table->count >= 2 * self->pruned;
}

static void forget_all(Memo *self)
{
    struct table known = table_empty(&self->known), storages = table_empty(&self->storages);
    self->pruned = 0;
    for (size_t i = 0; i < known.capacity; i++) free_known(known.slots[i]);
    for (size_t i = 0; i < storages.capacity; i++)
        if (storages.slots[i]) free_storage(storages.slots[i]);
    PyMem_Free(known.slots);
    PyMem_Free(storages.slots);
}

/* Forget the storages that are dead, and what lay in them; -1 with an exception. */
static int prune(Memo *self)
{
    struct table known = table_empty(&self->known), storages = table_empty(&self->storages);
    int failed = 0;
    for (size_t i = 0; i < storages.capacity; i++) {
        struct storage *storage = storages.slots[i];
        if (!storage) continue;
        PyObject *expired = PyObject_CallOneArg(torch.expired, storage->weak_ref);
        if (!expired) PyErr_Clear(); /* taken for dead: what lies in it is summarised again */
        if (expired == Py_False) failed |= table_put(&self->storages, storage) < 0;
        Py_XDECREF(expired);
    }
    for (size_t i = 0; i < known.capacity; i++) {
        struct known *first = known.slots[i];
        if (!first) continue;
        if (table_get(&self->storages, first->storage->address) == first->storage)
            failed |= table_put(&self->known, first) < 0;
        else
            free_known(first);
    }
    for (size_t i = 0; i < storages.capacity; i++) {
        struct storage *storage = storages.slots[i];
        if (storage && table_get(&self->storages, storage->address) != storage)
            free_storage(storage);
    }
    PyMem_Free(known.slots);
    PyMem_Free(storages.slots);
    self->pruned = self->known.count;
    if (self->pruned < self->storages.count) self->pruned = self->storages.count;
    return failed ? -1 : 0;
}

/* Return the address of the storage of a tensor; 0 with an exception when it has none. */
static uint64_t storage_address(PyObject *tensor, PyObject **storage)
{
    *storage = PyObject_CallMethodNoArgs(tensor, names.untyped_storage);
    if (!*storage) return 0;
    uint64_t address = (uint64_t)take_int(PyObject_GetAttr(*storage, names._cdata));
    if (PyErr_Occurred()) Py_CLEAR(*storage);
    return *storage ? address : 0;
}

/* Return the entry of a storage, made if there is none; NULL with an exception. */
static struct storage *enter_object(Memo *self, uint64_t address, PyObject *object, int was_born)
{
    /* A known one is alive or at least not given back: the weak reference keeps its address. */
    struct storage *storage = table_get(&self->storages, address);
    if (storage) return storage;
    if (is_full(self, &self->storages) && prune(self) < 0) return NULL;
    if (!(storage = PyMem_Calloc(1, sizeof *storage))) return (void *)PyErr_NoMemory();
    storage->address = address;
    storage->number = ++self->last_storage;
    storage->was_born = (uint8_t)was_born;
    storage->weak_ref = PyObject_CallMethodNoArgs(object, names._weak_ref);
    if (!storage->weak_ref || table_put(&self->storages, storage) < 0) {
        if (storage->weak_ref) free_storage(storage);
        else PyMem_Free(storage);
        return NULL;
    }
    return storage;
}

/* Return the entry of a tensor's storage, made if there is none; NULL with an exception. */
static struct storage *enter_storage(Memo *self, PyObject *tensor, int was_born)
{
    PyObject *object;
    uint64_t address = storage_address(tensor, &object);
    struct storage *storage = object ? enter_object(self, address, object, was_born) : NULL;
    Py_XDECREF(object);
    return storage;
}

/* Whether a storage still has its entry: reading its elements may have given Python's lock away, and
 * another thread may have had everything forgotten meanwhile. */
static int is_entered(const Memo *self, uint64_t address, uint64_t number)
{
    const struct storage *storage = table_get(&self->storages, address);
    return storage && storage->number == number;
}

/* Return the version of a tensor; -1 without an exception where torch keeps none. */
static int64_t version_of(PyObject *tensor)
{
    int64_t version = take_int(PyObject_GetAttr(tensor, names._version));
    if (version == -1 && PyErr_Occurred()) PyErr_Clear(); /* inference tensors */
    return version;
}

static int is_current(const struct known *known, const struct storage *storage, int64_t version)
{
    return known->storage == storage && known->epoch == storage->epoch &&
           known->version == version;
}

static int has_place_of(const struct known *known, const struct view *view)
{
    size_t size_bytes = (size_t)view->ndim * sizeof *view->shape;
    return known->ndim == view->ndim && memcmp(known->sizes, view->shape, size_bytes) == 0 &&
           memcmp(known->sizes + view->ndim, view->strides, size_bytes) == 0;
}

static Value *new_value(PyObject *numbers, int64_t id, const struct view *view)
{
    Value *value = numbers ? PyObject_New(Value, ValueType) : NULL;
    if (!value) {
        Py_XDECREF(numbers);
        return NULL;
    }
    memset((char *)value + sizeof(PyObject), 0, sizeof *value - sizeof(PyObject));
    value->numbers = numbers;
    value->id = id;
    if (write_value(value, view, NULL) < 0) Py_CLEAR(value);
    return value;
}

/* Return the JSON of the name of a tensor's device; NULL with an exception. */
static PyObject *device_of(PyObject *tensor)
{
    static PyObject *known, *its_name; /* most tensors of a process are on one */
    PyObject *device = PyObject_GetAttr(tensor, names.device), *name = NULL;
    int is_known = device && known ? PyObject_RichCompareBool(device, known, Py_EQ) : 0;
    if (is_known > 0) name = Py_NewRef(its_name);
    else if (device && is_known == 0) {
        PyObject *words = PyObject_Str(device);
        name = words ? PyObject_CallOneArg(torch.encode, words) : NULL;
        Py_XDECREF(words);
        if (name) {
            Py_XSETREF(known, Py_NewRef(device));
            Py_XSETREF(its_name, Py_NewRef(name));
        }
    }
    Py_XDECREF(device);
    return name;
}

/* Return the value of a tensor on a device, whose numbers come later or not at all; NULL, perhaps
 * with an exception. */
static Value *new_device_value(const Memo *self, PyObject *tensor, const struct view *view,
                               PyObject *storage)
{
    int64_t size_bytes = take_int(PyObject_CallMethodNoArgs(storage, names.nbytes));
    int64_t offset = take_int(PyObject_CallMethodNoArgs(tensor, names.storage_offset));
    if (PyErr_Occurred() || !is_within(view, size_bytes - offset * (int64_t)view->itemsize))
        return NULL;
    PyObject *device = device_of(tensor);
    PyObject *summary = device ? PyObject_CallOneArg(self->summarise, tensor) : NULL;
    int is_ready = summary ? flag(summary, names.ready) : -1;
    Value *value = is_ready < 0 ? NULL : PyObject_New(Value, ValueType);
    if (!value) {
        Py_XDECREF(summary);
        Py_XDECREF(device);
        return NULL;
    }
    memset((char *)value + sizeof(PyObject), 0, sizeof *value - sizeof(PyObject));
    value->summary = summary;
    value->device = device;
    if (!is_ready) {
        value->view = PyMem_Malloc(sizeof *view);
        if (value->view) memcpy(value->view, view, sizeof *view);
        else {
            Py_CLEAR(value);
            PyErr_NoMemory();
        }
    }
    return value;
}

/* Summarise the elements; `storage` is the tensor's. A buffer that was given back is an exception. */
static PyObject *numbers_of(PyObject *tensor, const struct view *view, PyObject *storage)
{
    int64_t size_bytes = take_int(PyObject_CallMethodNoArgs(storage, names.nbytes));
    int64_t offset = take_int(PyObject_CallMethodNoArgs(tensor, names.storage_offset));
    if (PyErr_Occurred()) return NULL;
    return native->statistics(view->kind, view->data, view->ndim, view->shape, view->strides,
                              size_bytes - offset * (int64_t)view->itemsize);
}

/* The runs in which elements are read: sizes and strides without those of 1, the largest stride first,
 * joined where they lie behind one another. Equal runs from one address are the same elements, added up
 * in the same order. */
struct runs {
    int count;
    int64_t sizes[MAX_DIMS], strides[MAX_DIMS];
};

/* Return whether there are runs: not of empty tensors, nor where elements repeat. */
static int find_runs(struct runs *runs, int ndim, const int64_t *sizes, const int64_t *strides)
{
    int count = 0, last = 0;
    for (int i = 0; i < ndim; i++) {
        if (sizes[i] == 1) continue;
        if (sizes[i] <= 0 || strides[i] <= 0) return 0;
        int at = count++;
        for (; at > 0 && runs->strides[at - 1] < strides[i]; at--) {
            runs->sizes[at] = runs->sizes[at - 1];
            runs->strides[at] = runs->strides[at - 1];
        }
        runs->sizes[at] = sizes[i];
        runs->strides[at] = strides[i];
    }
    for (int i = 1; i < count; i++) {
        if (runs->strides[last] == runs->sizes[i] * runs->strides[i]) runs->sizes[last] *= runs->sizes[i];
        else runs->sizes[++last] = runs->sizes[i];
        runs->strides[last] = runs->strides[i];
    }
    runs->count = count ? last + 1 : 0;
    return 1;
}

/* Return the numbers of a known value if a view has the same elements in the order of memory; NULL,
 * perhaps with an exception, where the numbers are to be computed. */
static PyObject *numbers_of_runs(const struct known *known, const struct view *view)
{
    struct runs runs, before;
    PyObject *numbers = known->value->numbers;
    if (!numbers || !find_runs(&runs, view->ndim, view->shape, view->strides) ||
        !find_runs(&before, known->ndim, known->sizes, known->sizes + known->ndim))
        return NULL;
    size_t size_bytes = (size_t)runs.count * sizeof *runs.sizes;
    if (runs.count != before.count || memcmp(runs.sizes, before.sizes, size_bytes) ||
        memcmp(runs.strides, before.strides, size_bytes))
        return NULL;
    return Py_NewRef(numbers);
}

/* Remember a value under its place; 0 also where that is not done, -1 with an exception. */
static int remember(Memo *self, const struct view *view, struct storage *storage, int64_t version,
                    Value *value)
{
    size_t dims = (size_t)view->ndim;
    struct known *known = PyMem_Malloc(sizeof *known + 2 * dims * sizeof *known->sizes);
    if (!known) return PyErr_NoMemory(), -1;
    struct known *before = table_get(&self->known, (uint64_t)(uintptr_t)view->data);
    known->address = (uint64_t)(uintptr_t)view->data;
    known->next = NULL;
    known->storage = storage;
    known->value = (Value *)Py_NewRef((PyObject *)value);
    known->version = version;
    known->epoch = storage->epoch;
    known->kind = view->kind;
    known->ndim = view->ndim;
    memcpy(known->sizes, view->shape, dims * sizeof *known->sizes);
    memcpy(known->sizes + dims, view->strides, dims * sizeof *known->sizes);
    if (before && is_current(before, storage, version)) known->next = before;
    if (table_put(&self->known, known) < 0) {
        known->next = NULL;
        free_known(known);
        return -1;
    }
    if (before && !known->next) free_known(before);
    return 0;
}

/* Whether counts (nan, +inf, ...) say more than -Inf, which may be a mask. */
static int is_bad(PyObject *counts)
{
    return PyObject_IsTrue(PyTuple_GET_ITEM(counts, 0)) ||
           PyObject_IsTrue(PyTuple_GET_ITEM(counts, 1));
}

/* How a tensor comes to be looked at. */
enum entry { SEEN, COMES_IN, BORN };

/* Return the `Value` of a plain tensor, made if need be; NULL without an exception when the
 * tensor is none of which this module knows the memory. `entry` says whether an observed call
 * receives it (a storage not seen before is not remembered then) or has made it. */
static Value *look(Memo *self, PyObject *tensor, enum entry entry)
{
    struct view view;
    if (!is_plain_class(tensor)) return NULL;
    int on_cpu = flag(tensor, names.is_cpu);
    if (on_cpu < 0 || (!on_cpu && (!self->summarise || self->summarise == Py_None))) return NULL;
    if ((on_cpu ? read_place(tensor, &view, 1) : read_device_view(tensor, &view)) <= 0) return NULL;
    if (!on_cpu && !view.count) return NULL;
    PyObject *storage_object;
    uint64_t address = storage_address(tensor, &storage_object);
    if (!storage_object) return NULL;
    struct storage *storage = NULL;
    int64_t version = -1;
    Value *value = NULL;
    uint64_t number = 0;
    PyObject *numbers = NULL;
    int was_born = entry == BORN && (PyObject *)Py_TYPE(tensor) == torch.tensor;
    if (entry && self->active && !enter_object(self, address, storage_object, was_born)) goto done;
    if (self->active && (PyObject *)Py_TYPE(tensor) == torch.tensor && view.count)
        storage = table_get(&self->storages, address);
    if (storage && storage->was_born && !storage->is_banned) version = version_of(tensor);
    if (version >= 0) {
        number = storage->number;
        struct known *known = table_get(&self->known, (uint64_t)(uintptr_t)view.data);
        for (; known && !value; known = known->next) {
            if (!is_current(known, storage, version) || known->kind != view.kind) continue;
            if (has_place_of(known, &view)) value = (Value *)Py_NewRef((PyObject *)known->value);
            else if (on_cpu && !numbers) numbers = numbers_of_runs(known, &view);
        }
    }
    if (value) Py_CLEAR(numbers);
    if (!value) {
        if (!on_cpu) value = new_device_value(self, tensor, &view, storage_object);
        else if (!numbers && !PyErr_Occurred())
            numbers = numbers_of(tensor, &view, storage_object);
        if (version >= 0 && !is_entered(self, address, number)) version = -1;
        if (version >= 0 && is_full(self, &self->known) && prune(self) < 0) {
            Py_CLEAR(numbers);
            Py_CLEAR(value);
        }
        if (numbers && PyTuple_GET_ITEM(numbers, 4) != Py_None)
            self->bad += is_bad(PyTuple_GET_ITEM(numbers, 4));
        int64_t id = version >= 0 ? ++self->last_id : 0;
        if (on_cpu) value = new_value(numbers, id, &view);
        else if (value) value->id = id;
        if (value && version >= 0 && remember(self, &view, storage, version, value) < 0)
            Py_CLEAR(value);
    }
done:
    Py_DECREF(storage_object);
    return value;
}

/* Enter the storage of a tensor; what has none is passed over. */
static struct storage *enter(Memo *self, PyObject *tensor, int was_born)
{
    struct storage *storage = NULL;
    if (self->active && is_strided(tensor) > 0) storage = enter_storage(self, tensor, was_born);
    if (!storage) PyErr_Clear();
    return storage;
}

/* ---- soundness ------------------------------------------------------------------------------- */

/* States of a value, as in capture/value_states.py. */
enum { SOUND, NEAR, NONFINITE };

/* The largest finite number of a type; infinite of those whose values are never near it. */
static double largest_of(int kind)
{
    static const struct {
        const char *name;
        double largest;
    } LARGEST[] = {{"float32", FLT_MAX},   {"bfloat16", 0x1.fep127},  {"float16", 65504.0},
                   {"float64", DBL_MAX},   {"complex64", FLT_MAX},    {"complex128", DBL_MAX},
                   {"complex32", 65504.0}};
    const char *name = native->kind(kind).name;
    for (size_t i = 0; i < sizeof LARGEST / sizeof *LARGEST; i++)
        if (strcmp(LARGEST[i].name, name) == 0) return LARGEST[i].largest;
    return INFINITY;
}

/* Read the elements; their state, -1 with an exception. `is_whole` says whether they fill the
 * storage. */
static int read_state(const Memo *self, PyObject *tensor, const struct view *view,
                      PyObject *storage, int *is_whole)
{
    int64_t size_bytes = take_int(PyObject_CallMethodNoArgs(storage, names.nbytes));
    int64_t offset = take_int(PyObject_CallMethodNoArgs(tensor, names.storage_offset));
    if (PyErr_Occurred()) return -1;
    double greatest;
    if (native->largest(view->kind, view->data, view->ndim, view->shape, view->strides,
                        size_bytes - offset * (int64_t)view->itemsize, &greatest) < 0)
        return -1;
    *is_whole = view->count * (int64_t)view->itemsize == size_bytes && is_dense(view, 0);
    if (!isfinite(greatest)) return NONFINITE;
    return self->share > 0 && greatest >= self->share * largest_of(view->kind) ? NEAR : SOUND;
}

/* Whether the elements of a type may be other than finite. */
static int has_nonfinite(int kind)
{
    const char *name = native->kind(kind).name;
    return *name == 'f' || *name == 'c' || strcmp(name, "bfloat16") == 0;
}

/* Return the state of a plain tensor, which is read unless its storage is known to be sound; -1,
 * perhaps with an exception, of a tensor of which this module does not read the memory. Its storage is
 * entered as `look` does. */
static int check(Memo *self, PyObject *tensor, enum entry entry)
{
    struct view view;
    int was_born = entry == BORN && (PyObject *)Py_TYPE(tensor) == torch.tensor;
    int is_here = is_plain_class(tensor) ? flag(tensor, names.is_cpu) : 0;
    int is_read = is_here > 0 ? read_memory(tensor, &view, 1) : is_here;
    if (is_read <= 0 || !has_nonfinite(view.kind) || !view.count) {
        if (is_read >= 0 && entry) enter(self, tensor, was_born);
        return is_read > 0 ? SOUND : -1;
    }
    PyObject *object;
    uint64_t address = storage_address(tensor, &object);
    if (!object) return -1;
    struct storage *storage = NULL;
    int64_t version = -1;
    if (self->active && entry) storage = enter_object(self, address, object, was_born);
    else if (self->active) storage = table_get(&self->storages, address);
    int is_known = storage && storage->was_born && !storage->is_banned;
    if (is_known && (PyObject *)Py_TYPE(tensor) == torch.tensor) version = version_of(tensor);
    int state = PyErr_Occurred() ? -1 : SOUND, is_whole;
    uint64_t number = storage ? storage->number : 0;
    int is_sound = version >= 0 && storage->sound_kind == view.kind + 1 &&
                   storage->sound_version == version && storage->sound_epoch == storage->epoch;
    if (!is_sound && state == SOUND) {
        state = read_state(self, tensor, &view, object, &is_whole);
        if (state == SOUND && version >= 0 && is_whole && is_entered(self, address, number)) {
            storage->sound_kind = (uint8_t)(view.kind + 1);
            storage->sound_version = version;
            storage->sound_epoch = storage->epoch;
        }
    }
    Py_DECREF(object);
    return state;
}

/* Return the state of a tensor, -1 where it is not read here, -2 with an exception. */
static int check_or_leave(Memo *self, PyObject *tensor, enum entry entry)
{
    int state = check(self, tensor, entry);
    if (state >= 0 || !PyErr_Occurred()) return state;
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) return -2;
    PyErr_Clear(); /* no storage of its own, or one that was given back */
    return -1;
}

/* ---- methods --------------------------------------------------------------------------------- */

static PyObject *Memo_check(Memo *self, PyObject *tensor)
{
    int state = check_or_leave(self, tensor, SEEN);
    return state < -1 ? NULL : PyLong_FromLong(state);
}

/* Look at a tensor; None where it cannot be read, which another way of reading explains. */
static PyObject *look_or_none(Memo *self, PyObject *tensor, enum entry entry)
{
    Value *value = look(self, tensor, entry);
    if (value) return (PyObject *)value;
    if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
        PyErr_Clear(); /* no storage of its own, or one that was given back */
    }
    Py_RETURN_NONE;
}

static PyObject *Memo_look(Memo *self, PyObject *tensor)
{
    return look_or_none(self, tensor, SEEN);
}

/* Whether a tensor is on the CPU: text without marks takes no other; -1 with an exception. */
static int is_on_cpu(PyObject *tensor)
{
    return is_plain_class(tensor) ? flag(tensor, names.is_cpu) : 0;
}

static PyObject *Memo_describe(Memo *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "describe(tensor, requires_grad)");
        return NULL;
    }
    PyObject *tensor = args[0], *requires_grad = args[1];
    int is_here = is_on_cpu(tensor);
    if (is_here <= 0) return is_here < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *value = look_or_none(self, tensor, SEEN);
    if (!value || value == Py_None) return value;
    int wanted = requires_grad == Py_None ? flag(tensor, names.requires_grad)
                                          : PyObject_IsTrue(requires_grad);
    PyObject *text = wanted < 0 ? NULL : value_text((Value *)value, wanted);
    Py_DECREF(value);
    return text;
}

/* Put a number, text or None as `msprobe.capture.values` describes it; 0 for any other value. */
static int put_scalar(struct text *text, PyObject *value)
{
    if (value == Py_None) return put(text, "null") ? -1 : 1;
    if (PyBool_Check(value))
        return put(text, value == Py_True ? "{\"type\":\"bool\",\"value\":true}"
                                          : "{\"type\":\"bool\",\"value\":false}") ? -1 : 1;
    if (PyLong_CheckExact(value)) {
        int overflow;
        int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow) return 0;
        return put(text, "{\"type\":\"int\",\"value\":") || put_int(text, number) ||
                       put(text, "}") ? -1 : 1;
    }
    int is_float = PyFloat_CheckExact(value);
    if (!is_float && !(PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value) <= LONGEST_TEXT))
        return 0;
    PyObject *encoded = PyObject_CallOneArg(torch.encode, value);
    if (!encoded) {
        PyErr_Clear(); /* a lone surrogate */
        return 0;
    }
    int failed = put(text, is_float ? "{\"type\":\"float\",\"value\":"
                                    : "{\"type\":\"str\",\"value\":") ||
                 put_number(text, value, PyBytes_AS_STRING(encoded),
                            (size_t)PyBytes_GET_SIZE(encoded)) ||
                 put(text, "}");
    Py_DECREF(encoded);
    return failed ? -1 : 1;
}

/* Whether this is a short list or tuple, which holds no tensors. */
static int is_short(PyObject *value)
{
    return (PyTuple_CheckExact(value) || PyList_CheckExact(value)) && Py_SIZE(value) <= SHORT;
}

/* Put the elements of a short list or tuple, as `put_scalar`. */
static int put_short(struct text *text, PyObject *values)
{
    int outcome = put(text, "[") ? -1 : 1;
    for (Py_ssize_t i = 0; outcome > 0 && i < PySequence_Fast_GET_SIZE(values); i++)
        outcome = i && put(text, ",") ? -1
                                      : put_scalar(text, PySequence_Fast_GET_ITEM(values, i));
    return outcome > 0 && put(text, "]") ? -1 : outcome;
}

/* Put a tensor that was looked at; 0 if it is not plain, -1 with an exception. */
static int put_seen(Memo *self, struct text *text, PyObject *tensor, enum entry entry)
{
    int may_be_put = text->may_wait ? 1 : is_on_cpu(tensor);
    if (may_be_put <= 0) return may_be_put;
    PyObject *known = look_or_none(self, tensor, entry);
    if (!known || known == Py_None || !fits(text, (Value *)known)) {
        Py_XDECREF(known);
        return known ? 0 : -1;
    }
    int wanted = flag(tensor, names.requires_grad);
    int failed = wanted < 0 || put_value_text(text, (Value *)known, wanted);
    Py_DECREF(known);
    return failed ? -1 : 1;
}

/* Put a plain tensor, a scalar or None; 0 for any other value, -1 with an exception. */
static int put_value(Memo *self, struct text *text, PyObject *value, PyObject *found,
                     PyObject *place)
{
    if ((PyObject *)Py_TYPE(value) != torch.tensor && (PyObject *)Py_TYPE(value) != torch.parameter)
        return is_short(value) ? put_short(text, value) : put_scalar(text, value);
    int outcome = put_seen(self, text, value, COMES_IN);
    if (outcome <= 0) return outcome;
    PyObject *pair = PyTuple_Pack(2, value, place);
    int failed = !pair || PyList_Append(found, pair) < 0;
    Py_XDECREF(pair);
    return failed ? -1 : 1;
}

static int is_scalar(PyObject *value)
{
    return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
           PyFloat_CheckExact(value) || PyUnicode_CheckExact(value);
}

/* Whether a value may be plain: asked of all values first, so that none is summarised in vain. */
static int may_be_plain(PyObject *value)
{
    PyObject *kind = (PyObject *)Py_TYPE(value);
    if (!is_short(value)) return kind == torch.tensor || kind == torch.parameter || is_scalar(value);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); i++)
        if (!is_scalar(PySequence_Fast_GET_ITEM(value, i))) return 0;
    return 1;
}

static PyObject *end_values(struct text *text, int outcome)
{
    PyObject *bytes = end_text(text, outcome <= 0);
    PyObject *raw = bytes && outcome > 0 ? PyObject_CallOneArg(torch.raw, bytes) : NULL;
    Py_XDECREF(bytes);
    return raw;
}

/* Put the list of positional arguments; 0 where one is not plain, -1 with an exception. */
static int put_positional(Memo *self, struct text *text, PyObject *values, PyObject *found)
{
    int outcome = put(text, "[") ? -1 : 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values) && outcome > 0; i++) {
        PyObject *place = PyLong_FromSsize_t(i);
        if (!place || (i && put(text, ","))) outcome = -1;
        else outcome = put_value(self, text, PyTuple_GET_ITEM(values, i), found, place);
        Py_XDECREF(place);
    }
    return outcome > 0 && put(text, "]") ? -1 : outcome;
}

/* Put a key of an object; -1 with an exception. */
static int put_key(struct text *text, PyObject *key)
{
    PyObject *encoded = PyObject_CallOneArg(torch.encode, key);
    int failed = !encoded ||
                 put_bytes(text, PyBytes_AS_STRING(encoded), (size_t)PyBytes_GET_SIZE(encoded)) ||
                 put(text, ":");
    Py_XDECREF(encoded);
    return failed ? -1 : 0;
}

static int are_keywords_plain(PyObject *keywords)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(keywords, &position, &key, &value))
        if (!PyUnicode_CheckExact(key) || !may_be_plain(value)) return 0;
    return 1;
}

/* Put the object of keyword arguments, as `put_positional`; none where `values` is NULL. */
static int put_keywords(Memo *self, struct text *text, PyObject *values, PyObject *found)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int outcome = put(text, "{") ? -1 : 1, is_first = 1;
    while (outcome > 0 && values && PyDict_Next(values, &position, &key, &value)) {
        PyObject *place = PyTuple_Pack(1, key);
        if (!place || (!is_first && put(text, ",")) || put_key(text, key)) outcome = -1;
        else outcome = put_value(self, text, value, found, place);
        Py_XDECREF(place);
        is_first = 0;
    }
    return outcome > 0 && put(text, "}") ? -1 : outcome;
}

/* What one of these puts, as `msgspec.Raw`; NULL, perhaps with an exception, if it puts nothing. */
static PyObject *described_by(int (*put_all)(Memo *, struct text *, PyObject *, PyObject *),
                              Memo *self, PyObject *values, PyObject *found)
{
    struct text text;
    begin_text(&text);
    return end_values(&text, put_all(self, &text, values, found));
}

static PyObject *Memo_describe_call(Memo *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyTuple_Check(args[0]) || !PyList_CheckExact(args[2]) ||
        (args[1] != Py_None && !PyDict_CheckExact(args[1]))) {
        PyErr_SetString(PyExc_TypeError, "describe_call(args, kwargs | None, found)");
        return NULL;
    }
    PyObject *values = args[0], *keywords = args[1] == Py_None ? NULL : args[1], *found = args[2];
    Py_ssize_t before = PyList_GET_SIZE(found);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++)
        if (!may_be_plain(PyTuple_GET_ITEM(values, i))) Py_RETURN_NONE;
    if (keywords && !are_keywords_plain(keywords)) Py_RETURN_NONE;
    PyObject *positional = described_by(put_positional, self, values, found);
    PyObject *named = positional ? described_by(put_keywords, self, keywords, found) : NULL;
    PyObject *both = named ? PyTuple_Pack(2, positional, named) : NULL;
    Py_XDECREF(positional);
    Py_XDECREF(named);
    if (both) return both;
    /* Described one by one, each value can fail, or have a note, by itself. */
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
        PyErr_Clear();
    }
    if (PyList_SetSlice(found, before, PY_SSIZE_T_MAX, NULL) < 0) return NULL;
    Py_RETURN_NONE;
}

/* Put the values of `count` slots of a side as a list, null for an empty one. */
static int put_slots(struct text *text, const char *key, Value **slots, Py_ssize_t count)
{
    int failed = put(text, key);
    for (Py_ssize_t i = 0; i < count && !failed; i++)
        failed = (i && put(text, ",")) ||
                 (slots[i] ? put_value_text(text, slots[i], 0) : put(text, "null"));
    return failed || put(text, "]") ? -1 : 0;
}

/* Look at each gradient: 1 when all are in their slots, 0 if one is not plain, -1 with an exception. */
static int fill_slots(Memo *self, PyObject *arrived, Value **slots, Py_ssize_t outputs,
                      Py_ssize_t arguments)
{
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(arrived); i++) {
        PyObject *tensor, *side;
        Py_ssize_t index;
        if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(arrived, i), "OUn", &tensor, &side, &index))
            return -1;
        int is_output = PyUnicode_CompareWithASCIIString(side, "input") == 0;
        if (index < 0 || index >= (is_output ? outputs : arguments)) return 0;
        Value **slot = slots + (is_output ? index : outputs + index);
        int is_here = is_on_cpu(tensor);
        if (is_here <= 0) return is_here;
        PyObject *value = *slot ? Py_NewRef(Py_None) : look_or_none(self, tensor, SEEN);
        if (!value || value == Py_None) {
            Py_XDECREF(value);
            return value ? 0 : -1;
        }
        *slot = (Value *)value;
    }
    return 1;
}

static PyObject *Memo_describe_gradients(Memo *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t outputs = nargs == 3 ? PyLong_AsSsize_t(args[1]) : -1;
    Py_ssize_t arguments = nargs == 3 ? PyLong_AsSsize_t(args[2]) : -1;
    if (outputs < 0 || arguments < 0) {
        PyErr_SetString(PyExc_TypeError, "describe_gradients(arrived, outputs, arguments)");
        return NULL;
    }
    PyObject *arrived = PySequence_Fast(args[0], "needs a list or a tuple");
    Value **slots = arrived ? PyMem_Calloc((size_t)(outputs + arguments) + 1, sizeof *slots) : NULL;
    int outcome = -1;
    struct text text;
    begin_text(&text);
    if (arrived && !slots) PyErr_NoMemory();
    if (slots) outcome = fill_slots(self, arrived, slots, outputs, arguments);
    if (outcome > 0 && (put_slots(&text, "{\"input\":[", slots, outputs) ||
                        put_slots(&text, ",\"output\":[", slots + outputs, arguments) ||
                        put(&text, "}")))
        outcome = -1;
    PyObject *raw = end_values(&text, outcome);
    for (Py_ssize_t i = 0; slots && i < outputs + arguments; i++) Py_XDECREF((PyObject *)slots[i]);
    PyMem_Free(slots);
    Py_XDECREF(arrived);
    if (!raw && !PyErr_Occurred()) Py_RETURN_NONE;
    return raw;
}

/* Check an argument, appending a tensor with its place to `found`: the worse of `state` and its own,
 * -1 where it is not read here, -2 with an exception. */
static int check_argument(Memo *self, PyObject *value, PyObject *place, PyObject *found,
                          enum entry entry, int reads_parameters, int state)
{
    PyObject *kind = (PyObject *)Py_TYPE(value);
    if (kind != torch.tensor && kind != torch.parameter) return state;
    PyObject *pair = PyTuple_Pack(2, value, place);
    int own = !pair || PyList_Append(found, pair) < 0 ? -2 : SOUND;
    if (own == SOUND && (kind == torch.tensor || reads_parameters))
        own = check_or_leave(self, value, entry);
    else if (own == SOUND && entry) enter(self, value, 0);
    Py_XDECREF(pair);
    return own < 0 ? own : own > state ? own : state;
}

/* Check the arguments of a call as `check_argument`; `keywords` may be NULL. Nothing is left in `found`
 * where one is not read here. */
static int check_arguments(Memo *self, PyObject *values, PyObject *keywords, PyObject *found,
                           enum entry entry, int reads_parameters)
{
    PyObject *key, *value;
    Py_ssize_t position = 0, before = PyList_GET_SIZE(found);
    int state = SOUND;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values) && state >= 0; i++) {
        PyObject *place = PyLong_FromSsize_t(i);
        state = place ? check_argument(self, PyTuple_GET_ITEM(values, i), place, found, entry,
                                       reads_parameters, state)
                      : -2;
        Py_XDECREF(place);
    }
    while (state >= 0 && keywords && PyDict_Next(keywords, &position, &key, &value)) {
        PyObject *place = PyTuple_Pack(1, key);
        state = place ? check_argument(self, value, place, found, entry, reads_parameters, state)
                      : -2;
        Py_XDECREF(place);
    }
    if (state == -1 && PyList_SetSlice(found, before, PY_SSIZE_T_MAX, NULL) < 0) state = -2;
    return state;
}

static PyObject *Memo_check_call(Memo *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyTuple_Check(args[0]) || !PyList_CheckExact(args[2]) ||
        (args[1] != Py_None && !PyDict_CheckExact(args[1]))) {
        PyErr_SetString(PyExc_TypeError, "check_call(args, kwargs | None, found, parameters)");
        return NULL;
    }
    PyObject *values = args[0], *keywords = args[1] == Py_None ? NULL : args[1];
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++)
        if (!may_be_plain(PyTuple_GET_ITEM(values, i))) return PyLong_FromLong(-1);
    if (keywords && !are_keywords_plain(keywords)) return PyLong_FromLong(-1);
    int state = check_arguments(self, values, keywords, args[2], SEEN, PyObject_IsTrue(args[3]));
    return state < -1 ? NULL : PyLong_FromLong(state);
}

static PyObject *Memo_check_gradients(Memo *self, PyObject *arrived)
{
    PyObject *fast = PySequence_Fast(arrived, "needs a list or a tuple");
    if (!fast) return NULL;
    int states[2] = {SOUND, SOUND};
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast); i++) {
        PyObject *tensor, *side, *position;
        int state = -2;
        if (PyArg_ParseTuple(PySequence_Fast_GET_ITEM(fast, i), "OUO", &tensor, &side, &position))
            state = check_or_leave(self, tensor, SEEN);
        if (state < 0) {
            Py_DECREF(fast);
            return state < -1 ? NULL : PyLong_FromLong(-1);
        }
        int *of_side = &states[PyUnicode_CompareWithASCIIString(side, "input") != 0];
        if (state > *of_side) *of_side = state;
    }
    Py_DECREF(fast);
    return PyLong_FromLong(states[0] | states[1] << 2);
}

static PyObject *Memo_born(Memo *self, PyObject *tensor)
{
    enter(self, tensor, (PyObject *)Py_TYPE(tensor) == torch.tensor);
    Py_RETURN_NONE;
}

/* Tell `enter` of each tensor in a list or tuple; in one of pairs, of the first of each pair. */
static PyObject *enter_all(Memo *self, PyObject *values, int are_born)
{
    PyObject *fast = PySequence_Fast(values, "needs a list or a tuple");
    if (!fast) return NULL;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast); i++) {
        PyObject *one = PySequence_Fast_GET_ITEM(fast, i);
        if (PyTuple_CheckExact(one) && PyTuple_GET_SIZE(one)) one = PyTuple_GET_ITEM(one, 0);
        if (one != Py_None)
            enter(self, one, are_born && (PyObject *)Py_TYPE(one) == torch.tensor);
    }
    Py_DECREF(fast);
    Py_RETURN_NONE;
}

static PyObject *Memo_all_born(Memo *self, PyObject *values)
{
    return enter_all(self, values, 1);
}

static PyObject *Memo_all_came_in(Memo *self, PyObject *found)
{
    return enter_all(self, found, 0);
}

static PyObject *Memo_came_in(Memo *self, PyObject *tensor)
{
    enter(self, tensor, 0);
    Py_RETURN_NONE;
}

static PyObject *Memo_wrote(Memo *self, PyObject *tensor)
{
    if (self->active && self->storages.count && is_strided(tensor) > 0) {
        PyObject *object;
        struct storage *storage = table_get(&self->storages, storage_address(tensor, &object));
        if (storage) storage->epoch++;
        Py_XDECREF(object);
    }
    PyErr_Clear(); /* a tensor without storage of its own */
    Py_RETURN_NONE;
}

static PyObject *Memo_ban(Memo *self, PyObject *tensor)
{
    struct storage *storage = enter(self, tensor, 0);
    if (storage) storage->epoch++, storage->is_banned = 1;
    Py_RETURN_NONE;
}

static PyObject *Memo_clear(Memo *self, PyObject *ignored)
{
    forget_all(self);
    Py_RETURN_NONE;
}

static PyObject *Memo_next_step(Memo *self, PyObject *ignored)
{
    forget_all(self);
    self->last_id = 0;
    Py_RETURN_NONE;
}

static void Memo_dealloc(Memo *self)
{
    forget_all(self);
    Py_XDECREF(self->summarise);
    free_object(self, PyObject_Free);
}

static PyMethodDef MEMO_METHODS[] = {
    {"look", (PyCFunction)Memo_look, METH_O,
     "look(tensor) -> Value of a plain tensor, None of any other"},
    {"describe", (PyCFunction)(void (*)(void))Memo_describe, METH_FASTCALL,
     "describe(tensor, requires_grad | None) -> JSON of a plain tensor on the CPU as msgspec.Raw, None of "
     "any other"},
    {"describe_call", (PyCFunction)(void (*)(void))Memo_describe_call, METH_FASTCALL,
     "describe_call(args, kwargs | None, found) -> JSON list and object of plain tensors, numbers, "
     "texts and None as two msgspec.Raw, each tensor appended to `found` with its place (`i` or "
     "`(key,)`) and told to `came_in`; None, with nothing appended, where there is anything else"},
    {"describe_gradients", (PyCFunction)(void (*)(void))Memo_describe_gradients, METH_FASTCALL,
     "describe_gradients(arrived, outputs, arguments) -> JSON of a backward record as msgspec.Raw, "
     "from (tensor, side, index) of each gradient; None where one is no plain tensor"},
    {"check", (PyCFunction)Memo_check, METH_O,
     "check(tensor) -> state of a plain tensor on the CPU: 0 finite, 1 near the largest number of its "
     "type, 2 NaN or infinities in it; -1 of any other tensor"},
    {"check_call", (PyCFunction)(void (*)(void))Memo_check_call, METH_FASTCALL,
     "check_call(args, kwargs | None, found, parameters) -> the worst state, each tensor appended to "
     "`found` with its place; parameters are read if `parameters` is true; -1, with nothing appended, "
     "where an argument is no plain tensor, number, text or None"},
    {"check_gradients", (PyCFunction)Memo_check_gradients, METH_O,
     "check_gradients(arrived) -> the worst states of (tensor, side, position): of the side 'input' "
     "in the two lowest bits, of the other in the next two; -1 where one is no plain tensor"},
    {"born", (PyCFunction)Memo_born, METH_O,
     "born(tensor): an observed call made it, unless its storage is known to be older"},
    {"came_in", (PyCFunction)Memo_came_in, METH_O,
     "came_in(tensor): an observed call received it; a storage not seen before is not remembered"},
    {"all_born", (PyCFunction)Memo_all_born, METH_O,
     "all_born(values): `born` of each tensor in a list or tuple; None is passed over"},
    {"all_came_in", (PyCFunction)Memo_all_came_in, METH_O,
     "all_came_in(found): `came_in` of the first of each pair in a list"},
    {"wrote", (PyCFunction)Memo_wrote, METH_O, "wrote(tensor): a call may have written to it"},
    {"ban", (PyCFunction)Memo_ban, METH_O,
     "ban(tensor): its storage may from now on change unseen"},
    {"clear", (PyCFunction)Memo_clear, METH_NOARGS, "clear(): forget everything"},
    {"next_step", (PyCFunction)Memo_next_step, METH_NOARGS,
     "next_step(): forget everything and number values anew"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef MEMO_MEMBERS[] = {
    {"active", T_BOOL, offsetof(Memo, active), 0, "whether writes are being observed"},
    {"bad", T_LONGLONG, offsetof(Memo, bad), 0,
     "how many values with a NaN or +Inf were described"},
    {"share", T_DOUBLE, offsetof(Memo, share), 0,
     "share of the largest number of a type from which `check` says that a value is near; 0: none is"},
    {"summarise", T_OBJECT, offsetof(Memo, summarise), 0,
     "summarise(tensor) -> Summary of a plain tensor on another device than the CPU, perhaps one that "
     "is not ready; None until it is set"},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot MEMO_SLOTS[] = {
    {Py_tp_new, (void *)PyType_GenericNew},
    {Py_tp_dealloc, (void *)Memo_dealloc},
    {Py_tp_methods, MEMO_METHODS},
    {Py_tp_members, MEMO_MEMBERS},
    {Py_tp_doc, (void *)"Values of plain tensors on the CPU, for the time that they are provably unchanged."},
    {0, NULL},
};

static PyType_Spec MEMO_SPEC = {
    .name = "msprobe.pytorch.values._tensors.Memo",
    .basicsize = sizeof(Memo),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = MEMO_SLOTS,
};

/* ---- module ---------------------------------------------------------------------------------- */

static int read_dlpack_table(PyObject *capsule)
{
    torch.dlpack = NULL;
    if (capsule == Py_None) return 0;
    const struct dl_exchange_api *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (!api) return -1;
    if (api->header.major == 1 && api->read) torch.dlpack = api;
    return 0;
}

static PyObject *setup(PyObject *module, PyObject *args)
{
    PyObject *dlpack;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOO", &torch.tensor, &torch.parameter, &torch.strided,
                          &torch.is_cow, &torch.expired, &torch.free_weak_ref, &torch.encode,
                          &torch.raw, &torch.summary, &torch.raw_of, &torch.kinds, &dlpack))
        return NULL;
    Py_INCREF(args); /* keeps all of them for ever */
    if (read_dlpack_table(dlpack) < 0) return NULL;
    for (int i = 0; i < DL_TYPE_COUNT; i++) {
        dl_kinds[i] = -1;
        for (int kind = 0; kind < native->kind_count; kind++)
            if (strcmp(native->kind(kind).name, DL_TYPES[i].name) == 0) dl_kinds[i] = (int8_t)kind;
    }
    Py_RETURN_NONE;
}

#include "_tensors_late.h"

/* ---- the graph of a call --------------------------------------------------------------------- */

/* Return the sequence number of a node, -1 with an exception; that of an AccumulateGrad is huge. */
static uint64_t sequence_number(PyObject *node)
{
    PyObject *number = PyObject_CallMethodNoArgs(node, names._sequence_nr);
    if (!number) return (uint64_t)-1;
    uint64_t value = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    return value;
}

/* A search, see `find_edges` in METHODS; all references are borrowed but the last three. */
struct search {
    PyObject *inner, *leaves, *outputs, *custom;
    uint64_t born, accumulates;
    Py_ssize_t most;
    PyObject *seen, *hits, *used;
};

/* Return the positions at an edge as a borrowed reference; NULL, perhaps with an exception. */
static PyObject *positions_at(struct search *search, PyObject *edge, PyObject *parent,
                              uint64_t *number)
{
    if (PyDict_GET_SIZE(search->inner)) {
        PyObject *positions = PyDict_GetItemWithError(search->inner, edge);
        if (positions || PyErr_Occurred()) return positions;
    }
    *number = sequence_number(parent);
    if (PyErr_Occurred() || *number < search->accumulates || !PyDict_GET_SIZE(search->leaves))
        return NULL;
    PyObject *variable = PyObject_GetAttr(parent, names.variable);
    PyObject *key = variable ? PyLong_FromVoidPtr(variable) : NULL;
    Py_XDECREF(variable);
    PyObject *positions = key ? PyDict_GetItemWithError(search->leaves, key) : NULL;
    Py_XDECREF(key);
    return positions;
}

/* Whether these positions are one, and none of the hits so far has them. */
static int is_hit_once(const struct search *search, PyObject *positions)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(search->hits); i++)
        if (PyTuple_GET_ITEM(PyList_GET_ITEM(search->hits, i), 2) == positions) return 0;
    return PyObject_Length(positions) == 1;
}

/* Look at the edge behind a slot of a node: 1, 0 to give the search up, -1 with an exception. */
static int look_behind(struct search *search, PyObject *node, Py_ssize_t slot, PyObject *edge,
                       PyObject *todo)
{
    PyObject *parent = PyTuple_GET_ITEM(edge, 0);
    if (parent == Py_None) return 1;
    uint64_t number = 0;
    PyObject *positions = positions_at(search, edge, parent, &number);
    if (positions) {
        if (search->most && !is_hit_once(search, positions)) return 0;
        PyObject *hit = Py_BuildValue("(OnO)", node, slot, positions);
        int failed = !hit || PyList_Append(search->hits, hit) < 0;
        Py_XDECREF(hit);
        return failed ? -1 : 1;
    }
    if (PyErr_Occurred()) return -1;
    if (number < search->born || number >= search->accumulates) return 1;
    int is_output = PyDict_Contains(search->outputs, edge);
    if (is_output < 0 || (is_output && PyList_Append(search->used, edge) < 0)) return -1;
    return PyList_Append(todo, parent) < 0 ? -1 : 1;
}

static int look_at(struct search *search, PyObject *node, PyObject *todo)
{
    int is_seen = PySet_Contains(search->seen, node);
    if (is_seen) return is_seen < 0 ? -1 : search->most == 0;
    if (search->most && (PySet_GET_SIZE(search->seen) == search->most ||
                         PyObject_TypeCheck(node, (PyTypeObject *)search->custom)))
        return 0;
    if (PySet_Add(search->seen, node) < 0) return -1;
    PyObject *edges = PyObject_GetAttr(node, names.next_functions);
    if (!edges) return -1;
    int outcome = 1;
    for (Py_ssize_t slot = 0; slot < PyTuple_GET_SIZE(edges) && outcome > 0; slot++)
        outcome = look_behind(search, node, slot, PyTuple_GET_ITEM(edges, slot), todo);
    Py_DECREF(edges);
    return outcome;
}

static PyObject *find_edges(PyObject *module, PyObject *args)
{
    struct search search = {0};
    unsigned long long born, accumulates;
    PyObject *start, *result = NULL;
    if (!PyArg_ParseTuple(args, "KO!O!O!O!O!Kn", &accumulates, &PyType_Type, &search.custom,
                          &PyList_Type, &start, &PyDict_Type, &search.inner, &PyDict_Type,
                          &search.leaves, &PyDict_Type, &search.outputs, &born, &search.most))
        return NULL;
    search.born = born;
    search.accumulates = accumulates;
    search.seen = PySet_New(NULL);
    search.hits = PyList_New(0);
    search.used = PyList_New(0);
    PyObject *todo = PyList_GetSlice(start, 0, PY_SSIZE_T_MAX);
    int outcome = search.seen && search.hits && search.used && todo ? 1 : -1;
    while (outcome > 0 && PyList_GET_SIZE(todo)) {
        Py_ssize_t last = PyList_GET_SIZE(todo) - 1;
        PyObject *node = Py_NewRef(PyList_GET_ITEM(todo, last));
        outcome = PyList_SetSlice(todo, last, last + 1, NULL) < 0 ? -1 : look_at(&search, node, todo);
        Py_DECREF(node);
    }
    if (outcome > 0) result = PyTuple_Pack(2, search.hits, search.used);
    else if (outcome == 0) result = Py_NewRef(Py_None);
    Py_XDECREF(search.seen);
    Py_XDECREF(search.hits);
    Py_XDECREF(search.used);
    Py_XDECREF(todo);
    return result;
}

#include "_tensors_taps.h"
#include "_tensors_calls.h"
#include "_tensors_apis.h"
#include "_tensors_outlines.h"

#include "_tensors_columns.h"
#include "_tensors_models.h"

static PyMethodDef METHODS[] = {
    {"fill_columns", fill_columns, METH_VARARGS,
     "fill_columns(tensors, (checksum, norm, projections, samples, elements), known | None, asks, "
     "crc32, has_samples) -> places of the tensors that are no plain ones on the CPU in one block; the "
     "others have their items in the lists, samples if `has_samples` is true. The dictionary `known` learns what is read, and spares reading "
     "again what has not changed, `asks` being 1; 0 reads everything, 2 what is trained"},
    {"fill_prints", fill_prints, METH_VARARGS,
     "fill_prints(tensors, out, keys | None, asks, crc32) -> as fill_columns(); the others have in "
     "the buffer `out`: uint64 checksum, float64 norm, two float64 projections. What has not changed, by "
     "the buffer `keys` with an uint64 for each that tells how it was when `out` was filled, is left"},
    {"fill_measures", fill_measures, METH_VARARGS,
     "fill_measures(tensors, out, threshold, bins | None, known | None) -> places of the tensors that "
     "are no plain ones on the CPU; the others have in the buffer `out`: max, min, mean, norm, "
     "elements below the threshold, NaN, infinities, elements, all float64; in `bins` they have 35 "
     "counts each. `known` spares reading again what has not changed"},
    {"add_model", add_model, METH_VARARGS,
     "add_model(model, prefix, (names, tensors, same_as, modules, training, parameter, buffer)): see "
     "msprobe.pytorch.training.model_contents"},
    {"find_tensors", find_tensors, METH_O,
     "find_tensors(models) -> parameters and buffers of a list of models, in the order of add_model(); "
     "and bytes that stay the same while the models have the same parts by the same names"},
    {"find_edges", find_edges, METH_VARARGS,
     "find_edges(accumulates, custom, start, inner, leaves, outputs, born, most): see "
     "msprobe.pytorch.gradients.graph_search"},
    {"tap_output", (PyCFunction)(void (*)(void))tap_output, METH_FASTCALL,
     "tap_output(session, recorder | None, edges, output) -> whether the gradients of a call are tapped, whose inputs "
     "have these `InputEdges`, and whose output is a tensor or a tuple of tensors: see "
     "msprobe.pytorch.gradients.quick_taps"},
    {"setup_taps", setup_taps, METH_VARARGS,
     "setup_taps(...): what `tap_output` and its hooks need of torch and this package; call it once"},
    {"setup", setup, METH_VARARGS,
     "setup(Tensor, Parameter, strided, is_cow | None, expired, free_weak_ref, encode, Raw, "
     "summary_of, raw_of, kinds, dlpack_table | None): what is needed of torch; call it once"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_tensors", "Plain tensors on the CPU, described once each.", -1,
    METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__tensors(void)
{
    native = PyCapsule_Import(MSPROBE_NATIVE_API, 0);
    if (!native) return NULL;
    if (native->version != MSPROBE_NATIVE_API_VERSION) {
        PyErr_SetString(PyExc_ImportError, "msprobe's C extensions are of different builds");
        return NULL;
    }
#define INTERN(name)                                                                            \
    if (!(names.name = PyUnicode_InternFromString(#name))) return NULL;
    NAMES(INTERN)
#undef INTERN
    if (make_type(&ValueType, &VALUE_SPEC) < 0 || make_type(&MemoType, &MEMO_SPEC) < 0 ||
        make_type(&LateTextType, &LATE_TEXT_SPEC) < 0 ||
        make_type(&InputEdgesType, &INPUT_EDGES_SPEC) < 0 || make_type(&TapType, &TAP_SPEC) < 0 ||
        make_type(&OpenCallType, &OPEN_CALL_SPEC) < 0 ||
        make_type(&CallRecorderType, &CALL_RECORDER_SPEC) < 0 ||
        make_type(&ApiPathType, &API_PATH_SPEC) < 0 ||
        make_type(&OutlinePathType, &OUTLINE_PATH_SPEC) < 0)
        return NULL;
    PyObject *module = PyModule_Create(&MODULE);
    if (!module) return NULL;
    if (PyModule_AddObjectRef(module, "Memo", (PyObject *)MemoType) < 0 ||
        PyModule_AddObjectRef(module, "Value", (PyObject *)ValueType) < 0 ||
        PyModule_AddObjectRef(module, "InputEdges", (PyObject *)InputEdgesType) < 0 ||
        PyModule_AddObjectRef(module, "CallRecorder", (PyObject *)CallRecorderType) < 0 ||
        PyModule_AddObjectRef(module, "ApiPath", (PyObject *)ApiPathType) < 0 ||
        PyModule_AddObjectRef(module, "OutlinePath", (PyObject *)OutlinePathType) < 0)
        Py_CLEAR(module);
    return module;
}
