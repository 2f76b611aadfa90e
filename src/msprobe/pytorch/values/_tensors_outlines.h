/* SPDX-License-Identifier: Apache-2.0
 *
 * A part of _tensors.c: note which calls are made, where they have no records. `OutlinePath.handle`
 * does what `CallOutlines.__torch_function__` in msprobe.pytorch.interception does, for calls that
 * were made before at the same place with the same arguments; any other is shown to that.
 */

/* Where a tensor comes from, which a weak reference tells from a later one at its address. */
struct origin {
    uint64_t address;
    PyObject *weak_ref;
    int64_t number; /* ITEMS times that of the call + 1, plus the place among its results; else <= 0 */
};

#define ITEMS (2 * SHORT) /* the first SHORT results, and their transposes */

typedef struct {
    PyObject_HEAD
    PyObject *in_python;                        /* the handler of the mode */
    PyObject *add, *begin_run, *meet; /* methods of the mode, see `CallOutlines`; of `Outlines`: */
    PyObject *outside, *turned;
    PyObject *session, *left_threads, *entries; /* of the mode */
    PyObject *look_up;                          /* for functions that are not among the entries */
    PyObject *is_tracing, *compiler, *jit_state, *inner_code; /* as in ApiPath */
    PyObject *words; /* types of which each value counts, and has a hash */
    /* What runs: the module, the record that ended last, the list of calls; NULL before the first. */
    PyObject *module, *after, *run;
    PyObject *known; /* key of a call -> its number */
    PyObject *fed;   /* see `Outline.fed` */
    Py_ssize_t most, noted; /* calls of the step */
    struct table origins;
} OutlinePath;

#define OUTLINE_OWNED(self) (&(self)->in_python)
#define OUTLINE_GIVEN 15
#define OUTLINE_OWNED_COUNT 20

static void forget_origins(OutlinePath *self)
{
    struct table origins = table_empty(&self->origins);
    for (size_t i = 0; i < origins.capacity; i++) {
        struct origin *origin = origins.slots[i];
        if (!origin) continue;
        Py_DECREF(origin->weak_ref);
        PyMem_Free(origin);
    }
    PyMem_Free(origins.slots);
}

/* Return what is known of a tensor; NULL, perhaps with an exception. */
static struct origin *find_origin(const OutlinePath *self, PyObject *tensor)
{
    struct origin *origin = table_get(&self->origins, (uint64_t)(uintptr_t)tensor);
    PyObject *alive = origin ? PyObject_CallNoArgs(origin->weak_ref) : NULL;
    Py_XDECREF(alive); /* compared only */
    return alive == tensor ? origin : NULL;
}

/* Note where a tensor comes from that is not known; -1 with an exception. */
static int put_origin(OutlinePath *self, PyObject *tensor, int64_t number)
{
    struct origin *origin = table_get(&self->origins, (uint64_t)(uintptr_t)tensor);
    PyObject *weak_ref = PyWeakref_NewRef(tensor, NULL);
    if (!weak_ref) return -1;
    if (origin) {
        Py_SETREF(origin->weak_ref, weak_ref);
        origin->number = number;
        return 0;
    }
    if (!(origin = PyMem_Malloc(sizeof *origin))) PyErr_NoMemory();
    else *origin = (struct origin){(uint64_t)(uintptr_t)tensor, weak_ref, number};
    if (origin && table_put(&self->origins, origin) == 0) return 0;
    PyMem_Free(origin);
    Py_DECREF(weak_ref);
    return -1;
}

/* Find where a tensor comes from; -1 with an exception. */
static int find_number(OutlinePath *self, PyObject *tensor, int64_t *number)
{
    const struct origin *origin = find_origin(self, tensor);
    if (origin && origin->number) { /* a model may be given one that was unknown before */
        *number = origin->number;
        return 0;
    }
    if (PyErr_Occurred()) return -1;
    *number = take_int(PyObject_CallOneArg(self->outside, tensor));
    return PyErr_Occurred() ? -1 : put_origin(self, tensor, *number);
}

