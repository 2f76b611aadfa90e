/* SPDX-License-Identifier: Apache-2.0
 *
 * A part of _tensors.c: the forward record of a call whose arguments are plain, with one call from
 * Python when it begins and one when it ends. `CallRecorder` does what `Calls`, `Recording` and
 * `Describer` of msprobe.capture do in Python for every other call, and shares their tables.
 * `OpenCall` holds the text of the record meanwhile; Python objects are made of it only where
 * something is out of the ordinary (`unfold`).
 */

/* A call between its begin and its end. */
typedef struct {
    PyObject_HEAD
    PyObject *call, *found, *name, *order;
    PyObject *edges;  /* NULL where no gradients are taken */
    PyObject *random; /* of Python's */
    PyObject *values, *keywords; /* the arguments of a call that is watched, and their state */
    int state;
    struct text text;
    size_t arguments_end, keywords_end; /* where parts of the text end */
    char is_described, is_module;
} OpenCall;

/* A call that raised lives as long as the traceback, which its arguments may hold. */
static int OpenCall_traverse(OpenCall *self, visitproc visit, void *arg)
{
    Py_VISIT(self->call);
    Py_VISIT(self->found); /* whose own clearing opens a cycle */
    Py_VISIT(self->edges);
    Py_VISIT(self->random);
    Py_VISIT(self->values);
    Py_VISIT(self->keywords);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static void OpenCall_dealloc(OpenCall *self)
{
    PyObject_GC_UnTrack(self);
    if (self->text.start != self->text.inplace) PyMem_Free(self->text.start);
    Py_XDECREF(self->text.unfilled);
    Py_XDECREF(self->call);
    Py_XDECREF(self->found);
    Py_XDECREF(self->name);
    Py_XDECREF(self->order);
    Py_XDECREF(self->edges);
    Py_XDECREF(self->random);
    Py_XDECREF(self->values);
    Py_XDECREF(self->keywords);
    free_object(self, PyObject_GC_Del);
}

static PyMemberDef OPEN_CALL_MEMBERS[] = {
    {"call", T_OBJECT_EX, offsetof(OpenCall, call), READONLY, NULL},
    {"found", T_OBJECT_EX, offsetof(OpenCall, found), READONLY, NULL},
    {"edges", T_OBJECT, offsetof(OpenCall, edges), READONLY, NULL},
    {"random", T_OBJECT, offsetof(OpenCall, random), 0, NULL},
    {"is_described", T_BOOL, offsetof(OpenCall, is_described), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot OPEN_CALL_SLOTS[] = {
    {Py_tp_traverse, (void *)OpenCall_traverse},
    {Py_tp_dealloc, (void *)OpenCall_dealloc},
    {Py_tp_members, OPEN_CALL_MEMBERS},
    {Py_tp_doc, (void *)"A call between its begin and its end; its inputs are described."},
    {0, NULL},
};

static PyType_Spec OPEN_CALL_SPEC = {
    .name = "msprobe.pytorch.values._tensors.OpenCall",
    .basicsize = sizeof(OpenCall),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = OPEN_CALL_SLOTS,
};

/* ---- begin ------------------------------------------------------------------------------------- */

/* Whether the call may be taken: nothing has been done so far; -1 with an exception. */
static int may_take(const CallRecorder *self, PyObject *base, PyObject *values, PyObject *keywords,
                    PyObject *parameters)
{
    if (!PyTuple_CheckExact(values) || !PyDict_CheckExact(keywords)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++)
        if (!may_be_plain(PyTuple_GET_ITEM(values, i))) return 0;
    if (!are_keywords_plain(keywords) || (parameters && !are_keywords_plain(parameters))) return 0;
    if (is_watching(self)) {
        int is_left = parameters ? 1 : take_truth(PyObject_CallOneArg(self->writes_arguments, base));
        if (is_left) return is_left < 0 ? -1 : 0;
        PyObject *flag = PyDict_GetItemWithError(keywords, names.inplace);
        if ((flag && flag != Py_False) || PyErr_Occurred()) return PyErr_Occurred() ? -1 : 0;
    }
    int is_alone = is_attribute(self->calls, names.sink, self->recording);
    if (is_alone <= 0) return is_alone;
    int is_writing = is_attribute(self->recording, names.dump, Py_None);
    if (is_writing) return is_writing < 0 ? -1 : 0;
    int transformed = take_truth(PyObject_CallNoArgs(given.transforms));
    return transformed < 0 ? -1 : !transformed;
}

/* Count a call of `base`: its number among them, -1 with an exception. */
static Py_ssize_t count_call(const CallRecorder *self, PyObject *base)
{
    PyObject *known = PyDict_GetItemWithError(self->numbers, base);
    Py_ssize_t number = known ? PyLong_AsSsize_t(known) : 0;
    PyObject *next = PyErr_Occurred() ? NULL : PyLong_FromSsize_t(number + 1);
    int failed = !next || PyDict_SetItem(self->numbers, base, next) < 0;
    Py_XDECREF(next);
    return failed ? -1 : number;
}

/* End the open modules that a call with this stack is not made in; -1 with an exception. */
static int leave_lost(const CallRecorder *self, PyObject *stack)
{
    Py_ssize_t depth = PyList_GET_SIZE(self->modules);
    if (!depth) return 0;
    PyObject *outer = PyObject_GetAttr(PyList_GET_ITEM(self->modules, depth - 1), names.stack);
    PyObject *around = outer ? PyObject_GetAttr(stack, names.around) : NULL;
    int is_inside = around ? PySet_Contains(around, outer) : -1;
    Py_XDECREF(around);
    Py_XDECREF(outer);
    if (is_inside) return is_inside < 0 ? -1 : 0;
    PyObject *leave = PyObject_GetAttr(self->calls, names.close_lost);
    int failed = !leave || (leave != Py_None && call_away(PyObject_CallOneArg(leave, stack)) < 0);
    Py_XDECREF(leave);
    return failed ? -1 : 0;
}

/* Note the place of a call among the others; -1 with an exception. */
static int put_place(const CallRecorder *self, const OpenCall *open, PyObject *stack,
                     PyObject *index, PyObject *owner, PyObject *parent)
{
    if (is_watching(self)) return PyDict_SetDefault(self->stacks, index, stack) ? 0 : -1;
    if (PyDict_GET_SIZE(self->open_passes) &&
        call_away(PyObject_CallMethodNoArgs(self->recording, names.write_unfinished)) < 0)
        return -1;
    int is_known = owner == Py_None ? PySet_Contains(self->written_stacks, index) : 0;
    if (is_known < 0) return -1;
    if (!is_known)
        return call_away(PyObject_CallMethodObjArgs(self->recording, names.write_place, open->call,
                                                    open->name, stack, NULL));
    PyObject *order = self->keeps_construct ? Py_NewRef(open->order) : PyLong_FromLong(NO_ORDER);
    int failed = !order || put_call(self, open->name, order, parent, index) < 0;
    Py_XDECREF(order);
    return failed ? -1 : 0;
}

/* Return the name of a record: that of a module has the number of the call last. */
static PyObject *record_name(PyObject *base, Py_ssize_t number, const char *direction, int is_module)
{
    char inplace[256], *end = inplace;
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(base, &size);
    if (!text) PyErr_Clear(); /* lone surrogates */
    if (!text || size > (Py_ssize_t)sizeof inplace - 32)
        return is_module ? PyUnicode_FromFormat("%U.%s.%zd", base, direction, number)
                         : PyUnicode_FromFormat("%U.%zd.%s", base, number, direction);
    memcpy(end, text, (size_t)size);
    end += size;
    *end++ = '.';
    char digits[20];
    int count = 0;
    do digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    size_t length = strlen(direction);
    if (is_module) {
        memcpy(end, direction, length);
        end += length;
        *end++ = '.';
    }
    while (count) *end++ = digits[--count];
    if (!is_module) {
        *end++ = '.';
        memcpy(end, direction, length);
        end += length;
    }
    return PyUnicode_FromStringAndSize(inplace, end - inplace);
}

/* Make the `Call`, and note its place; -1 with an exception. */
static int begin_call(const CallRecorder *self, OpenCall *open, PyObject *base, PyObject *stack)
{
    Py_ssize_t number = count_call(self, base);
    if (number < 0 || leave_lost(self, stack) < 0) return -1;
    PyObject *backward_name = record_name(base, number, "backward", open->is_module);
    PyObject *index = PyObject_GetAttr(stack, names.index);
    PyObject *traits = PyObject_GetAttr(stack, names.traits);
    PyObject *owner = traits ? PyObject_GetAttr(traits, names.owner) : NULL;
    PyObject *step_number = PyObject_GetAttr(self->step, names.number);
    PyObject *parent = Py_XNewRef(owner), *backward_parent = Py_XNewRef(owner);
    Py_ssize_t depth = PyList_GET_SIZE(self->modules);
    if (depth) {
        PyObject *enclosing = PyList_GET_ITEM(self->modules, depth - 1);
        Py_XSETREF(parent, PyObject_GetAttr(enclosing, names.forward_name));
        Py_XSETREF(backward_parent, PyObject_GetAttr(enclosing, names.backward_name));
    }
    open->name = record_name(base, number, "forward", open->is_module);
    open->order = PyObject_CallMethodNoArgs(self->step, names.next_order);
    int failed = !backward_name || !index || !owner || !step_number || !parent ||
                 !backward_parent || !open->name || !open->order;
    if (!failed) {
        PyObject *fields[] = {open->name,
                              backward_name,
                              open->is_module ? Py_True : Py_False,
                              open->order,
                              parent,
                              backward_parent,
                              index,
                              step_number,
                              Py_None,
                              Py_True,
                              Py_True,
                              Py_True,
                              Py_False,
                              self->keeps_gradients ? Py_True : Py_False};
        open->call = PyObject_Vectorcall(self->make_call, fields, Py_ARRAY_LENGTH(fields), NULL);
        failed = !open->call || put_place(self, open, stack, index, owner, parent) < 0;
    }
    Py_XDECREF(backward_name);
    Py_XDECREF(index);
    Py_XDECREF(traits);
    Py_XDECREF(owner);
    Py_XDECREF(step_number);
    Py_XDECREF(parent);
    Py_XDECREF(backward_parent);
    if (!failed && open->is_module) failed = PyList_Append(self->modules, open->call) < 0;
    return failed ? -1 : 0;
}

/* Describe a module's own parameters: 1, 0 if one is not plain, -1 with an exception. */
static int put_parameters(Memo *memo, struct text *text, PyObject *parameters)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int outcome = put(text, ",\"parameters\":{") ? -1 : 1, is_first = 1;
    while (outcome > 0 && PyDict_Next(parameters, &position, &key, &value)) {
        if (value == Py_None) continue;
        Py_INCREF(key); /* the user's dict, which another thread may change while this one reads */
        Py_INCREF(value);
        outcome = (!is_first && put(text, ",")) || put_key(text, key)
                      ? -1
                      : put_seen(memo, text, value, SEEN);
        Py_DECREF(key);
        Py_DECREF(value);
        is_first = 0;
    }
    return outcome > 0 && put(text, "}") ? -1 : outcome;
}

/* Describe the inputs of a call: 1, 0 if something is not plain, -1 with an exception. */
static int put_inputs(const CallRecorder *self, OpenCall *open, PyObject *values,
                      PyObject *keywords, PyObject *parameters)
{
    struct text *text = &open->text;
    int outcome = put(text, "{\"input_args\":") ? -1 : 1;
    if (outcome > 0) outcome = put_positional((Memo *)self->memo, text, values, open->found);
    open->arguments_end = text->used;
    if (outcome > 0 && put(text, ",\"input_kwargs\":")) outcome = -1;
    if (outcome > 0) outcome = put_keywords((Memo *)self->memo, text, keywords, open->found);
    open->keywords_end = text->used;
    if (outcome > 0 && parameters) outcome = put_parameters((Memo *)self->memo, text, parameters);
    if (outcome >= 0 || !PyErr_ExceptionMatches(PyExc_Exception)) return outcome;
    PyErr_Clear(); /* described one by one, each value can fail, or have a note, by itself */
    return 0;
}

/* Look at the inputs of a call, and keep them: 1, 0 if one is not plain, -1 with an exception. */
static int watch_inputs(const CallRecorder *self, OpenCall *open, PyObject *values,
                        PyObject *keywords)
{
    Memo *memo = (Memo *)self->memo;
    int state =
        check_arguments(memo, values, keywords, open->found, COMES_IN, self->reads_parameters);
    if (state < 0) return state + 1;
    open->values = Py_NewRef(values);
    open->keywords = Py_NewRef(keywords);
    open->state = state;
    return 1;
}

static PyObject *CallRecorder_begin(CallRecorder *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 7) {
        PyErr_SetString(PyExc_TypeError,
                        "begin(base, stack, args, kwargs, parameters | None, with_grad, is_one_api)");
        return NULL;
    }
    PyObject *values = args[2], *keywords = args[3], *parameters = args[4];
    if (parameters == Py_None) parameters = NULL;
    int outcome = may_take(self, args[0], values, keywords, parameters);
    if (outcome < 0) return NULL;
    if (!outcome) Py_RETURN_NONE;
    OpenCall *open = PyObject_GC_New(OpenCall, OpenCallType);
    if (!open) return NULL;
    memset((char *)open + sizeof(PyObject), 0, sizeof *open - sizeof(PyObject));
    begin_text(&open->text);
    open->text.may_wait = 1;
    PyObject_GC_Track(open);
    open->is_module = parameters != NULL;
    open->found = PyList_New(0);
    if (!open->found || begin_call(self, open, args[0], args[1]) < 0) outcome = -1;
    else outcome = is_watching(self) ? watch_inputs(self, open, values, keywords)
                                     : put_inputs(self, open, values, keywords, parameters);
    open->is_described = outcome > 0;
    if (outcome == 0 && PyList_SetSlice(open->found, 0, PY_SSIZE_T_MAX, NULL) < 0) outcome = -1;
    if (outcome > 0 && self->keeps_gradients && args[5] == Py_True &&
        !(open->edges = new_edges(open->call, open->found, PyTuple_GET_SIZE(values),
                                  args[6] == Py_True)))
        outcome = -1;
    if (outcome < 0) Py_CLEAR(open);
    return (PyObject *)open;
}

/* ---- end --------------------------------------------------------------------------------------- */

/* Describe one result: 1, 0 if it is not plain, -1 with an exception. */
static int put_result(Memo *memo, struct text *text, PyObject *value, int is_new)
{
    if (value == Py_None) return put(text, "null") ? -1 : 1;
    PyObject *kind = (PyObject *)Py_TYPE(value);
    if (kind != torch.tensor && kind != torch.parameter) return 0;
    return put_seen(memo, text, value, is_new && kind == torch.tensor ? BORN : SEEN);
}

/* Describe the results of a call, as `put_result`. */
static int put_results(Memo *memo, struct text *text, PyObject *result, int is_new)
{
    int outcome = put(text, ",\"output\":[") ? -1 : 1;
    if (outcome > 0 && PyTuple_CheckExact(result))
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result) && outcome > 0; i++)
            outcome = i && put(text, ",")
                          ? -1
                          : put_result(memo, text, PyTuple_GET_ITEM(result, i), is_new);
    else if (outcome > 0)
        outcome = result == Py_None ? 0 : put_result(memo, text, result, is_new);
    return outcome > 0 && put(text, "]") ? -1 : outcome;
}

