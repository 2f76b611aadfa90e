/* SPDX-License-Identifier: Apache-2.0
 *
 * A part of _tensors.c: the way of an API call through the function mode. `ApiPath.handle` does what
 * `ApiObserver.__torch_function__` in msprobe.pytorch.interception does, for calls that only read
 * their arguments; any other is handed to that before anything is done.
 */

typedef struct {
    PyObject_HEAD
    PyObject *observer, *in_python;          /* the mode, and its own handler */
    PyObject *session, *left_threads;        /* of the mode */
    PyObject *entries, *stacks, *undefined;  /* tables that they share */
    /* Whether torch traces; the variables of torch.compiler, or None where that has to be asked. */
    PyObject *is_tracing, *compiler, *jit_state;
    PyObject *stack_key, *operator_name, *inner_code;
    CallRecorder *recorder;
} ApiPath;

enum way { FAILED = -1, IN_PYTHON, UNSEEN, OBSERVED };

/* Whether torch only builds a graph here; -1 with an exception. `asks`: the fields `is_tracing`,
 * `compiler` and `jit_state` of a path. */
static int is_tracing(PyObject *const *asks)
{
    if (asks[1] == Py_None) return take_truth(PyObject_CallNoArgs(asks[0]));
    PyObject *compiles = PyDict_GetItemWithError(asks[1], names._is_compiling_flag);
    if (compiles != Py_False) return PyErr_Occurred() ? -1 : 1;
    PyObject *state = PyObject_CallNoArgs(asks[2]);
    Py_XDECREF(state); /* compared only */
    if (state != Py_None) return state ? 1 : -1;
    int modes = take_truth(PyObject_CallNoArgs(given.dispatch_modes));
    return modes > 0 ? take_truth(PyObject_CallNoArgs(asks[0])) : modes;
}

/* Whether a call draws no numbers, as the probability that it is given is 0; -1 with an exception. */
static int has_no_chance(PyObject *entry, PyObject *args, PyObject *kwargs)
{
    PyObject *chance = PyObject_GetAttr(entry, names.chance); /* position and name, or None */
    if (!chance || chance == Py_None) {
        Py_XDECREF(chance);
        return chance ? 0 : -1;
    }
    Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(chance, 0));
    PyObject *value = place < PyTuple_GET_SIZE(args)
                          ? PyTuple_GET_ITEM(args, place)
                          : PyDict_GetItemWithError(kwargs, PyTuple_GET_ITEM(chance, 1));
    Py_DECREF(chance);
    if (!value) return PyErr_Occurred() ? -1 : 1;
    return PyFloat_CheckExact(value) && PyFloat_AsDouble(value) == 0.0;
}

/* Which way a call goes; `*entry` is borrowed. */
static enum way way_of(const ApiPath *self, PyObject *func, PyObject *args, PyObject *kwargs,
                       PyObject **entry)
{
    if (PySet_GET_SIZE(self->left_threads)) return IN_PYTHON;
    int answer = flag(self->session, names.observing);
    if (answer <= 0) return answer ? FAILED : UNSEEN;
    *entry = PyDict_GetItemWithError(self->entries, func);
    if (!*entry) {
        PyErr_Clear(); /* one that has no hash */
        return IN_PYTHON;
    }
    answer = flag(*entry, names.is_unseen);
    if (answer) return answer < 0 ? FAILED : UNSEEN;
    answer = is_tracing(&self->is_tracing);
    if (answer) return answer < 0 ? FAILED : UNSEEN;
    answer = is_attribute(self->observer, names.runner, Py_None);
    if (answer <= 0) return answer < 0 ? FAILED : IN_PYTHON;
    answer = flag(*entry, names.is_plain);
    if (answer < 0) return FAILED;
    if (!answer) {
        int sets_nothing = PyTuple_CheckExact(args) && PyTuple_GET_SIZE(args) == 2 &&
                           PyTuple_GET_ITEM(args, 1) == Py_None;
        answer = sets_nothing ? flag(*entry, names.is_setter) : 0;
        if (answer) return answer < 0 ? FAILED : UNSEEN;
        answer = PyTuple_CheckExact(args) ? has_no_chance(*entry, args, kwargs) : 0;
        if (answer <= 0) return answer ? FAILED : IN_PYTHON;
    }
    if (PyDict_GET_SIZE(self->undefined)) return IN_PYTHON;
    PyObject *out = PyDict_GetItemWithError(kwargs, names.out);
    return out ? IN_PYTHON : PyErr_Occurred() ? FAILED : OBSERVED;
}