/* Find where what a view shows comes from; -1 with an exception. */
static int find_view(OutlinePath *self, PyObject *entry, PyObject *tensor, int64_t *number)
{
    if (find_number(self, tensor, number) < 0) return -1;
    int is_turned = flag(entry, names.is_turned);
    if (is_turned <= 0) return is_turned;
    if (*number > 0) {
        *number += *number % ITEMS < SHORT ? SHORT : -SHORT;
        return 0;
    }
    PyObject *outside = PyLong_FromLongLong(*number);
    *number = outside ? take_int(PyObject_CallOneArg(self->turned, outside)) : 0;
    Py_XDECREF(outside);
    return PyErr_Occurred() ? -1 : 0;
}

/* Note which tensor the call that begins is fed with; -1 with an exception. */
static int feed(OutlinePath *self, PyObject *tensor)
{
    int64_t number;
    if (find_number(self, tensor, &number) < 0) return -1;
    if (number > 0) number = self->noted + 1 - number / ITEMS + number % ITEMS * self->most;
    PyObject *written = PyLong_FromLongLong(number);
    int failed = written ? PyList_Append(self->fed, written) : -1;
    Py_XDECREF(written);
    return failed;
}

/* Note a result, if it is a tensor, and none that the call was given. */
static void note_result(OutlinePath *self, PyObject *result, int64_t number)
{
    if (PyObject_IsInstance(result, torch.tensor) == 1 && !find_origin(self, result) && !PyErr_Occurred())
        put_origin(self, result, number);
    PyErr_Clear(); /* it is of an unknown origin */
}

static void note_results(OutlinePath *self, PyObject *result, int64_t number)
{
    if (!PyTuple_Check(result) && !PyList_Check(result)) {
        note_result(self, result, number);
        return;
    }
    Py_ssize_t count = PySequence_Size(result);
    for (Py_ssize_t i = 0; i < count && i < SHORT; i++) {
        PyObject *item = PySequence_GetItem(result, i);
        if (item) note_result(self, item, number + i);
        else PyErr_Clear();
        Py_XDECREF(item);
    }
}

static uint64_t blend(uint64_t key, uint64_t word)
{
    key = (key ^ word) * 0x9e3779b97f4a7c15u;
    return key ^ key >> 29;
}

enum word { OF_NONE = 1, OF_TENSOR, OF_TRUE, OF_FALSE, OF_FLOAT, OF_INT, OF_TEXT, OF_LIST, OF_SLICE, OF_CLASS };

static int blend_hash(uint64_t *key, PyObject *value, enum word word)
{
    Py_hash_t hash = PyObject_Hash(value);
    *key = blend(blend(*key, word), (uint64_t)hash);
    return hash == -1 ? -1 : 0;
}

/* Add an argument to the key of a call, by the same text as `_word` in Python, and what tensors it feeds
 * the call with; -1 with an exception. */
static int blend_argument(OutlinePath *self, uint64_t *key, PyObject *value, int depth)
{
    PyObject *type = (PyObject *)Py_TYPE(value);
    if (type == torch.tensor || type == torch.parameter) {
        *key = blend(*key, OF_TENSOR);
        return feed(self, value);
    } else if (value == Py_None || value == Py_True || value == Py_False) {
        *key = blend(*key, value == Py_None ? OF_NONE : value == Py_True ? OF_TRUE : OF_FALSE);
    } else if (PyFloat_CheckExact(value)) {
        double number = PyFloat_AsDouble(value);
        uint64_t bits;
        memcpy(&bits, &number, sizeof bits);
        *key = blend(blend(*key, OF_FLOAT), bits);
    } else if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow) return blend_hash(key, value, OF_INT);
        *key = blend(blend(*key, OF_INT), (uint64_t)number);
    } else if (PyUnicode_CheckExact(value)) {
        return blend_hash(key, value, OF_TEXT);
    } else if ((PyTuple_Check(value) || PyList_Check(value)) && depth < 8) {
        Py_ssize_t count = PySequence_Size(value);
        *key = blend(blend(*key, OF_LIST), (uint64_t)count);
        for (Py_ssize_t i = 0; i < count && i < SHORT; i++) {
            PyObject *item = PySequence_GetItem(value, i);
            int failed = !item || blend_argument(self, key, item, depth + 1) < 0;
            Py_XDECREF(item);
            if (failed) return -1;
        }
    } else if (PySlice_Check(value)) {
        PyObject *const parts[] = {names.start, names.stop, names.step};
        *key = blend(*key, OF_SLICE);
        for (int i = 0; i < 3; i++) {
            PyObject *part = PyObject_GetAttr(value, parts[i]);
            int failed = !part || blend_argument(self, key, part, depth + 1) < 0;
            Py_XDECREF(part);
            if (failed) return -1;
        }
    } else if (PyObject_IsInstance(value, torch.tensor) == 1) {
        *key = blend(*key, OF_TENSOR);
        return feed(self, value);
    } else {
        int is_word = PySequence_Contains(self->words, type);
        return is_word < 0 ? -1 : blend_hash(key, is_word ? value : type, OF_CLASS);
    }
    return 0;
}

