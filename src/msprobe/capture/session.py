# SPDX-License-Identifier: Apache-2.0
"""One run of capture: its configuration, its steps, its folder, its account.

The `Session` is the one mutable object of a run. `current_session` is the one global: the session
that the process-wide debugger uses; `reset_session` ends it, which tests do between runs.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from msprobe.capture.account import Account, RunTotals, Step
from msprobe.capture.adapter import Adapter
from msprobe.capture.attaching import Attachable
from msprobe.capture.backward_passes import BackwardPasses
from msprobe.capture.calls import Calls
from msprobe.capture.diff_check import Judge
from msprobe.capture.events import CallSink
from msprobe.capture.facts import FactCollector, FactSink
from msprobe.capture.flight import FlightRecorder
from msprobe.capture.recording import RecordingContext
from msprobe.capture.saved_values import SavedValues
from msprobe.capture.selection import Selection
from msprobe.capture.stacks import StackTable
from msprobe.capture.step_dumps import StepDumps
from msprobe.capture.task_checks import TaskChecks
from msprobe.capture.values import Describer
from msprobe.config import (
    Config,
    DataMode,
    DumpSwitch,
    FreeBenchmarkSection,
    Level,
    StatisticsSection,
    Task,
    TensorSection,
    reload_dump_enable,
)
from msprobe.dump.clearing import drop_rank
from msprobe.dump.writer import RankDump

logger = logging.getLogger(__name__)

_clock = time.perf_counter
T = TypeVar("T")


class Session:
    """The state of one run.

    Attributes:
        config: the frozen settings.
        adapter: the framework.
        stacks: call stacks seen so far.
        current: the step that events belong to.
        totals: counts over all steps.
        checks: judge the records of a task that keeps few.
        dumps: the folders of the run, and the dump of each step.
        dump: the open one; None where no step is being recorded.
        calls: is told of calls; tells the sinks.
        backward: is told of gradients; tells the sinks.
        recording: the sink that makes the records of the task.
        saved: makes the records of level debug.
        facts: takes what happens around the calls.
        capturing: whether execution is between `start` and `stop`.
        observing: whether calls are observed now: capturing, and inside the token range.
        finished: whether the last wanted step is over; nothing is recorded any more.
        is_off: whether nothing is recorded in this run at all.
        is_forked: whether this process is a forked child, which records nothing.
        undo: removes hooks and wrappers; closed by `stop`.
        step_undo: removes those that must last until the step ends (hooks on parameters).
        lasting_undo: removes those that may stay for the next step; where that saves time, in the
            task `signature`, it is closed when a step is not wanted, else it is `step_undo`.
        run_undo: removes those that last for the whole run; closed by `close`.
        thread: the thread that called `start`; only it is observed.
        lock: held while recording: hooks of one backward pass run in a thread for each device.
        spending_since: since when msprobe's code runs; None while the user's does.
        muted: above 0, API calls make no records: inside a registered API, or while one module
            alone is dumped.
    """

    def __init__(
        self,
        config: Config,
        adapter: Adapter,
        tensor_types: Sequence[type],
        judge: Judge | None = None,
    ) -> None:
        """Create a session that is not capturing yet; nothing is opened or installed.

        Args:
            config: the settings.
            adapter: the framework.
            tensor_types: exact tensor types, see `Describer`.
            judge: compares records with another run; only for the task `diff_check`.
        """
        self.config = config
        self.adapter = adapter
        self.stacks = StackTable(adapter.classify_stack, adapter.is_machinery)
        self.undo = ExitStack()
        self.step_undo = ExitStack()
        self.lasting_undo = ExitStack() if config.task is Task.SIGNATURE else self.step_undo
        self.run_undo = ExitStack()
        self.capturing = False
        self.observing = False
        self.finished = False
        self.is_off = False
        self.is_forked = False
        self.thread = 0
        self.lock = threading.RLock()
        self.spending_since: float | None = None
        self.muted = 0
        self.dump: RankDump | None = None
        self.current = Step()
        self.totals = RunTotals()
        self._warned_of_rank = False
        self._switch = DumpSwitch(enabled=config.dump_enable)
        self._attachable: Attachable | None = None
        self._dead = False
        self.checks = TaskChecks(config, judge, self.attempt)
        self.dumps = StepDumps(
            config,
            adapter.framework,
            self.checks,
            attempt=self.attempt,
            settle=self.settle_spending,
        )
        if config.dump_enable is not None:
            # The flight recorder has the signal for itself.
            self._attachable = Attachable(config.dump_path, listens=self.flight is None)
            self.run_undo.callback(self._attachable.close)
        selection = _selection(config)
        around = RecordingContext(
            step=self.current,
            adapter=adapter,
            describer=Describer(adapter, tensor_types),
            data_mode=selection.data_mode,
            keeps_construct=config.level is not Level.L1,
            submit=self.dumps.submit,
            failed=self.failed,
        )
        self.recording = self.checks.recording(around)
        sink = CallSink() if config.task is Task.FREE_BENCHMARK else self.recording
        self.calls = Calls(self.current, selection, sink)
        self.backward = BackwardPasses(self.calls, adapter)
        self.saved = SavedValues(self.recording, self.current, adapter)
        self.facts = FactCollector(is_wanted=config.facts)
        atexit.register(self.close)

    # -- state ---------------------------------------------------------------------------------

    @property
    def step_number(self) -> int:
        """Number of the current step."""
        return self.current.number

    @property
    def account(self) -> Account:
        """The account of the current step."""
        return self.current.account

    @property
    def flight(self) -> FlightRecorder | None:
        """The last steps in memory; None where every step is written."""
        return self.dumps.flight

    def begin_at(self, step: int) -> None:
        """Make `step` the first one; a step already begun ends, and its folder goes if empty."""
        if self.checks.files is not None:
            self.checks.files.continue_at(step)
            self._end_step()
        dump = self.dump
        if dump is not None:
            if self.capturing:
                logger.warning(
                    "set_init_step(): recording had begun as step %d, and ends; call start() again",
                    self.step_number,
                )
            self._end_step()
            if not (self.calls.any_began or self.account.records):
                self._guarded("set_init_step", lambda: drop_rank(dump.directory))
        self.set_step(step)

    def set_step(self, step: int) -> None:
        """Make `step` the current step; its records start anew."""
        with self.lock:  # a hook in another thread is in one of the two steps, never in both
            self.current.begin(step)
            self.calls.next_step()
            self.recording.next_step()
            self.backward.next_step()
            self.saved.next_step()

    # -- start, stop, step ---------------------------------------------------------------------

    def start(self, *, rank: int | None = None) -> bool:
        """Begin to observe, if this step and rank are wanted.

        Args:
            rank: overrides the rank of the process group.

        Returns:
            Whether observing begins: the adapter then installs its hooks.
        """
        self.totals.start(self.step_number)
        if self.capturing:
            self.current.ending.started_again()
            return False
        if not self._open_if_wanted(rank):
            self._remove_lasting()
            return False
        self.current.ending.started()
        self._guarded("start", self.adapter.prepare)
        self.capturing = self.observing = True
        self.thread = threading.get_ident()
        return True

    def open_for_saving(self) -> bool:
        """Open the dump for a value that the user saves; return whether this step is wanted.

        Level debug knows no `start`: the first saved value of a step opens its folder.
        """
        return self.dump is not None or self._open_if_wanted(None)

    def _open_if_wanted(self, rank: int | None) -> bool:
        if self._dead or self.finished or self.is_off:
            return False
        last = self.config.last_step
        if last is not None and self.step_number > last:
            self.finished = True
            logger.info("all wanted steps are recorded: capture ends (last step %d)", last)
            return False
        if self.checks.finished:
            self.finished = True
            return False
        if not self._is_wanted_now():
            return False
        if rank is None:
            rank = self.adapter.current_rank()
        if not self._wants_rank(rank):
            self.totals.is_other_rank = True
            return False
        self._open(rank)
        return True

    def stop(self, *, inside_backward: bool = False) -> None:
        """End observing; gradients of recorded calls are still taken until `step`.

        Args:
            inside_backward: whether a backward pass is running, whose records are not complete.
        """
        if self.dump is not None:
            self.wait_for_graphs()
        with self.spending():
            was_capturing = self.capturing
            self.capturing = self.observing = False
            self.attempt("stop", self.undo.close)
            if was_capturing and not inside_backward:
                self._guarded("stop", self.backward.close_passes)
                self.write_json()
            self._switched_on()

    def observe(self, step: int, facts: FactSink) -> None:
        """Begin to observe a step for the sinks of the caller, without a dump.

        Args:
            step: its number.
            facts: takes the facts of the step.
        """
        self.end_observing()
        self.set_step(step)
        self.facts.begin(step, facts)
        self.capturing = self.observing = True
        self.thread = threading.get_ident()

    def end_observing(self) -> None:
        """End the step that `observe` began; hooks stay until the undo stacks are closed."""
        if self.capturing:
            self._guarded("end of step", self.backward.close_passes)
            self._guarded("end of step", self.facts.finish)
        self.capturing = self.observing = False

    def wait_for_graphs(self) -> None:
        """Wait for the compiled graphs that the program has launched."""
        try:
            self.adapter.wait_for_graphs()
        except Exception as error:  # noqa: BLE001 - the program's own, which stays with its result
            self.failed("a graph of the program", error)

    def step(self) -> None:
        """End the step: write pending records, log the account, and go on to the next step."""
        with self.spending():
            self._end_step()
            self.set_step(self.step_number + 1)

    def write_json(self) -> None:
        """Bring everything known so far to the JSON files."""
        if self.dump is None:
            return
        self._guarded("stop", self._hand_on_waiting)
        self.dump.build_json()

    def close(self) -> None:
        """End the session: nothing is observed afterwards, everything is on disk."""
        if self._dead:
            return
        self.current.ending.at_exit()
        self._end_step()
        if self.flight is not None:
            self.dumps.end_flight(self.current.ending.judge())
        self._remove_lasting()
        self.run_undo.close()
        self._dead = True
        self.dumps.close(is_forked=self.is_forked)
        if self.checks.files is not None:
            self._guarded("close", self.checks.files.close)
        self.dumps.release()
        atexit.unregister(self.close)

    def _end_step(self) -> None:
        ending = self.current.ending
        ending.passing()
        if self.config.enable_dataloader:  # the loop's next request, or its end, ends a step
            ending.is_stopped = True
        self.stop()
        self.attempt("step", self.step_undo.close)
        if self.step_number == self.config.last_step:
            self._remove_lasting()
        self._close_dump()

    def _remove_lasting(self) -> None:
        if self.lasting_undo is not self.step_undo:
            self.attempt("removing hooks", self.lasting_undo.close)

    # -- of tasks that write no dump -----------------------------------------------------------

    def rank(self) -> int | None:
        """Return the rank of this process, None without a process group."""
        return self.adapter.current_rank()

    def frames(self, stack: int | None) -> tuple[str, ...]:
        """Return the frames of the stack with an index; none where it is not known any more."""
        return self.stacks.frames(stack)

    def spent_s(self) -> float:
        """Return the seconds that the current step has cost so far."""
        return self.account.spent_s

    # -- time ----------------------------------------------------------------------------------

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Add the time inside to the account; nested uses count once."""
        if self.spending_since is not None:
            yield
            return
        self.spending_since = _clock()
        try:
            yield
        finally:
            self.settle_spending()
            self.spending_since = None

    def settle_spending(self) -> None:
        """Add the time so far, if msprobe's code runs, to the account of the current step."""
        if self.spending_since is not None:
            now = _clock()
            self.account.spent_s += now - self.spending_since
            self.spending_since = now

    # -- errors --------------------------------------------------------------------------------

    def failed(self, where: str, error: BaseException) -> None:
        """Note that msprobe's own code failed; the user's program goes on."""
        kind = f"{where}: {type(error).__name__}"
        errors = self.account.errors if self.checks.files is None else self.totals.errors
        errors[kind] += 1
        if errors[kind] == 1:
            logger.warning("capture failed in %s: %s; the run goes on", where, error)
            if self.dump is not None:
                self.dump.log_error(kind, "".join(traceback.format_exception(error)))

    def attempt(self, where: str, action: Callable[..., T], *args: Any) -> T | None:
        """Return ``action(*args)``, a part of the user's `start`, `stop` or `step`.

        An exception is noted, not raised, and the result is then None.
        """
        try:
            with self.lock:
                return action(*args)
        except Exception as error:  # noqa: BLE001 - the user's training must survive us
            self.failed(where, error)
            return None

    # -- inside --------------------------------------------------------------------------------

    def _guarded(self, where: str, action: Callable[..., T], *args: Any) -> T | None:
        """Run msprobe's part of the user's `stop` or `step`; an exception is noted, not raised."""

        def run() -> T:
            with self.adapter.guard():
                return action(*args)

        return self.attempt(where, run)

    def _hand_on_waiting(self) -> None:
        self.recording.rewrite_recomputed()
        self.recording.flush_deferred()

    def _is_wanted_now(self) -> bool:
        """Return whether the step that begins is recorded, as far as its number decides."""
        is_wanted = self.config.wants_step(self.step_number)
        is_asked_for = self._is_asked_for()
        if self.flight is None:
            return is_asked_for or (is_wanted and self._switched_on())
        self._switched_on()
        if is_asked_for:
            self.flight.ask("msprobe attach")
        return is_wanted or is_asked_for

    def _is_asked_for(self) -> bool:
        return self._attachable is not None and self._attachable.wanted(self.step_number)

    def _switched_on(self) -> bool:
        if self.config.dump_enable is None:
            return True
        if self.config.source is None:
            return self.config.dump_enable
        before = self._switch
        self._switch = reload_dump_enable(self.config.source, before)
        if self._switch.problem and self._switch.problem != before.problem:
            logger.warning("dump_enable keeps its last value: %s", self._switch.problem)
        if self.flight is not None and self._switch.is_on and not before.is_on:
            self.flight.ask("dump_enable")
        return self._switch.is_on

    def _wants_rank(self, rank: int | None) -> bool:
        if rank is None and self.config.rank and not self._warned_of_rank:
            self._warned_of_rank = True
            logger.warning(
                'config "rank" is %s but no process group is initialised: '
                "this process counts as rank 0",
                list(self.config.rank),
            )
        return self.config.wants_rank(rank or 0)

    def _open(self, rank: int | None) -> None:
        if self.dump is not None or self.facts.is_open:
            return
        self.totals.has_opened = True
        if self.checks.files is not None:
            claim = self.dumps.claim(rank)
            begin = self.checks.files.begin
            facts = self._guarded(str(self.config.task), begin, claim.dump_path, claim.name)
            if facts is not None:
                self.facts.begin(self.step_number, facts)
            return
        if self.dumps.begin_writing():
            # At exit, handlers run in reverse: ours must come before the writer's.
            atexit.unregister(self.close)
            atexit.register(self.close)
        self.dump = self.dumps.open(self.step_number, rank)
        self.recording.use(self.dump)
        sink = self.dump if self.flight is None else self.flight.watch(self.dump)
        self.facts.begin(self.step_number, sink)

    def _close_dump(self) -> None:
        if self.checks.files is not None:
            self._guarded("step", self.facts.finish)
            self._guarded(str(self.config.task), self.checks.files.write)
            return
        dump = self.dump
        if dump is None:
            return
        self._guarded("step", self.backward.close_step)
        self._guarded("step", self.saved.close_records)
        self._guarded("step", self._hand_on_waiting)
        if self.checks.judge is not None:
            self._guarded("diff_check", self.checks.judge.end_step)
        later = self.config.wanted_after(self.step_number)
        ended = self.facts.ended = self.current.ending.judge(later)
        self._guarded("step", self.facts.finish)
        self.dump = None
        self.recording.use(None)
        account = self.account
        account.close(ended, saw_calls=self.calls.any_began)
        self.dumps.close_step(dump, account, ended, self._has_bad_values)
        self.totals.add(account)

    def _has_bad_values(self) -> bool:
        """Return whether a record of the step shows NaN or +Inf."""
        return bool(self.adapter.take_bad_values()) or self.current.is_bad

    def flush(self, reason: str) -> None:
        """Write the steps that are kept in memory: now, or with the step that is being recorded."""
        self.dumps.flush(reason, is_recording=self.dump is not None)

    def forget(self) -> None:
        """Take no further part in the run: this is a forked child, such as a loader's worker."""
        self._dead = self.is_forked = True
        self.capturing = self.observing = False
        self.finished = True
        self.dump = None
        self.facts.forget()
        self.dumps.forget()
        self.lock = threading.RLock()  # a thread that is not in the child may hold the old one
        self.recording.use(None)