/* Put the random numbers that a call drew, if any, and the end; -1 with an exception. */
static int put_drawn(struct text *text, PyObject *drawn)
{
    if (drawn == Py_None) return put(text, "}");
    PyObject *encoded = PyObject_CallOneArg(torch.encode, drawn);
    int failed = !encoded || put(text, ",\"rng\":") ||
                 put_bytes(text, PyBytes_AS_STRING(encoded), (size_t)PyBytes_GET_SIZE(encoded)) ||
                 put(text, "}");
    Py_XDECREF(encoded);
    return failed ? -1 : 0;
}

/* Tap the gradients of a call; -1 with an exception. */
static int tap_results(const CallRecorder *self, const OpenCall *open, PyObject *result)
{
    if (!open->edges) return 0;
    int is_one = (PyObject *)Py_TYPE(result) == torch.tensor;
    if (is_one || PyTuple_CheckExact(result)) {
        int wanted = is_one ? flag(result, names.requires_grad) : 1;
        if (wanted <= 0) return wanted;
        PyObject *args[] = {self->session, (PyObject *)self, open->edges, result};
        PyObject *done = tap_output(NULL, args, 4);
        Py_XDECREF(done);
        if (done == Py_True) return 0;
        if (!done) {
            if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return -1;
            PyErr_Clear(); /* a stale view, to which nothing was done */
        }
    }
    return call_away(PyObject_CallFunctionObjArgs(self->tap_other, open->edges, result, NULL));
}

