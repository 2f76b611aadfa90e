/* SPDX-License-Identifier: Apache-2.0
 *
 * A part of _tensors.c: the gradients of a call. `InputEdges` notes before the call where its inputs
 * hang in the graph, `tap_output` puts hooks on the nodes behind its output, and `Tap` is the hook.
 * What they do is said in msprobe.pytorch.gradients: input_edges.py, quick_taps.py and node_taps.py
 * have the same in Python, which takes over wherever something is out of the ordinary.
 */

/* What `setup_taps` was given. */
static struct {
    PyObject *gradients, *custom, *region, *whole_region, *reshaped; /* classes and their makers */
    PyObject *turned;
    PyObject *take, *quietly, *closed, *one;
    PyObject *clock, *no_functions, *is_grad_enabled, *set_grad_enabled, *dispatch_modes;
    PyObject *transforms, *graph_task, *get_sequence_number;
    uint64_t accumulates;
    double call_s, displaced;
} given;

/* ---- the guard ------------------------------------------------------------------------------- */

/* The state of interception/guard.py: what `quietly` enters. */
struct guard {
    PyObject *session, *lock, *no_functions, *started;
    int had_grad;
};

static int call_away(PyObject *result)
{
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* Return the result of a call as true or false, -1 with an exception. */
static int take_truth(PyObject *result)
{
    if (!result) return -1;
    int truth = result == Py_True ? 1 : result == Py_False ? 0 : PyObject_IsTrue(result);
    Py_DECREF(result);
    return truth;
}

/* Add the time since `started` to the account of the session's step. */
static int account_for(struct guard *guard)
{
    PyObject *now = PyObject_CallNoArgs(given.clock);
    PyObject *step = now ? PyObject_GetAttr(guard->session, names.current) : NULL;
    PyObject *account = step ? PyObject_GetAttr(step, names.account) : NULL;
    PyObject *spent = account ? PyObject_GetAttr(account, names.spent_s) : NULL, *sum = NULL;
    if (spent)
        sum = PyFloat_FromDouble(PyFloat_AsDouble(spent) + given.call_s +
                                 given.displaced * (PyFloat_AsDouble(now) -
                                                    PyFloat_AsDouble(guard->started)));
    int failed = !sum || PyObject_SetAttr(account, names.spent_s, sum) < 0 ||
                 PyObject_SetAttr(guard->session, names.spending_since, Py_None) < 0;
    Py_XDECREF(now);
    Py_XDECREF(step);
    Py_XDECREF(account);
    Py_XDECREF(spent);
    Py_XDECREF(sum);
    return failed ? -1 : 0;
}

/* Undo whatever was entered; an exception that is set stays. */
static void leave_guard(struct guard *guard)
{
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    int failed = 0;
    if (guard->had_grad > 0)
        failed |= call_away(PyObject_CallOneArg(given.set_grad_enabled, Py_True));
    if (guard->no_functions)
        failed |= call_away(PyObject_CallMethodObjArgs(guard->no_functions, names.__exit__, Py_None,
                                                       Py_None, Py_None, NULL));
    if (guard->lock) failed |= call_away(PyObject_CallMethodNoArgs(guard->lock, names.release));
    if (guard->started) failed |= account_for(guard);
    if (failed) PyErr_WriteUnraisable(guard->session);
    Py_XDECREF(guard->no_functions);
    Py_XDECREF(guard->lock);
    Py_XDECREF(guard->started);
    PyErr_Restore(kind, value, traceback);
}

/* Enter it; -1 with an exception, and then nothing is entered. */
static int enter_guard(struct guard *guard, PyObject *session)
{
    *guard = (struct guard){.session = session};
    PyObject *since = PyObject_GetAttr(session, names.spending_since), *held;
    if (!since) return -1;
    Py_DECREF(since);
    int failed = 0;
    if (since == Py_None) {
        guard->started = PyObject_CallNoArgs(given.clock);
        failed = !guard->started ||
                 PyObject_SetAttr(session, names.spending_since, guard->started) < 0;
    }
    if (!failed && (held = PyObject_GetAttr(session, names.lock))) {
        failed = call_away(PyObject_CallMethodNoArgs(held, names.acquire)) < 0;
        if (failed) Py_DECREF(held);
        else guard->lock = held;
    } else {
        failed = 1;
    }
    if (!failed && (held = PyObject_CallNoArgs(given.no_functions))) {
        failed = call_away(PyObject_CallMethodNoArgs(held, names.__enter__)) < 0;
        if (failed) Py_DECREF(held);
        else guard->no_functions = held;
    } else {
        failed = 1;
    }
    if (!failed) guard->had_grad = take_truth(PyObject_CallNoArgs(given.is_grad_enabled));
    if (!failed && guard->had_grad > 0)
        failed = call_away(PyObject_CallOneArg(given.set_grad_enabled, Py_False)) < 0;
    if (failed || guard->had_grad < 0) {
        leave_guard(guard);
        return -1;
    }
    return 0;
}

/* Tell the session of an exception that is set; -1 for one that is not ours to hold. */
static int tell_failure(PyObject *session, const char *where)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    PyErr_NormalizeException(&kind, &value, &traceback);
    if (traceback) PyException_SetTraceback(value, traceback);
    int failed = call_away(PyObject_CallMethod(session, "failed", "sO", where, value)) < 0;
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return failed ? -1 : 0;
}

/* ---- the recorder ------------------------------------------------------------------------------ */

#define NO_ORDER (-1) /* OUTSIDE_CONSTRUCT in dump/lines.py */

/* See _tensors_calls.h. */
typedef struct {
    PyObject_HEAD
    PyObject *session, *calls, *recording, *step; /* of the run */
    PyObject *make_call, *tap_other, *memo;
    PyObject *numbers, *modules, *written_stacks, *open_passes,
        *reached; /* tables that they share */
    /* Of a `WatchRecording`, which records only what is not sound: its table of stacks, or None, and
     * whether APIs of a name write to their arguments. */
    PyObject *stacks, *writes_arguments;
    int64_t flush_at; /* bytes of lines */
    char keeps_gradients, keeps_construct, reads_parameters;
} CallRecorder;

static int is_watching(const CallRecorder *self)
{
    return self->stacks != Py_None;
}

/* Whether an attribute is this object; -1 with an exception. */
static int is_attribute(PyObject *object, PyObject *name, PyObject *expected)
{
    PyObject *value = PyObject_GetAttr(object, name);
    Py_XDECREF(value); /* compared only */
    return value ? value == expected : -1;
}

/* Add a line to the journal of a dump, by a method of its lines, or by the dump's own method, which
 * knows what to do about errors and a journal that takes no more; -1 with an exception. */