/* Return the frame that called the API; NULL without an exception if there is none. A function of
 * Python's comes through `handle_torch_function`, below its own frame. */
static PyObject *calling_frame(PyObject *inner_code)
{
    PyObject *frame = Py_XNewRef((PyObject *)PyEval_GetFrame());
    if (!frame) return NULL;
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    Py_XDECREF(code); /* compared only */
    if (code != inner_code) return frame;
    PyObject *own = PyObject_GetAttr(frame, names.f_back);
    PyObject *caller = own ? PyObject_GetAttr(own, names.f_back) : NULL; /* None has none */
    Py_XDECREF(own);
    if (!caller || caller == Py_None) {
        PyErr_Clear();
        Py_XDECREF(caller);
        return frame;
    }
    Py_DECREF(frame);
    return caller;
}

/* Return the stack of a frame, borrowed; NULL, perhaps with an exception, of one that is new or says
 * that the call is not to be recorded here. */
static PyObject *plain_stack(const ApiPath *self, PyObject *frame)
{
    PyObject *key = PyObject_CallOneArg(self->stack_key, frame);
    PyObject *stack = key ? PyDict_GetItemWithError(self->stacks, key) : NULL;
    Py_XDECREF(key);
    PyObject *traits = stack ? PyObject_GetAttr(stack, names.traits) : NULL;
    if (!traits) return NULL;
    int is_special = flag(traits, names.internal);
    if (!is_special) is_special = flag(traits, names.checkpointed);
    Py_DECREF(traits);
    return is_special ? NULL : stack;
}

/* Whether calls are muted or slept through, or other modes of dispatch are on; -1 with an exception. */
static int is_hushed(const ApiPath *self)
{
    int answer = flag(self->session, names.muted);
    if (!answer) answer = flag(self->observer, names.asleep);
    if (!answer) answer = take_truth(PyObject_CallNoArgs(given.dispatch_modes));
    return answer;
}

/* Begin a call inside the guard: 1 with `*opened`, 0 to go on in Python, nothing being done, -1 with
 * an exception. */
static int begin_inside(const ApiPath *self, PyObject *entry, PyObject *frame, PyObject *stack,
                        PyObject *args, PyObject *kwargs, PyObject *with_grad, PyObject **opened)
{
    PyObject *name = PyObject_GetAttr(entry, names.operator_name);
    if (name == Py_None) Py_SETREF(name, PyObject_GetAttr(entry, names.name));
    else if (name)
        Py_SETREF(name, PyObject_CallFunctionObjArgs(self->operator_name, entry, frame, NULL));
    if (!name) return -1;
    PyObject *given_all[] = {name, stack, args, kwargs, Py_None, with_grad, Py_True};
    *opened = CallRecorder_begin(self->recorder, given_all, Py_ARRAY_LENGTH(given_all));
    Py_DECREF(name);
    if (!*opened || *opened == Py_None) {
        int outcome = *opened ? 0 : -1;
        Py_CLEAR(*opened);
        return outcome;
    }
    if (((OpenCall *)*opened)->is_described) return 1;
    if (call_away(CallRecorder_unfold(self->recorder, *opened)) < 0) {
        Py_CLEAR(*opened);
        return -1;
    }
    PyObject *call = ((OpenCall *)*opened)->call;
    Py_SETREF(*opened, PyObject_CallMethodObjArgs(self->observer, names.open_begun, call, args, kwargs,
                                                  entry, with_grad, NULL));
    return *opened ? 1 : -1;
}