/* Take a call from the open modules, with those in it that never told their end. */
static int leave_module(const CallRecorder *self, const OpenCall *open)
{
    Py_ssize_t depth = PyList_GET_SIZE(self->modules);
    for (Py_ssize_t i = depth; i-- > 0;)
        if (PyList_GET_ITEM(self->modules, i) == open->call)
            return PyList_SetSlice(self->modules, i, depth, NULL);
    return 0;
}

/* Write the record; -1 with an exception. */
static int put_record(const CallRecorder *self, OpenCall *open)
{
    if (open->is_module) { /* children first, as readers align by */
        Py_XSETREF(open->order, PyObject_CallMethodNoArgs(self->step, names.next_order));
        if (!open->order || leave_module(self, open) < 0) return -1;
    }
    if (PyObject_SetAttr(self->calls, names.last_record, open->name) < 0) return -1;
    PyObject *bytes = PyBytes_FromStringAndSize(open->text.start, (Py_ssize_t)open->text.used);
    PyObject *raw = finished(bytes, open->text.unfilled);
    int failed = !raw || hand_on(self, open->name, open->order, raw) < 0;
    Py_XDECREF(raw);
    Py_XDECREF(bytes);
    return failed ? -1 : 0;
}

/* The worst state of the results of a call: -1 where one is not read here, -2 with an exception. */
static int watch_results(Memo *memo, PyObject *result, int is_new)
{
    int is_tuple = PyTuple_CheckExact(result), worst = SOUND;
    Py_ssize_t count = is_tuple ? PyTuple_GET_SIZE(result) : 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = is_tuple ? PyTuple_GET_ITEM(result, i) : result;
        PyObject *kind = (PyObject *)Py_TYPE(one);
        if (kind != torch.tensor && kind != torch.parameter) return -1;
        int state = check_or_leave(memo, one, is_new ? BORN : SEEN);
        if (state < 0) return state;
        if (state > worst) worst = state;
    }
    return worst;
}