static int add_line(const CallRecorder *self, PyObject *dump, PyObject *method, PyObject *own_method,
                    PyObject **args, size_t count)
{
    PyObject *lines = PyObject_GetAttr(dump, names.lines);
    if (!lines) return -1;
    PyObject *size = NULL;
    if (lines != Py_None) {
        args[0] = lines;
        size = PyObject_VectorcallMethod(method, args, count, NULL);
    }
    Py_DECREF(lines);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
        PyErr_Clear();
    }
    args[0] = dump;
    if (!size) return call_away(PyObject_VectorcallMethod(own_method, args, count, NULL));
    int64_t waiting = take_int(size);
    if (waiting > self->flush_at) return call_away(PyObject_CallMethodNoArgs(dump, names.flush));
    return waiting < 0 ? -1 : 0;
}

/* Tell the dump of a call, if it writes them; -1 with an exception. */
static int put_call(const CallRecorder *self, PyObject *name, PyObject *order, PyObject *parent,
                    PyObject *stack)
{
    PyObject *dump = PyObject_GetAttr(self->recording, names.dump);
    int failed = !dump;
    if (!failed && dump != Py_None) {
        PyObject *args[] = {NULL, name, order, parent, stack};
        int wanted = flag(dump, names.extra_info);
        failed = wanted < 0 ||
                 (wanted && add_line(self, dump, names.call, names.put_call, args, 5) < 0);
    }
    Py_XDECREF(dump);
    return failed ? -1 : 0;
}

/* Hand a record to the dump, and count it, or a late one to the recording, which does so when its
 * numbers have come; -1 with an exception. */
static int hand_on(const CallRecorder *self, PyObject *name, PyObject *order, PyObject *raw)
{
    if (Py_IS_TYPE(raw, LateTextType))
        return call_away(PyObject_CallMethodObjArgs(self->recording, names.defer, name, order, raw,
                                                    NULL));
    PyObject *dump = PyObject_GetAttr(self->recording, names.dump);
    PyObject *account = dump ? PyObject_GetAttr(self->step, names.account) : NULL;
    int failed = !account;
    if (!failed && dump != Py_None) {
        PyObject *args[] = {NULL, name, order, raw};
        failed = add_line(self, dump, names.record, names.put_record, args, 4) < 0;
    }
    int64_t records = failed ? -1 : take_int(PyObject_GetAttr(account, names.records));
    PyObject *more = records < 0 ? NULL : PyLong_FromLongLong(records + 1);
    if (!more || PyObject_SetAttr(account, names.records, more) < 0) failed = 1;
    Py_XDECREF(more);
    Py_XDECREF(account);
    Py_XDECREF(dump);
    return failed ? -1 : 0;
}

/* ---- inputs of a call ------------------------------------------------------------------------ */

/* The edge of an input that requires grad; all references but the node's are borrowed from `found`. */
struct input {
    PyObject *node; /* NULL: a leaf */
    PyObject *tensor, *position;
    int64_t number; /* of the output of `node` */
};

typedef struct {
    PyObject_HEAD
    PyObject *call, *found, *stale, *inner, *leaves;
    Py_ssize_t arguments, count;
    struct input *inputs;
    uint64_t born;
    char is_one_api;
} InputEdges;

static int InputEdges_traverse(InputEdges *self, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; i < self->count; i++) Py_VISIT(self->inputs[i].node);
    Py_VISIT(self->call);
    Py_VISIT(self->found); /* whose own clearing opens a cycle */
    Py_VISIT(self->stale);
    Py_VISIT(self->inner);
    Py_VISIT(self->leaves);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static void InputEdges_dealloc(InputEdges *self)
{
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < self->count; i++) Py_XDECREF(self->inputs[i].node);
    PyMem_Free(self->inputs);
    Py_XDECREF(self->call);
    Py_XDECREF(self->found);
    Py_XDECREF(self->stale);
    Py_XDECREF(self->inner);
    Py_XDECREF(self->leaves);
    free_object(self, PyObject_GC_Del);
}

/* Note an input; 0, or -1 with an exception. */
static int note_input(InputEdges *self, PyObject *pair)
{
    PyObject *tensor = PyTuple_GET_ITEM(pair, 0), *position = PyTuple_GET_ITEM(pair, 1);
    int wanted = flag(tensor, names.requires_grad);
    if (wanted <= 0) return wanted;
    PyObject *node = PyObject_GetAttr(tensor, names.grad_fn);
    if (!node) { /* a view whose base was changed in a forbidden way */
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return -1;
        PyErr_Clear();
        return PyList_Append(self->stale, position);
    }
    struct input *input = &self->inputs[self->count];
    *input = (struct input){node == Py_None ? NULL : node, tensor, position, 0};
    if (node == Py_None) Py_DECREF(node);
    else if ((input->number = take_int(PyObject_GetAttr(tensor, names.output_nr))) < 0) {
        Py_CLEAR(input->node);
        return -1;
    }
    self->count++;
    return 0;
}

/* Note the edges of tensors that were found, a list that is not changed any more. */
static PyObject *new_edges(PyObject *call, PyObject *found, Py_ssize_t arguments, int is_one_api)
{
    InputEdges *self = (InputEdges *)PyType_GenericAlloc(InputEdgesType, 0);
    if (!self) return NULL;
    self->call = Py_NewRef(call);
    self->found = Py_NewRef(found);
    self->arguments = arguments;
    self->is_one_api = (char)is_one_api;
    self->stale = PyList_New(0);
    self->born = (uint64_t)take_int(PyObject_CallNoArgs(given.get_sequence_number));
    Py_ssize_t count = PyList_GET_SIZE(found);
    self->inputs = PyMem_Malloc((size_t)(count + 1) * sizeof *self->inputs);
    int failed = !self->stale || !self->inputs || PyErr_Occurred() != NULL;
    for (Py_ssize_t i = 0; i < count && !failed; i++)
        failed = note_input(self, PyList_GET_ITEM(self->found, i)) < 0;
    if (failed) {
        if (!PyErr_Occurred()) PyErr_NoMemory();
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *InputEdges_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"call", "found", "arguments", "is_one_api", NULL};
    PyObject *call, *found;
    Py_ssize_t arguments;
    int is_one_api;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!n$p", keywords, &call, &PyList_Type, &found,
                                     &arguments, &is_one_api))
        return NULL;
    PyObject *kept = PyList_GetSlice(found, 0, PY_SSIZE_T_MAX);
    PyObject *edges = kept ? new_edges(call, kept, arguments, is_one_api) : NULL;
    Py_XDECREF(kept);
    return edges;
}