/* Begin a call: 1, with `*opened` or, if that failed, NULL; 0 to go on in Python; -1 with an
 * exception. */
static int begin_api(const ApiPath *self, PyObject *entry, PyObject *args, PyObject *kwargs,
                     PyObject **opened)
{
    int hushed = is_hushed(self);
    if (hushed) return hushed < 0 ? -1 : 0;
    PyObject *frame = calling_frame(self->inner_code);
    PyObject *stack = frame ? Py_XNewRef(plain_stack(self, frame)) : NULL;
    PyObject *with_grad = stack ? PyObject_CallNoArgs(given.is_grad_enabled) : NULL;
    struct guard guard;
    int outcome = PyErr_Occurred() ? -1 : 0;
    if (with_grad && enter_guard(&guard, self->session) == 0) {
        outcome = begin_inside(self, entry, frame, stack, args, kwargs, with_grad, opened);
        if (outcome < 0 && tell_failure(self->session, "api begin") == 0) outcome = 1;
        leave_guard(&guard);
    } else if (with_grad) {
        outcome = -1;
    }
    Py_XDECREF(with_grad);
    Py_XDECREF(stack);
    Py_XDECREF(frame);
    return outcome;
}

/* Note the exception that is set, which stays set: as in an `except` block. */
static void note_raised(const ApiPath *self, PyObject *opened)
{
    PyObject *kind, *value, *traceback, *handled[3];
    PyErr_Fetch(&kind, &value, &traceback);
    PyErr_NormalizeException(&kind, &value, &traceback);
    PyErr_GetExcInfo(&handled[0], &handled[1], &handled[2]);
    PyErr_SetExcInfo(Py_XNewRef(kind), Py_XNewRef(value), Py_XNewRef(traceback));
    if (call_away(PyObject_CallMethodObjArgs(self->observer, names.note_raised, opened, value, NULL)) < 0)
        PyErr_WriteUnraisable(self->observer);
    PyErr_SetExcInfo(handled[0], handled[1], handled[2]);
    PyErr_Restore(kind, value, traceback);
}

/* End a call inside the guard; -1 with an exception. */
static int end_inside(const ApiPath *self, PyObject *entry, PyObject *opened, PyObject *args,
                      PyObject *kwargs, PyObject *result)
{
    int is_plain = PyDict_GET_SIZE(self->undefined) == 0 && Py_IS_TYPE(opened, OpenCallType);
    if (is_plain) {
        PyObject *given_all[] = {opened, result, Py_True, Py_None};
        int done = take_truth(CallRecorder_end(self->recorder, given_all, Py_ARRAY_LENGTH(given_all)));
        if (done) return done < 0 ? -1 : 0;
        return call_away(PyObject_CallMethodObjArgs(self->observer, names.end_pure, entry, opened,
                                                    result, NULL));
    }
    return call_away(PyObject_CallMethodObjArgs(self->observer, names.end_call, entry, opened, args,
                                                kwargs, result, NULL));
}

static int end_api(const ApiPath *self, PyObject *entry, PyObject *opened, PyObject *args,
                   PyObject *kwargs, PyObject *result)
{
    struct guard guard;
    if (enter_guard(&guard, self->session) < 0) return -1;
    int failed = end_inside(self, entry, opened, args, kwargs, result) < 0 &&
                 tell_failure(self->session, "api end") < 0;
    leave_guard(&guard);
    return failed ? -1 : 0;
}

/* Run a call that has begun, and end it. */
static PyObject *run_api(const ApiPath *self, PyObject *entry, PyObject *opened, PyObject *func,
                         PyObject *args, PyObject *kwargs)
{
    PyObject *result = PyObject_Call(func, args, kwargs);
    if (!result && opened) note_raised(self, opened);
    else if (opened && end_api(self, entry, opened, args, kwargs, result) < 0) Py_CLEAR(result);
    return result;
}