/* The key of a call: where it is made, of what, with which arguments; NULL with an exception. */
static PyObject *key_of_call(OutlinePath *self, PyObject *entry, PyObject *frame, PyObject *args,
                             PyObject *kwargs)
{
    uint64_t key = 0;
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame); /* `add` keeps it */
    PyObject *at = PyObject_GetAttr(frame, names.f_lasti), *name = PyObject_GetAttr(entry, names.name);
    int failed = !at || !name || blend_argument(self, &key, at, 0) < 0 ||
                 blend_argument(self, &key, name, 0) < 0 || blend_argument(self, &key, args, 0) < 0;
    key = blend(key, (uint64_t)(uintptr_t)code);
    Py_XDECREF(code);
    Py_XDECREF(at);
    Py_XDECREF(name);
    PyObject *keyword, *value;
    Py_ssize_t position = 0;
    while (!failed && PyDict_Next(kwargs, &position, &keyword, &value))
        failed = blend_argument(self, &key, keyword, 0) < 0 || blend_argument(self, &key, value, 0) < 0;
    return failed ? NULL : PyLong_FromUnsignedLongLong(key);
}

/* Let `run` be the list of what runs now; -1 with an exception. */
static int find_run(OutlinePath *self, PyObject *calls)
{
    PyObject *modules = PyObject_GetAttr(calls, names.modules);
    PyObject *after = modules ? PyObject_GetAttr(calls, names.last_record) : NULL;
    Py_ssize_t count = after ? PySequence_Size(modules) : -1;
    PyObject *module = count < 0 ? NULL : count ? PySequence_GetItem(modules, count - 1) : Py_NewRef(Py_None);
    Py_XDECREF(modules);
    int failed = !module;
    if (module && !(self->run && module == self->module && after == self->after)) {
        Py_XSETREF(self->run, PyObject_CallFunctionObjArgs(self->begin_run, module, after, NULL));
        failed = !self->run || !PyList_CheckExact(self->run);
        Py_XSETREF(self->module, Py_NewRef(module));
        Py_XSETREF(self->after, Py_NewRef(after));
    }
    Py_XDECREF(module);
    Py_XDECREF(after);
    return failed ? -1 : 0;
}

/* Note in `met` whether a tensor with a gradient, or one without, is met. -1 with an exception. */
static int meet_tensor(PyObject *each, int met[2])
{
    if ((PyObject *)Py_TYPE(each) != torch.tensor) return 0;
    int answer = flag(each, names.requires_grad);
    if (answer >= 0) met[answer] = 1;
    return answer < 0 ? -1 : 0;
}

/* Whether tensors with and without a gradient are among the arguments: outside of modules, those of a
 * loss and its labels. -1 with an exception. */
static int is_meeting(PyObject *args, PyObject *kwargs)
{
    int met[2] = {0, 0};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++)
        if (meet_tensor(PyTuple_GET_ITEM(args, i), met) < 0) return -1;
    PyObject *name, *each;
    for (Py_ssize_t at = 0; PyDict_Next(kwargs, &at, &name, &each);)
        if (meet_tensor(each, met) < 0) return -1;
    return met[0] && met[1];
}