/* End a call in which all is sound; False of any other. */
static PyObject *watch_end(const CallRecorder *self, const OpenCall *open, PyObject *result,
                           int is_new)
{
    int state = watch_results((Memo *)self->memo, result, is_new);
    if (state < -1) return NULL;
    if (state != SOUND || open->state != SOUND) Py_RETURN_FALSE;
    if (tap_results(self, open, result) < 0 ||
        PyObject_SetAttr(self->calls, names.last_record, open->name) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *CallRecorder_end(CallRecorder *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !Py_IS_TYPE(args[0], OpenCallType)) {
        PyErr_SetString(PyExc_TypeError, "end(opened, result, is_new, drawn | None)");
        return NULL;
    }
    OpenCall *open = (OpenCall *)args[0];
    if (!open->is_described) Py_RETURN_FALSE;
    int transformed = take_truth(PyObject_CallNoArgs(given.transforms));
    if (transformed) return transformed < 0 ? NULL : Py_NewRef(Py_False);
    if (is_watching(self)) return watch_end(self, open, args[1], args[2] == Py_True);
    size_t used = open->text.used;
    Py_ssize_t unfilled = open->text.unfilled ? PyList_GET_SIZE(open->text.unfilled) : 0;
    int outcome = put_results((Memo *)self->memo, &open->text, args[1], args[2] == Py_True);
    if (outcome > 0 && put_drawn(&open->text, args[3])) outcome = -1;
    if (outcome <= 0) {
        open->text.used = used;
        if (outcome < 0 && !PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
        PyErr_Clear();
        if (open->text.unfilled &&
            PyList_SetSlice(open->text.unfilled, unfilled, PY_SSIZE_T_MAX, NULL) < 0)
            return NULL;
        Py_RETURN_FALSE;
    }
    if (tap_results(self, open, args[1]) < 0 || put_record(self, open) < 0) return NULL;
    Py_RETURN_TRUE;
}

/* ---- for Python -------------------------------------------------------------------------------- */

/* Put a part of the text into the parts of a draft; `filled` values before it were in other parts, and
 * grow by its own. -1 with an exception. */
static int unfold_part(PyObject *draft, const char *name, const OpenCall *open, size_t begin,
                       size_t end, Py_ssize_t *filled)
{
    Py_ssize_t first = *filled;
    for (size_t i = begin; i < end; i++)
        *filled += (unsigned char)open->text.start[i] <= (unsigned char)MARKS[1];
    PyObject *bytes = PyBytes_FromStringAndSize(open->text.start + begin, (Py_ssize_t)(end - begin));
    if (!bytes) return -1;
    int is_late = *filled > first, failed;
    PyObject *values = is_late ? PyList_GetSlice(open->text.unfilled, first, *filled) : NULL;
    PyObject *key = PyUnicode_FromString(name);
    PyObject *json = is_late && !values ? NULL : finished(bytes, values);
    if (!key || !json) failed = 1;
    else if (is_late)
        failed = call_away(PyObject_CallMethodObjArgs(draft, names.wait_for, key, json, NULL)) < 0;
    else {
        PyObject *parts = PyObject_GetAttr(draft, names.parts);
        failed = !parts || PyDict_SetItem(parts, key, json) < 0;
        Py_XDECREF(parts);
    }
    Py_XDECREF(json);
    Py_XDECREF(key);
    Py_XDECREF(values);
    Py_DECREF(bytes);
    return failed ? -1 : 0;
}

static PyObject *CallRecorder_unfold(CallRecorder *self, PyObject *opened)
{
    if (!Py_IS_TYPE(opened, OpenCallType)) {
        PyErr_SetString(PyExc_TypeError, "unfold(opened)");
        return NULL;
    }
    OpenCall *open = (OpenCall *)opened;
    if (is_watching(self)) {
        if (!open->is_described) Py_RETURN_NONE;
        open->is_described = 0;
        PyObject *state = PyLong_FromLong(open->state);
        PyObject *done = state ? PyObject_CallMethodObjArgs(self->recording, names.adopt, open->call,
                                                            open->values, open->keywords,
                                                            open->found, state, NULL)
                               : NULL;
        Py_XDECREF(state);
        return done;
    }
    PyObject *draft = PyObject_CallMethodObjArgs(self->recording, names.new_draft, open->name,
                                                 open->order, NULL);
    int failed = !draft || PyObject_SetAttr(open->call, names.draft, draft) < 0;
    if (!failed && open->is_described) {
        size_t keywords = open->arguments_end + strlen(",\"input_kwargs\":");
        size_t parameters = open->keywords_end + strlen(",\"parameters\":");
        Py_ssize_t filled = 0;
        failed = unfold_part(draft, "input_args", open, strlen("{\"input_args\":"),
                             open->arguments_end, &filled) ||
                 unfold_part(draft, "input_kwargs", open, keywords, open->keywords_end, &filled) ||
                 (open->is_module &&
                  unfold_part(draft, "parameters", open, parameters, open->text.used, &filled));
        open->is_described = 0;
    }
    Py_XDECREF(draft);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* What a recorder owns, in the order of its fields. */
#define OWNED(self) (&(self)->session)
#define OWNED_COUNT 14

static int CallRecorder_traverse(CallRecorder *self, visitproc visit, void *arg)
{
    for (int i = 0; i < OWNED_COUNT; i++) Py_VISIT(OWNED(self)[i]);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static int CallRecorder_clear(CallRecorder *self)
{
    for (int i = 0; i < OWNED_COUNT; i++) Py_CLEAR(OWNED(self)[i]);
    return 0;
}

static void CallRecorder_dealloc(CallRecorder *self)
{
    PyObject_GC_UnTrack(self);
    CallRecorder_clear(self);
    free_object(self, PyObject_GC_Del);
}

static int CallRecorder_init(CallRecorder *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given_one[OWNED_COUNT];
    long long flush_at;
    int keeps_gradients, keeps_construct, reads_parameters;
    if (!PyArg_ParseTuple(args, "OOOOOOO!O!O!O!O!O!OOLppp", &given_one[0], &given_one[1], &given_one[2],
                          &given_one[3], &given_one[4], &given_one[5], MemoType, &given_one[6],
                          &PyDict_Type, &given_one[7], &PyList_Type, &given_one[8], &PySet_Type,
                          &given_one[9], &PyDict_Type, &given_one[10], &PyDict_Type, &given_one[11],
                          &given_one[12], &given_one[13], &flush_at, &keeps_gradients,
                          &keeps_construct, &reads_parameters))
        return -1;
    if (given_one[12] != Py_None && !PyDict_CheckExact(given_one[12])) {
        PyErr_SetString(PyExc_TypeError, "the stacks of a watch are a dictionary");
        return -1;
    }
    for (int i = 0; i < OWNED_COUNT; i++) Py_XSETREF(OWNED(self)[i], Py_NewRef(given_one[i]));
    self->flush_at = flush_at;
    self->keeps_gradients = (char)keeps_gradients;
    self->keeps_construct = (char)keeps_construct;
    self->reads_parameters = (char)reads_parameters;
    return 0;
}

static PyMethodDef RECORDER_METHODS[] = {
    {"begin", (PyCFunction)(void (*)(void))CallRecorder_begin, METH_FASTCALL,
     "begin(base, stack, args, kwargs, parameters | None, with_grad, is_one_api) -> OpenCall of a call "
     "that begins, of a module if it has a dictionary of parameters; None, and nothing done, where it "
     "is not plain. One that is not described has only begun: `unfold` it, and describe it"},
    {"end", (PyCFunction)(void (*)(void))CallRecorder_end, METH_FASTCALL,
     "end(opened, result, is_new, drawn | None) -> whether the call is recorded, or nothing was found in "
     "it, and its gradients are tapped; otherwise nothing is done: `unfold` it. `is_new`: the call has made its result"},
    {"unfold", (PyCFunction)CallRecorder_unfold, METH_O,
     "unfold(opened): give the call a draft that holds what is known, to go on in Python"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot CALL_RECORDER_SLOTS[] = {
    {Py_tp_new, (void *)PyType_GenericNew},
    {Py_tp_init, (void *)CallRecorder_init},
    {Py_tp_traverse, (void *)CallRecorder_traverse},
    {Py_tp_clear, (void *)CallRecorder_clear},
    {Py_tp_dealloc, (void *)CallRecorder_dealloc},
    {Py_tp_methods, RECORDER_METHODS},
    {Py_tp_doc, (void *)"CallRecorder(...): see msprobe.pytorch.interception.call_recorder"},
    {0, NULL},
};

static PyType_Spec CALL_RECORDER_SPEC = {
    .name = "msprobe.pytorch.values._tensors.CallRecorder",
    .basicsize = sizeof(CallRecorder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = CALL_RECORDER_SLOTS,
};