static PyObject *ApiPath_handle(ApiPath *self, PyObject *const *given_all, Py_ssize_t count)
{
    if (count < 3 || count > 5) {
        PyErr_SetString(PyExc_TypeError, "handle(mode, func, types, args=(), kwargs=None)");
        return NULL;
    }
    given_all++, count--; /* of the mode, whose method torch wants this to be */
    PyObject *func = given_all[0], *entry = NULL, *opened = NULL, *result = NULL;
    PyObject *args = count > 2 ? Py_NewRef(given_all[2]) : PyTuple_New(0);
    int has_kwargs = count > 3 && given_all[3] != Py_None;
    PyObject *kwargs = has_kwargs ? Py_NewRef(given_all[3]) : PyDict_New();
    enum way way = !args || !kwargs ? FAILED : way_of(self, func, args, kwargs, &entry);
    if (way == OBSERVED) {
        Py_INCREF(entry); /* the table may be cleared */
        int begun = begin_api(self, entry, args, kwargs, &opened);
        if (begun > 0) result = run_api(self, entry, opened, func, args, kwargs);
        else way = begun ? FAILED : IN_PYTHON;
        Py_XDECREF(opened);
        Py_DECREF(entry);
    }
    if (way == FAILED && args && kwargs && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* the function was not run: Python meets the same, and notes it */
        way = IN_PYTHON;
    }
    if (way == UNSEEN) result = PyObject_Call(func, args, kwargs);
    else if (way == IN_PYTHON)
        result = PyObject_CallFunctionObjArgs(self->in_python, func, given_all[1], args, kwargs, NULL);
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    return result;
}

/* What a path owns, in the order of its fields. */
#define PATH_OWNED(self) (&(self)->observer)
#define PATH_OWNED_COUNT 14

static int ApiPath_traverse(ApiPath *self, visitproc visit, void *arg)
{
    for (int i = 0; i < PATH_OWNED_COUNT; i++) Py_VISIT(PATH_OWNED(self)[i]);
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static int ApiPath_clear(ApiPath *self)
{
    for (int i = 0; i < PATH_OWNED_COUNT; i++) Py_CLEAR(PATH_OWNED(self)[i]);
    return 0;
}

static void ApiPath_dealloc(ApiPath *self)
{
    PyObject_GC_UnTrack(self);
    ApiPath_clear(self);
    free_object(self, PyObject_GC_Del);
}

static int ApiPath_init(ApiPath *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given_one[PATH_OWNED_COUNT];
    if (!PyArg_ParseTuple(args, "OOOO!O!O!O!OOOOOOO!", &given_one[0], &given_one[1], &given_one[2],
                          &PySet_Type, &given_one[3], &PyDict_Type, &given_one[4], &PyDict_Type,
                          &given_one[5], &PyDict_Type, &given_one[6], &given_one[7], &given_one[8],
                          &given_one[9], &given_one[10], &given_one[11], &given_one[12],
                          CallRecorderType, &given_one[13]))
        return -1;
    for (int i = 0; i < PATH_OWNED_COUNT; i++) Py_XSETREF(PATH_OWNED(self)[i], Py_NewRef(given_one[i]));
    return 0;
}

static PyMethodDef PATH_METHODS[] = {
    {"handle", (PyCFunction)(void (*)(void))ApiPath_handle, METH_FASTCALL,
     "handle(mode, func, types, args=(), kwargs=None) -> the result of a call, which is observed"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot API_PATH_SLOTS[] = {
    {Py_tp_new, (void *)PyType_GenericNew},
    {Py_tp_init, (void *)ApiPath_init},
    {Py_tp_traverse, (void *)ApiPath_traverse},
    {Py_tp_clear, (void *)ApiPath_clear},
    {Py_tp_dealloc, (void *)ApiPath_dealloc},
    {Py_tp_methods, PATH_METHODS},
    {Py_tp_doc, (void *)"ApiPath(...): see ApiObserver in msprobe.pytorch.interception.function_mode"},
    {0, NULL},
};

static PyType_Spec API_PATH_SPEC = {
    .name = "msprobe.pytorch.values._tensors.ApiPath",
    .basicsize = sizeof(ApiPath),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = API_PATH_SLOTS,
};