/* Note a call; -1 with an exception. */
static int note_call(OutlinePath *self, PyObject *entry, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t fed = PyList_Size(self->fed);
    PyObject *frame = calling_frame(self->inner_code);
    PyObject *calls = frame ? PyObject_GetAttr(self->session, names.calls) : NULL;
    PyObject *key = calls && find_run(self, calls) == 0 ? key_of_call(self, entry, frame, args, kwargs) : NULL;
    PyObject *number = key ? Py_XNewRef(PyDict_GetItemWithError(self->known, key)) : NULL;
    if (key && !number && !PyErr_Occurred()) {
        number = PyObject_CallFunctionObjArgs(self->add, entry, frame, args, kwargs, NULL);
        if (number && PyDict_SetItem(self->known, key, number) < 0) Py_CLEAR(number);
    }
    int failed = number ? PyList_Append(self->run, number) : PyErr_Occurred() ? -1 : 0;
    if (number && !failed) self->noted++;
    else if (PyList_Size(self->fed) > fed) { /* Python notes it */
        PyObject *kind, *value, *traceback;
        PyErr_Fetch(&kind, &value, &traceback);
        PyList_SetSlice(self->fed, fed, PyList_Size(self->fed), NULL);
        PyErr_Restore(kind, value, traceback);
    }
    if (number && !failed && self->module == Py_None && self->after != Py_None && PyTuple_CheckExact(args)) {
        int meets = is_meeting(args, kwargs);
        failed = meets > 0 ? call_away(PyObject_CallFunctionObjArgs(self->meet, entry, args, kwargs, NULL)) : meets;
    }
    Py_XDECREF(number);
    Py_XDECREF(key);
    Py_XDECREF(calls);
    Py_XDECREF(frame);
    return failed;
}

/* Note a call that is to be noted; return which way it goes on. `*number`: where its first result comes
 * from, 0 if that is unknown. */
static enum way note_way(OutlinePath *self, PyObject *func, PyObject *args, PyObject *kwargs,
                         int64_t *number)
{
    if (PySet_GET_SIZE(self->left_threads)) return IN_PYTHON;
    int answer = flag(self->session, names.observing);
    if (answer <= 0) return answer ? FAILED : UNSEEN;
    if (self->noted >= self->most) return UNSEEN;
    PyObject *entry = Py_XNewRef(PyDict_GetItemWithError(self->entries, func));
    if (!entry) {
        PyErr_Clear(); /* one that has no hash */
        entry = PyObject_CallOneArg(self->look_up, func);
    }
    answer = entry ? flag(entry, names.is_outlined) : -1;
    int is_view = 0;
    if (!answer && PyTuple_CheckExact(args) && PyTuple_GET_SIZE(args))
        answer = is_view = flag(entry, names.is_view);
    if (answer > 0) {
        int is_kept_out = is_tracing(&self->is_tracing);
        if (!is_kept_out) is_kept_out = flag(self->session, names.muted);
        answer = is_kept_out ? (is_kept_out < 0 ? -1 : 0) : 1;
    }
    if (answer > 0 && is_view) answer = find_view(self, entry, PyTuple_GET_ITEM(args, 0), number);
    else if (answer > 0 && (answer = note_call(self, entry, args, kwargs)) == 0)
        *number = self->noted * ITEMS;
    Py_XDECREF(entry);
    return answer < 0 ? FAILED : UNSEEN;
}