/* Append the positions of inputs, computed ones or leaves, to the lists of a dictionary. */
static PyObject *positions_of(const InputEdges *self, int are_leaves)
{
    PyObject *table = PyDict_New();
    for (Py_ssize_t i = 0; i < self->count && table; i++) {
        const struct input *input = &self->inputs[i];
        if (are_leaves != !input->node) continue;
        PyObject *key = are_leaves ? PyLong_FromVoidPtr(input->tensor)
                                   : Py_BuildValue("(OL)", input->node, (long long)input->number);
        PyObject *fresh = PyList_New(0);
        PyObject *list = key && fresh ? PyDict_SetDefault(table, key, fresh) : NULL;
        if (!list || PyList_Append(list, input->position) < 0) Py_CLEAR(table);
        Py_XDECREF(key);
        Py_XDECREF(fresh);
    }
    return table;
}

static PyObject *InputEdges_get_inner(InputEdges *self, void *closure)
{
    if (!self->inner) self->inner = positions_of(self, 0);
    return Py_XNewRef(self->inner);
}

static PyObject *InputEdges_get_leaves(InputEdges *self, void *closure)
{
    if (!self->leaves) self->leaves = positions_of(self, 1);
    return Py_XNewRef(self->leaves);
}

/* Return the keywords at which tensors were passed; None, not a new reference, where one lies deeper,
 * NULL with an exception. */
static PyObject *keywords_of(const InputEdges *self)
{
    PyObject *keywords = PyList_New(0);
    for (Py_ssize_t i = 0; keywords && i < PyList_GET_SIZE(self->found); i++) {
        PyObject *position = PyTuple_GET_ITEM(PyList_GET_ITEM(self->found, i), 1);
        if (PyLong_CheckExact(position)) continue;
        int is_named = PyTuple_CheckExact(position) && PyTuple_GET_SIZE(position) == 1 &&
                       PyUnicode_CheckExact(PyTuple_GET_ITEM(position, 0));
        if (is_named && PyList_Append(keywords, PyTuple_GET_ITEM(position, 0)) == 0) continue;
        Py_DECREF(keywords);
        return is_named ? NULL : Py_None;
    }
    PyObject *names = keywords ? PyList_AsTuple(keywords) : NULL;
    Py_XDECREF(keywords);
    return names;
}

/* Return as many None as there are positional arguments; NULL with an exception. */
static PyObject *empty_places(const InputEdges *self)
{
    PyObject *places = PyList_New(self->arguments);
    for (Py_ssize_t i = 0; places && i < self->arguments; i++)
        PyList_SET_ITEM(places, i, Py_NewRef(Py_None));
    return places;
}

/* Return the gradients of a call with so many outputs, of which so many are expected, as
 * `Gradients.expect`; NULL with an exception. */
static PyObject *new_gradients(const InputEdges *self, Py_ssize_t outputs, Py_ssize_t expected,
                               int has_input_edges)
{
    PyObject *keywords = keywords_of(self), *made = NULL;
    if (keywords && keywords != Py_None) {
        PyObject *arguments = PyTuple_GET_SIZE(keywords) ? empty_places(self)
                                                         : PyLong_FromSsize_t(self->arguments);
        if (arguments)
            made = PyObject_CallFunction(given.gradients, "ONOnnO", self->call, arguments, keywords,
                                         outputs, expected, has_input_edges ? Py_True : Py_False);
        Py_DECREF(keywords);
        return made;
    }
    Py_ssize_t count = keywords ? PyList_GET_SIZE(self->found) : 0;
    PyObject *positions = keywords ? PyList_New(count) : NULL;
    for (Py_ssize_t i = 0; positions && i < count; i++)
        PyList_SET_ITEM(positions, i,
                        Py_NewRef(PyTuple_GET_ITEM(PyList_GET_ITEM(self->found, i), 1)));
    PyObject *outputs_given = PyLong_FromSsize_t(outputs), *all = PyLong_FromSsize_t(expected);
    if (positions && outputs_given && all)
        made = PyObject_CallMethod(given.gradients, "expect", "OnO", self->call, self->arguments,
                                   positions);
    if (made && (PyObject_SetAttr(made, names.outputs, outputs_given) < 0 ||
                 PyObject_SetAttr(made, names.expected, all) < 0 ||
                 PyObject_SetAttr(made, names.has_input_edges, has_input_edges ? Py_True : Py_False) < 0))
        Py_CLEAR(made);
    Py_XDECREF(outputs_given);
    Py_XDECREF(all);
    Py_XDECREF(positions);
    return made;
}

static PyObject *InputEdges_expected_gradients(InputEdges *self, PyObject *ignored)
{
    return new_gradients(self, 0, 0, 0);
}