def _selection(config: Config) -> Selection:
    section = config.section
    only_tree = config.task is Task.STRUCTURE or config.level is Level.L2
    if isinstance(section, StatisticsSection | TensorSection):
        return Selection(
            name_filters=section.name_filters,
            scope=section.scope,
            black_list=section.black_list,
            data_mode=section.data_mode,
            expands_modules=config.level is Level.MIX,
            only_tree=only_tree,
        )
    if isinstance(section, FreeBenchmarkSection):
        return Selection(
            name_filters=section.name_filters,
            scope=section.scope,
            black_list=section.black_list,
            data_mode=DataMode(backward=False),
            expands_modules=config.level is Level.MIX,
        )
    return Selection(black_list=section.black_list, data_mode=DataMode(), only_tree=only_tree)


@dataclass(slots=True)
class _Current:
    session: Session | None = None


_current = _Current()


def current_session() -> Session | None:
    """Return the session of the process, None before a debugger was constructed."""
    return _current.session


def use_session(session: Session) -> None:
    """Make `session` the one of the process; a debugger does this when it is constructed."""
    _current.session = session


def reset_session() -> None:
    """End the session of the process, if there is one, so that another can begin."""
    session, _current.session = _current.session, None
    if session is not None:
        session.close()


def _forget_in_child() -> None:
    if _current.session is not None:
        _current.session.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