static PyObject *OutlinePath_handle(OutlinePath *self, PyObject *const *given_all, Py_ssize_t count)
{
    if (count < 3 || count > 5) {
        PyErr_SetString(PyExc_TypeError, "handle(mode, func, types, args=(), kwargs=None)");
        return NULL;
    }
    PyObject *func = given_all[1], *result = NULL;
    PyObject *args = count > 3 ? Py_NewRef(given_all[3]) : PyTuple_New(0);
    int has_kwargs = count > 4 && given_all[4] != Py_None;
    PyObject *kwargs = has_kwargs ? Py_NewRef(given_all[4]) : PyDict_New();
    int64_t number = 0;
    enum way way = !args || !kwargs ? FAILED : note_way(self, func, args, kwargs, &number);
    if (way == FAILED && args && kwargs && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* Python meets the same, and notes it */
        way = IN_PYTHON;
    }
    if (way == UNSEEN) {
        result = PyObject_Call(func, args, kwargs);
        if (result && number) note_results(self, result, number);
    } else if (way == IN_PYTHON)
        result = PyObject_CallFunctionObjArgs(self->in_python, func, given_all[2], args, kwargs, NULL);
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    return result;
}

static PyObject *OutlinePath_begin_step(OutlinePath *self, PyObject *args)
{
    int is_new;
    PyObject *fed;
    if (!PyArg_ParseTuple(args, "npO!", &self->most, &is_new, &PyList_Type, &fed)) return NULL;
    Py_XSETREF(self->fed, Py_NewRef(fed));
    self->noted = 0;
    forget_origins(self);
    Py_CLEAR(self->module);
    Py_CLEAR(self->after);
    Py_CLEAR(self->run);
    if (is_new) PyDict_Clear(self->known);
    Py_RETURN_NONE;
}

static int OutlinePath_traverse(OutlinePath *self, visitproc visit, void *arg)
{
    for (int i = 0; i < OUTLINE_OWNED_COUNT; i++) Py_VISIT(OUTLINE_OWNED(self)[i]);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static int OutlinePath_clear(OutlinePath *self)
{
    for (int i = 0; i < OUTLINE_OWNED_COUNT; i++) Py_CLEAR(OUTLINE_OWNED(self)[i]);
    forget_origins(self);
    return 0;
}

static void OutlinePath_dealloc(OutlinePath *self)
{
    PyObject_GC_UnTrack(self);
    OutlinePath_clear(self);
    free_object(self, PyObject_GC_Del);
}

static int OutlinePath_init(OutlinePath *self, PyObject *args, PyObject *kwargs)
{
    PyObject *one[OUTLINE_GIVEN];
    if (!PyArg_ParseTuple(args, "OOOOOOOO!O!OOOOOO!", &one[0], &one[1], &one[2], &one[3], &one[4],
                          &one[5], &one[6], &PySet_Type, &one[7], &PyDict_Type, &one[8], &one[9],
                          &one[10], &one[11], &one[12], &one[13], &PyTuple_Type, &one[14]))
        return -1;
    for (int i = 0; i < OUTLINE_GIVEN; i++) Py_XSETREF(OUTLINE_OWNED(self)[i], Py_NewRef(one[i]));
    Py_XSETREF(self->known, PyDict_New());
    return self->known ? 0 : -1;
}

static PyMethodDef OUTLINE_METHODS[] = {
    {"handle", (PyCFunction)(void (*)(void))OutlinePath_handle, METH_FASTCALL,
     "handle(mode, func, types, args=(), kwargs=None) -> the result of a call, which is noted"},
    {"begin_step", (PyCFunction)OutlinePath_begin_step, METH_VARARGS,
     "begin_step(count, is_new, fed): note that many calls, whether none is known any more, and what "
     "feeds them"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot OUTLINE_PATH_SLOTS[] = {
    {Py_tp_new, (void *)PyType_GenericNew},
    {Py_tp_init, (void *)OutlinePath_init},
    {Py_tp_traverse, (void *)OutlinePath_traverse},
    {Py_tp_clear, (void *)OutlinePath_clear},
    {Py_tp_dealloc, (void *)OutlinePath_dealloc},
    {Py_tp_methods, OUTLINE_METHODS},
    {Py_tp_doc, (void *)"OutlinePath(...): see CallOutlines in msprobe.pytorch.interception.call_outlines"},
    {0, NULL},
};

static PyType_Spec OUTLINE_PATH_SPEC = {
    .name = "msprobe.pytorch.values._tensors.OutlinePath",
    .basicsize = sizeof(OutlinePath),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = OUTLINE_PATH_SLOTS,
};