static PyMethodDef EDGES_METHODS[] = {
    {"expected_gradients", (PyCFunction)InputEdges_expected_gradients, METH_NOARGS,
     "expected_gradients() -> the gradients of the call, without one so far"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef EDGES_MEMBERS[] = {
    {"call", T_OBJECT_EX, offsetof(InputEdges, call), READONLY, NULL},
    {"found", T_OBJECT_EX, offsetof(InputEdges, found), READONLY, NULL},
    {"stale", T_OBJECT_EX, offsetof(InputEdges, stale), READONLY, NULL},
    {"arguments", T_PYSSIZET, offsetof(InputEdges, arguments), READONLY, NULL},
    {"is_one_api", T_BOOL, offsetof(InputEdges, is_one_api), READONLY, NULL},
    {"born", T_ULONGLONG, offsetof(InputEdges, born), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef EDGES_ATTRIBUTES[] = {
    {"inner", (getter)InputEdges_get_inner, NULL, NULL, NULL},
    {"leaves", (getter)InputEdges_get_leaves, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot INPUT_EDGES_SLOTS[] = {
    {Py_tp_new, (void *)InputEdges_new},
    {Py_tp_traverse, (void *)InputEdges_traverse},
    {Py_tp_dealloc, (void *)InputEdges_dealloc},
    {Py_tp_methods, EDGES_METHODS},
    {Py_tp_members, EDGES_MEMBERS},
    {Py_tp_getset, EDGES_ATTRIBUTES},
    {Py_tp_doc, (void *)"InputEdges(call, found, arguments, *, is_one_api): see gradients/input_edges.py"},
    {0, NULL},
};

static PyType_Spec INPUT_EDGES_SPEC = {
    .name = "msprobe.pytorch.values._tensors.InputEdges",
    .basicsize = sizeof(InputEdges),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = INPUT_EDGES_SLOTS,
};

/* ---- the hook -------------------------------------------------------------------------------- */

/* A hook on one node, before it or after it; as `NodeTap`. */
typedef struct {
    PyObject_HEAD
    PyObject *session, *gradients, *outputs, *inputs;
    CallRecorder *recorder; /* NULL: records are made in Python */
} Tap;

static void Tap_dealloc(Tap *self)
{
    Py_XDECREF(self->session);
    Py_XDECREF(self->gradients);
    Py_XDECREF(self->outputs);
    Py_XDECREF(self->inputs);
    Py_XDECREF((PyObject *)self->recorder);
    free_object(self, PyObject_Free);
}

#define MOST_ARRIVED 32

/* The gradients that have come to a hook. */
struct arrived {
    int count;
    struct {
        PyObject *tensor; /* owned */
        int is_input;     /* of the call, else of an output */
        Py_ssize_t index;
    } of[MOST_ARRIVED];
};

/* Whether a part has all elements of the gradient that it is taken of; -1 with an exception. */
static int has_all(PyObject *part)
{
    PyTypeObject *kind = Py_TYPE(part);
    if (kind == (PyTypeObject *)given.reshaped || kind == Py_TYPE(given.turned)) return 1;
    return is_attribute(part, names._stride, Py_None);
}

/* Append a gradient, or what a region or view makes of it, unless only its elements count; 1, or -1
 * with an exception. */
static int arrive(struct arrived *arrived, PyObject *tensor, PyObject *part, int is_watched,
                  int is_input, Py_ssize_t index)
{
    int as_it_is = part == Py_None ? 1 : is_watched ? has_all(part) : 0;
    if (as_it_is < 0) return -1;
    tensor = as_it_is ? Py_NewRef(tensor) : PyObject_CallMethodOneArg(part, names.take, tensor);
    if (!tensor) return -1;
    arrived->of[arrived->count].tensor = tensor;
    arrived->of[arrived->count].is_input = is_input;
    arrived->of[arrived->count++].index = index;
    return 1;
}

/* Collect what has come: 1, 0 if it is not all of the call's or out of the ordinary, -1 with an
 * exception. */
static int collect(const Tap *self, PyObject *grad_inputs, PyObject *grad_outputs,
                   struct arrived *arrived)
{
    Py_ssize_t outputs = PyTuple_GET_SIZE(self->outputs), inputs = PyTuple_GET_SIZE(self->inputs);
    int is_watched = self->recorder && is_watching(self->recorder);
    if (outputs + inputs > MOST_ARRIVED) return 0;
    for (Py_ssize_t i = 0; i < outputs; i++) {
        PyObject *output = PyTuple_GET_ITEM(self->outputs, i);
        Py_ssize_t number = PyLong_AsSsize_t(PyTuple_GET_ITEM(output, 1));
        if (number < 0 || number >= PyTuple_GET_SIZE(grad_outputs)) return 0;
        PyObject *tensor = PyTuple_GET_ITEM(grad_outputs, number);
        if (tensor == Py_None) return 0;
        if (arrive(arrived, tensor, PyTuple_GET_ITEM(output, 2), is_watched, 0,
                   PyLong_AsSsize_t(PyTuple_GET_ITEM(output, 0))) < 0)
            return -1;
    }
    for (Py_ssize_t i = 0; i < inputs; i++) {
        PyObject *input = PyTuple_GET_ITEM(self->inputs, i), *place = PyTuple_GET_ITEM(input, 1);
        Py_ssize_t slot = PyLong_AsSsize_t(PyTuple_GET_ITEM(input, 0));
        int is_argument = PyLong_CheckExact(place);
        if (slot < 0 || slot >= PyTuple_GET_SIZE(grad_inputs) || !(is_argument || is_watched) ||
            PyLong_AsLong(PyTuple_GET_ITEM(input, 2)) != 1)
            return 0;
        PyObject *tensor = PyTuple_GET_ITEM(grad_inputs, slot);
        if (tensor == Py_None) return 0;
        if (arrive(arrived, tensor, PyTuple_GET_ITEM(input, 3), is_watched, 1,
                   is_argument ? PyLong_AsSsize_t(place) : 0) < 0)
            return -1;
    }
    return 1;
}

static int64_t int_of(PyObject *object, PyObject *name)
{
    return take_int(PyObject_GetAttr(object, name));
}

/* Whether a record of the gradients of a call says no more than they do, and has a place for each; -1
 * with an exception. `layout` gets how many outputs and arguments the call has. */
static int is_plain_record(PyObject *gradients, Py_ssize_t *layout)
{
    PyObject *remarks = PyObject_GetAttr(gradients, names.remarks);
    PyObject *keywords = PyObject_GetAttr(gradients, names.keywords);
    PyObject *arguments = PyObject_GetAttr(gradients, names.arguments);
    int plain = remarks && keywords && arguments ? 1 : -1;
    if (plain > 0)
        plain = remarks == Py_None && PyTuple_GET_SIZE(keywords) == 0 &&
                PyLong_CheckExact(arguments);
    if (plain > 0) {
        layout[0] = (Py_ssize_t)int_of(gradients, names.outputs);
        layout[1] = PyLong_AsSsize_t(arguments);
    }
    Py_XDECREF(remarks);
    Py_XDECREF(keywords);
    Py_XDECREF(arguments);
    return plain;
}

/* Whether these are all gradients of a call, of its first pass; -1 with an exception. */
static int may_be_whole(const Tap *self, PyObject *call, Py_ssize_t count)
{
    PyObject *gradients = self->gradients;
    if (int_of(gradients, names.expected) != count || int_of(gradients, names._count) != 0)
        return PyErr_Occurred() ? -1 : 0;
    int whole = flag(gradients, names.has_input_edges);
    if (whole == 0) {
        int is_module = flag(call, names.is_module);
        whole = is_module < 0 ? -1 : !is_module;
    }
    if (whole > 0) { /* a graph may be kept over the end of its step */
        int64_t step = int_of(call, names.step), now = int_of(self->recorder->step, names.number);
        whole = PyErr_Occurred() ? -1 : step == now;
    }
    if (whole > 0)
        whole = is_attribute(self->recorder->calls, names.sink, self->recorder->recording);
    return whole;
}

/* The JSON of a backward record; NULL, perhaps with an exception, if a gradient is not plain. */
static PyObject *describe_arrived(Memo *memo, const struct arrived *arrived, const Py_ssize_t *layout)
{
    Py_ssize_t places = layout[0] + layout[1];
    if (layout[0] < 0 || layout[1] < 0) return NULL;
    Value **slots = PyMem_Calloc((size_t)places + 1, sizeof *slots);
    if (!slots) return PyErr_NoMemory();
    int outcome = 1;
    struct text text;
    begin_text(&text);
    text.may_wait = 1;
    for (int i = 0; i < arrived->count && outcome > 0; i++) {
        Py_ssize_t index = arrived->of[i].index;
        if (index < 0 || index >= layout[arrived->of[i].is_input]) outcome = 0;
        else {
            Value **slot = slots + (arrived->of[i].is_input ? layout[0] : 0) + index;
            PyObject *value =
                *slot ? Py_NewRef(Py_None) : look_or_none(memo, arrived->of[i].tensor, BORN);
            if (value && value != Py_None && fits(&text, (Value *)value)) *slot = (Value *)value;
            else outcome = value ? 0 : -1, Py_XDECREF(value);
        }
    }
    if (outcome > 0 && (put_slots(&text, "{\"input\":[", slots, layout[0]) ||
                        put_slots(&text, ",\"output\":[", slots + layout[0], layout[1]) ||
                        put(&text, "}")))
        outcome = -1;
    for (Py_ssize_t i = 0; i < places; i++) Py_XDECREF((PyObject *)slots[i]);
    PyMem_Free(slots);
    PyObject *values = text.unfilled, *bytes = end_text(&text, outcome <= 0);
    PyObject *json = outcome > 0 ? finished(bytes, values) : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(values);
    return json;
}

/* Note that the first pass over a call is over; -1 with an exception. */
static int note_whole(const Tap *self)
{
    PyObject *task = PyObject_CallNoArgs(given.graph_task);
    int failed = !task || PyObject_SetAttr(self->gradients, names._task, task) < 0 ||
                 PyObject_SetAttr(self->gradients, names._pass, given.closed) < 0 ||
                 PyObject_SetAttr(self->gradients, names._count, given.one) < 0 ||
                 PyDict_SetItem(self->recorder->reached, self->gradients, task) < 0;
    Py_XDECREF(task);
    return failed ? -1 : 0;
}

/* The same, and write its record. */
static int write_whole(const Tap *self, PyObject *call, PyObject *text)
{
    const CallRecorder *recorder = self->recorder;
    PyObject *order = PyObject_CallMethodNoArgs(recorder->step, names.next_order);
    PyObject *name = PyObject_GetAttr(call, names.backward_name);
    PyObject *parent = PyObject_GetAttr(call, names.backward_parent);
    int is_module = flag(call, names.is_module);
    int failed = !order || !name || !parent || is_module < 0 || note_whole(self) < 0;
    if (!failed && recorder->keeps_construct)
        failed = put_call(recorder, name, order, parent, Py_None) < 0;
    if (!failed && is_module) /* children first */
        Py_SETREF(order, PyObject_CallMethodNoArgs(recorder->step, names.next_order));
    failed = failed || !order || hand_on(recorder, name, order, text) < 0;
    Py_XDECREF(parent);
    Py_XDECREF(name);
    Py_XDECREF(order);
    return failed ? -1 : 0;
}

/* Whether all gradients are sound; -1 with an exception. */
static int are_sound(Memo *memo, const struct arrived *arrived)
{
    for (int i = 0; i < arrived->count; i++) {
        PyObject *tensor = arrived->of[i].tensor;
        int state = check_or_leave(memo, tensor, BORN);
        if (state != SOUND) return state < -1 ? -1 : 0;
    }
    return 1;
}

/* Take gradients that are all that the record of a call has: 1 when done, 0 if they are not, -1 with
 * an exception. */
static int take_whole(const Tap *self, const struct arrived *arrived)
{
    if (!self->recorder) return 0;
    PyObject *call = PyObject_GetAttr(self->gradients, names.call), *text = NULL;
    Py_ssize_t layout[2] = {0, 0};
    int is_watched = is_watching(self->recorder);
    int done = call ? may_be_whole(self, call, arrived->count) : -1;
    if (done > 0 && !is_watched) done = is_plain_record(self->gradients, layout);
    if (done > 0) {
        int transformed = take_truth(PyObject_CallNoArgs(given.transforms));
        done = transformed < 0 ? -1 : !transformed;
    }
    if (done > 0 && is_watched) {
        done = are_sound((Memo *)self->recorder->memo, arrived);
        if (done > 0 && note_whole(self) < 0) done = -1;
    } else if (done > 0) {
        text = describe_arrived((Memo *)self->recorder->memo, arrived, layout);
        done = text ? 1 : PyErr_Occurred() ? -1 : 0;
        if (done > 0 && write_whole(self, call, text) < 0) done = -1;
    }
    Py_XDECREF(text);
    Py_XDECREF(call);
    return done;
}

static int take(Tap *self, PyObject *grad_inputs, PyObject *grad_outputs)
{
    struct arrived arrived = {0};
    int done = PyTuple_Check(grad_inputs) && PyTuple_Check(grad_outputs)
                   ? collect(self, grad_inputs, grad_outputs, &arrived)
                   : 0;
    if (done > 0) done = take_whole(self, &arrived);
    for (int i = 0; i < arrived.count; i++) Py_DECREF(arrived.of[i].tensor);
    if (done == 0)
        done = call_away(PyObject_CallFunctionObjArgs(given.take, (PyObject *)self, grad_inputs,
                                                      grad_outputs, NULL));
    return done < 0 ? -1 : 0;
}

static PyObject *Tap_call(Tap *self, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t count = PyTuple_GET_SIZE(args); /* before the node: its outputs' gradients alone */
    if (count != 1 && count != 2) {
        PyErr_SetString(PyExc_TypeError, "expected the gradients of a node");
        return NULL;
    }
    PyObject *grad_outputs = PyTuple_GET_ITEM(args, count - 1);
    PyObject *grad_inputs = count == 2 ? Py_NewRef(PyTuple_GET_ITEM(args, 0)) : PyTuple_New(0);
    int modes = grad_inputs ? take_truth(PyObject_CallNoArgs(given.dispatch_modes)) : -1;
    int failed = modes < 0;
    struct guard guard;
    if (modes > 0) { /* which `quietly` switches off */
        failed = call_away(PyObject_CallFunction(given.quietly, "OsOOOO", self->session, "backward",
                                                 given.take, self, grad_inputs, grad_outputs)) < 0;
    } else if (!failed && !(failed = enter_guard(&guard, self->session) < 0)) {
        failed = take(self, grad_inputs, grad_outputs) < 0 &&
                 tell_failure(self->session, "backward") < 0;
        leave_guard(&guard);
    }
    Py_XDECREF(grad_inputs);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyMemberDef TAP_MEMBERS[] = {
    {"session", T_OBJECT_EX, offsetof(Tap, session), READONLY, NULL},
    {"gradients", T_OBJECT_EX, offsetof(Tap, gradients), READONLY, NULL},
    {"outputs", T_OBJECT_EX, offsetof(Tap, outputs), READONLY, NULL},
    {"inputs", T_OBJECT_EX, offsetof(Tap, inputs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot TAP_SLOTS[] = {
    {Py_tp_call, (void *)Tap_call},
    {Py_tp_dealloc, (void *)Tap_dealloc},
    {Py_tp_members, TAP_MEMBERS},
    {Py_tp_doc, (void *)"A hook on a node of the graph: see `NodeTap` in gradients/node_taps.py."},
    {0, NULL},
};

static PyType_Spec TAP_SPEC = {
    .name = "msprobe.pytorch.values._tensors.Tap",
    .basicsize = sizeof(Tap),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = TAP_SLOTS,
};

/* Return a tap, taking the references to `outputs` and `inputs`; NULL with an exception. */
static PyObject *new_tap(PyObject *session, CallRecorder *recorder, PyObject *gradients,
                         PyObject *outputs, PyObject *inputs)
{
    Tap *tap = outputs && inputs ? PyObject_New(Tap, TapType) : NULL;
    if (!tap) {
        Py_XDECREF(outputs);
        Py_XDECREF(inputs);
        return NULL;
    }
    tap->session = Py_NewRef(session);
    tap->recorder = (CallRecorder *)Py_XNewRef((PyObject *)recorder);
    tap->gradients = Py_NewRef(gradients);
    tap->outputs = outputs;
    tap->inputs = inputs;
    return (PyObject *)tap;
}

/* ---- putting hooks on nodes ------------------------------------------------------------------ */

#define FEW_NODES 64 /* a block of a transformer makes about 50 */
#define FEW_INPUTS 64

/* Where the graph of a call meets an input. */
struct hit {
    PyObject *node; /* owned */
    Py_ssize_t slot;
    const struct input *input;
    PyObject *part; /* owned: how the gradient there becomes the input's, or None */
};

struct few {
    int nodes, todo, hits;
    PyObject *seen[FEW_NODES], *waiting[FEW_INPUTS]; /* owned */
    struct hit at[FEW_INPUTS];
};

static void drop_few(struct few *few)
{
    while (few->nodes) Py_DECREF(few->seen[--few->nodes]);
    while (few->todo) Py_DECREF(few->waiting[--few->todo]);
    while (few->hits) {
        struct hit *hit = &few->at[--few->hits];
        Py_DECREF(hit->node);
        Py_DECREF(hit->part);
    }
}

/* Return the input at an edge; NULL, perhaps with an exception, if none is there. */
static const struct input *input_at(const InputEdges *edges, PyObject *parent, int64_t number,
                                    uint64_t age)
{
    PyObject *variable = NULL;
    if (age >= given.accumulates && !(variable = PyObject_GetAttr(parent, names.variable)))
        return NULL;
    Py_XDECREF(variable); /* compared only */
    for (Py_ssize_t i = 0; i < edges->count; i++) {
        const struct input *input = &edges->inputs[i];
        if (input->node ? input->node == parent && input->number == number
                        : variable && input->tensor == variable)
            return input;
    }
    return NULL;
}

/* How many of the nodes so far consume an input. */
static int shares_of(const struct few *few, const struct input *input)
{
    int shares = 0;
    for (int i = 0; i < few->hits; i++) shares += few->at[i].input == input;
    return shares;
}

/* Whether an input was passed once. One API's may be consumed once only, as `pass_views` moves its
 * gradient. */
static int is_plain_input(const InputEdges *edges, const struct few *few, const struct input *input)
{
    if (edges->is_one_api && shares_of(few, input)) return 0;
    for (Py_ssize_t i = 0; i < edges->count; i++) {
        const struct input *other = &edges->inputs[i];
        if (other != input && other->node == input->node && other->number == input->number &&
            (input->node || other->tensor == input->tensor))
            return 0;
    }
    return 1;
}

/* Look behind one node: 1, 0 to give up, -1 with an exception. */
static int look_behind_few(const InputEdges *edges, struct few *few, PyObject *node)
{
    PyObject *nexts = PyObject_GetAttr(node, names.next_functions);
    if (!nexts) return -1;
    int outcome = 1;
    for (Py_ssize_t slot = 0; slot < PyTuple_GET_SIZE(nexts) && outcome > 0; slot++) {
        PyObject *edge = PyTuple_GET_ITEM(nexts, slot), *parent = PyTuple_GET_ITEM(edge, 0);
        if (parent == Py_None) continue;
        int64_t number = PyLong_AsLongLong(PyTuple_GET_ITEM(edge, 1));
        uint64_t age = sequence_number(parent);
        const struct input *input = PyErr_Occurred() ? NULL : input_at(edges, parent, number, age);
        if (PyErr_Occurred()) outcome = -1;
        else if (input) {
            if (few->hits == FEW_INPUTS || !is_plain_input(edges, few, input)) outcome = 0;
            else few->at[few->hits++] =
                     (struct hit){Py_NewRef(node), slot, input, Py_NewRef(Py_None)};
        } else if (age >= edges->born && age < given.accumulates) {
            if (few->todo == FEW_INPUTS) outcome = 0;
            else few->waiting[few->todo++] = Py_NewRef(parent);
        }
    }
    Py_DECREF(nexts);
    return outcome;
}

/* Search the graph of a call from `top`, as `find_edges` with a limit: 1, 0 to give up, -1 with an
 * exception. */
static int search_few(const InputEdges *edges, struct few *few, PyObject *top)
{
    few->waiting[few->todo++] = Py_NewRef(top);
    while (few->todo) {
        PyObject *node = few->waiting[--few->todo];
        int is_seen = 0;
        for (int i = 0; i < few->nodes; i++) is_seen |= few->seen[i] == node;
        int is_odd = few->nodes == FEW_NODES || (is_seen && edges->is_one_api) ||
                     PyObject_TypeCheck(node, (PyTypeObject *)given.custom);
        if (is_seen || is_odd) Py_DECREF(node);
        if (is_odd) return 0;
        if (is_seen) continue;
        few->seen[few->nodes++] = node;
        int outcome = look_behind_few(edges, few, node);
        if (outcome <= 0) return outcome;
    }
    return 1;
}

static int is_kind(PyObject *node, const char *name)
{
#ifdef Py_LIMITED_API
    PyObject *kind = PyType_GetName(Py_TYPE(node));
    int is_same = kind && PyUnicode_CompareWithASCIIString(kind, name) == 0;
    if (!kind) PyErr_Clear();
    Py_XDECREF(kind);
    return is_same;
#else
    const char *kind = Py_TYPE(node)->tp_name, *dot = strrchr(kind, '.');
    return strcmp(dot ? dot + 1 : kind, name) == 0;
#endif
}

/* Have the gradients of a product's factors read at the product, which has them all, see `_past_views`
 * in quick_taps.py; -1 with an exception. */
static int pass_views(struct few *few, PyObject *top)
{
    PyObject *product = NULL, *nexts = NULL;
    int failed = 0;
    for (int i = 0; i < few->hits && !failed; i++) {
        struct hit *hit = &few->at[i];
        int is_turned = is_kind(hit->node, "TBackward0");
        if (hit->node == top || !(is_turned || is_kind(hit->node, "ViewBackward0"))) continue;
        if (!nexts) {
            product = Py_NewRef(top);
            if (is_kind(top, "UnsafeViewBackward0")) {
                nexts = PyObject_GetAttr(top, names.next_functions);
                if (nexts) Py_SETREF(product, Py_NewRef(PyTuple_GET_ITEM(PyTuple_GET_ITEM(nexts, 0),
                                                                         0)));
                Py_CLEAR(nexts);
            }
            if (PyErr_Occurred() || !(nexts = PyObject_GetAttr(product, names.next_functions)))
                failed = 1;
        }
        for (Py_ssize_t slot = failed ? 0 : PyTuple_GET_SIZE(nexts); slot-- > 0;) {
            if (PyTuple_GET_ITEM(PyTuple_GET_ITEM(nexts, slot), 0) != hit->node) continue;
            PyObject *size = is_turned ? NULL : PyObject_GetAttr(hit->input->tensor, names.shape);
            PyObject *part = is_turned ? Py_NewRef(given.turned)
                             : size    ? PyObject_CallOneArg(given.reshaped, size)
                                       : NULL;
            Py_XDECREF(size);
            if (!part) failed = 1;
            else {
                Py_SETREF(hit->part, part);
                Py_SETREF(hit->node, Py_NewRef(product));
                hit->slot = slot;
            }
            break;
        }
    }
    Py_XDECREF(nexts);
    Py_XDECREF(product);
    return failed ? -1 : 0;
}

/* The inputs that are read at one node, as `NodeTap.inputs`; NULL with an exception. */
static PyObject *inputs_at(const struct few *few, PyObject *node)
{
    Py_ssize_t count = 0;
    for (int i = 0; i < few->hits; i++) count += few->at[i].node == node;
    PyObject *inputs = PyTuple_New(count);
    for (int i = 0, place = 0; i < few->hits && inputs; i++) {
        const struct hit *hit = &few->at[i];
        if (hit->node != node) continue;
        PyObject *one = Py_BuildValue("(nOiO)", hit->slot, hit->input->position,
                                      shares_of(few, hit->input), hit->part);
        if (one) PyTuple_SET_ITEM(inputs, place++, one);
        else Py_CLEAR(inputs);
    }
    return inputs;
}

/* The outputs of a call that hang on one node. */
struct outputs {
    int count;
    int64_t numbers[MOST_ARRIVED];
};

/* The same as `NodeTap.outputs`; NULL with an exception. */
static PyObject *outputs_at(const struct outputs *outputs, PyObject *region)
{
    PyObject *all = PyTuple_New(outputs->count);
    for (int i = 0; i < outputs->count && all; i++) {
        PyObject *one = Py_BuildValue("(iLO)", i, (long long)outputs->numbers[i], region);
        if (one) PyTuple_SET_ITEM(all, i, one);
        else Py_CLEAR(all);
    }
    return all;
}

/* As `leave_mark` in node_taps.py; 0, or -1 with an exception. */
static int leave_mark(PyObject *node, PyObject *tap)
{
    PyObject *metadata = PyObject_GetAttr(node, names.metadata);
    if (!metadata) return -1;
    PyObject *others = PyDict_GetItemWithError(metadata, names.msprobe);
    PyObject *mark = others ? PyTuple_Pack(2, others, tap)
                     : PyErr_Occurred() ? NULL
                                        : Py_NewRef(tap);
    int failed = !mark || PyDict_SetItem(metadata, names.msprobe, mark) < 0;
    Py_XDECREF(mark);
    Py_DECREF(metadata);
    return failed ? -1 : 0;
}

/* Put the hooks of a call on the nodes that were found; 0, or -1 with an exception. `outputs` hang on
 * `top`, which for a region is that of the base, and the output itself is `shown` there. */
static int put_taps(PyObject *session, CallRecorder *recorder, InputEdges *edges, struct few *few,
                    PyObject *top, const struct outputs *outputs, PyObject *region, PyObject *shown,
                    const struct outputs *shown_there)
{
    int reached = 0; /* inputs: the first share of each is counted */
    for (int i = 0, k; i < few->hits; i++) {
        for (k = 0; few->at[k].input != few->at[i].input; k++) continue;
        reached += k == i;
    }
    PyObject *gradients = new_gradients(edges, outputs->count, outputs->count + reached, reached);
    if (!gradients) return -1;
    PyObject *inputs = inputs_at(few, top);
    int has_inputs = inputs && PyTuple_GET_SIZE(inputs);
    PyObject *tap = new_tap(session, recorder, gradients, outputs_at(outputs, region), inputs);
    int failed = !tap || call_away(PyObject_CallMethodOneArg(
                             top, has_inputs ? names.register_hook : names.register_prehook, tap)) < 0;
    for (int i = 0; i < few->hits && !failed; i++) {
        PyObject *node = few->at[i].node;
        int is_known = node == top;
        for (int k = 0; k < i; k++) is_known |= few->at[k].node == node;
        if (is_known) continue;
        PyObject *one = new_tap(session, recorder, gradients, PyTuple_New(0), inputs_at(few, node));
        failed = !one || call_away(PyObject_CallMethodOneArg(node, names.register_hook, one)) < 0;
        Py_XDECREF(one);
    }
    if (!failed && region == Py_None) failed = leave_mark(top, tap) < 0;
    else if (!failed) {
        PyObject *mark =
            new_tap(session, recorder, gradients, outputs_at(shown_there, region), PyTuple_New(0));
        failed = !mark || leave_mark(shown, mark) < 0;
        Py_XDECREF(mark);
    }
    Py_XDECREF(tap);
    Py_DECREF(gradients);
    return failed ? -1 : 0;
}

/* Return which elements of its base a view has, None where that is not to be said; NULL with an
 * exception. */
static PyObject *region_of(PyObject *base, PyObject *output)
{
    struct view whole, view;
    int is_plain = (PyObject *)Py_TYPE(base) == torch.tensor && is_plain_class(output) &&
                   flag(base, names.is_cpu) > 0 && read_place(base, &whole, 1) > 0 &&
                   read_place(output, &view, 1) > 0;
    if (PyErr_Occurred()) PyErr_Clear(); /* which Python meets again */
    if (!is_plain || whole.kind != view.kind || whole.count != view.count ||
        !is_dense(&whole, 1) || !is_dense(&view, 1))
        return PyObject_CallFunctionObjArgs(given.region, base, output, NULL);
    PyObject *size = PyObject_GetAttr(output, names.shape);
    PyObject *region = size ? PyObject_CallOneArg(given.whole_region, size) : NULL;
    Py_XDECREF(size);
    return region;
}

/* Find the node of a view's base, if the call made it: 1 with `*top`, `*number` and `*region` put in
 * its place, 0 to give up, -1 with an exception. */
static int reach_base(const InputEdges *edges, PyObject *output, PyObject **top, int64_t *number,
                      PyObject **region)
{
    PyObject *base = PyObject_GetAttr(output, names._base);
    PyObject *behind = base ? PyObject_GetAttr(base, names.grad_fn) : NULL;
    int outcome = behind ? 1 : -1;
    if (behind && behind != Py_None && sequence_number(behind) >= edges->born && !PyErr_Occurred()) {
        outcome = edges->is_one_api;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(edges->found); i++)
            if (PyTuple_GET_ITEM(PyList_GET_ITEM(edges->found, i), 0) == output) outcome = 0;
        PyObject *found = outcome ? region_of(base, output) : Py_NewRef(Py_None);
        if (!found) outcome = -1;
        else if (found == Py_None) outcome = 0;
        else if ((*number = take_int(PyObject_GetAttr(base, names.output_nr))) < 0) outcome = -1;
        else {
            Py_SETREF(*region, Py_NewRef(found));
            Py_SETREF(*top, Py_NewRef(behind));
        }
        Py_XDECREF(found);
    }
    if (PyErr_Occurred()) outcome = -1;
    Py_XDECREF(behind);
    Py_XDECREF(base);
    return outcome;
}

/* Note an output: 1, 0 to give up, -1 with an exception. `*node` is the one that all hang on. */
static int note_output(const InputEdges *edges, PyObject *output, PyObject **node,
                       struct outputs *outputs)
{
    PyObject *own = PyObject_GetAttr(output, names.grad_fn);
    if (!own) return -1;
    int outcome = own != Py_None && outputs->count < MOST_ARRIVED && (!*node || *node == own);
    int64_t number = outcome ? take_int(PyObject_GetAttr(output, names.output_nr)) : 0;
    for (Py_ssize_t i = 0; i < edges->count; i++)
        if (edges->inputs[i].node == own && edges->inputs[i].number == number) outcome = 0;
    for (int i = 0; i < outputs->count; i++)
        if (outputs->numbers[i] == number) outcome = 0;
    if (outcome) outputs->numbers[outputs->count++] = number;
    if (*node) Py_DECREF(own);
    else *node = own;
    return number < 0 ? -1 : outcome;
}

/* Note the outputs of a call, all of which require grad: 1, 0 to give up, -1 with an exception. Of
 * several none is a view of what the call made. */
static int note_outputs(const InputEdges *edges, PyObject *result, PyObject **node,
                        struct outputs *outputs)
{
    if (PyList_GET_SIZE(edges->stale)) return 0;
    if (!PyTuple_CheckExact(result)) return note_output(edges, result, node, outputs);
    int outcome = PyTuple_GET_SIZE(result) > 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result) && outcome > 0; i++) {
        PyObject *output = PyTuple_GET_ITEM(result, i);
        if ((PyObject *)Py_TYPE(output) != torch.tensor) return 0;
        outcome = flag(output, names.requires_grad);
        if (outcome > 0) outcome = note_output(edges, output, node, outputs);
        int is_view = outcome > 0 ? call_flag(output, names._is_view) : 0;
        if (is_view <= 0) {
            if (is_view) outcome = -1;
            continue;
        }
        PyObject *base = PyObject_GetAttr(output, names._base);
        PyObject *behind = base ? PyObject_GetAttr(base, names.grad_fn) : NULL;
        if (behind && behind != Py_None && sequence_number(behind) >= edges->born) outcome = 0;
        if (PyErr_Occurred()) outcome = -1;
        Py_XDECREF(behind);
        Py_XDECREF(base);
    }
    return outcome;
}

static PyObject *tap_output(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !Py_IS_TYPE(args[2], InputEdgesType) ||
        !(args[1] == Py_None || Py_IS_TYPE(args[1], CallRecorderType))) {
        PyErr_SetString(PyExc_TypeError, "tap_output(session, recorder | None, edges, output)");
        return NULL;
    }
    InputEdges *edges = (InputEdges *)args[2];
    CallRecorder *recorder = args[1] == Py_None ? NULL : (CallRecorder *)args[1];
    PyObject *result = args[3], *node = NULL;
    struct outputs shown = {0}, outputs;
    int outcome = note_outputs(edges, result, &node, &shown), is_one = !PyTuple_CheckExact(result);
    PyObject *top = Py_XNewRef(node), *region = Py_NewRef(Py_None);
    outputs = shown;
    if (outcome > 0 && is_one) {
        int is_view = call_flag(result, names._is_view);
        outcome = is_view < 0 ? -1 : 1;
        if (is_view > 0) outcome = reach_base(edges, result, &top, &outputs.numbers[0], &region);
    }
    struct few few = {0};
    if (outcome > 0) outcome = search_few(edges, &few, top);
    if (outcome > 0 && is_one && edges->is_one_api && pass_views(&few, top) < 0) outcome = -1;
    if (outcome > 0 &&
        put_taps(args[0], recorder, edges, &few, top, &outputs, region, node, &shown) < 0)
        outcome = -1;
    drop_few(&few);
    Py_DECREF(region);
    Py_XDECREF(top);
    Py_XDECREF(node);
    return outcome < 0 ? NULL : PyBool_FromLong(outcome);
}

static PyObject *setup_taps(PyObject *module, PyObject *args)
{
    unsigned long long accumulates;
    if (!PyArg_ParseTuple(args, "KddOOOOOOOOOOOOOOOOO", &accumulates, &given.call_s, &given.displaced,
                          &given.gradients, &given.custom, &given.region,
                          &given.whole_region, &given.reshaped,
                          &given.turned, &given.take, &given.quietly, &given.clock,
                          &given.no_functions, &given.is_grad_enabled, &given.set_grad_enabled,
                          &given.dispatch_modes, &given.transforms, &given.graph_task,
                          &given.get_sequence_number, &given.closed))
        return NULL;
    given.one = PyLong_FromLong(1);
    given.accumulates = accumulates;
    Py_INCREF(args); /* keeps all of them for ever */
    Py_RETURN_NONE;
}
