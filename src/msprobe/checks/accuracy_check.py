# SPDX-License-Identifier: Apache-2.0
"""The accuracy check of a whole recording: which calls, in which processes, into which files."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from msprobe.checks.accuracy_call import CheckedCall, CheckOptions, check_call
from msprobe.checks.accuracy_csv import CheckFiles, DetailRow, ResultRow, bare_api
from msprobe.checks.standards.first_verdict import Status
from msprobe.checks.standards.standard import Generation, Standards
from msprobe.checks.verify_call import CallReport
from msprobe.config.reading import read_config_file
from msprobe.dump.dump_steps import RankKey
from msprobe.dump.rank_view import RankView
from msprobe.dump.reader import open_dump
from msprobe.dump.record_names import call_name
from msprobe.errors import ConfigError, DumpFormatError, UsageError
from msprobe.plain_text import place_text
from msprobe.replay.recorded_calls import call_names, recorded_call
from msprobe.replay.references import import_definitions
from msprobe.replay.runner import Reason, Runner, runner_for
from msprobe.replay.tensors import TensorSource
from msprobe.replay.workers import Crash, Limits, run_tasks
from msprobe.yaml_nodes import nearest

SECTIONS: Final = ("acc_check", "run_ut")
"""Names of the section of `config.json`, of 26.2.0 and of the documents."""
_ONLINE_KEYS: Final = ("is_online", "nfs_path", "host", "port", "tls_path", "rank_list")
_KEYS: Final = ("white_list", "black_list", "error_data_path", "precision", *_ONLINE_KEYS)
_MOST_DECIMALS: Final = 20
_LAST_PORT: Final = 65535
_BLOCK: Final = 1 << 22
# Of a tensor, all that makes calls different but its values.
_FORM: Final = ("type", "dtype", "shape")

Task = tuple[str, str]
"""A call's record and the device that the user named for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """The section of `config.json`.

    Attributes:
        white_list: only these operators, by their bare names; empty for all.
        black_list: not these.
        error_data_path: folder for saved tensors of calls that do not pass.
        precision: decimals in the files.
        online: where calls come from while the training runs; None for a recording.
    """

    white_list: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    error_data_path: Path = Path()
    precision: int | None = None
    online: OnlineSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineSource:
    """Where the calls of a running training come from.

    Attributes:
        nfs_path: a folder that the training writes into; None for a socket.
        address: ``host:port`` to listen at; None for a folder.
        tls_path: folder of the keys; None for none.
        ranks: numbers of the ranks that are waited for.
    """

    nfs_path: Path | None = None
    address: str | None = None
    tls_path: Path | None = None
    ranks: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One rank of one step, as worker processes can open it by themselves.

    Attributes:
        path: of the dump.
        step: number of the step.
        rank: of the rank.
    """

    path: str
    step: int
    rank: RankKey

    @property
    def number(self) -> int:
        """Number of the rank; 0 where there is one only."""
        return self.rank if isinstance(self.rank, int) else 0

    @property
    def fingerprint(self) -> str:
        """A checksum of its records; of another run of the same model it is another."""
        view = self.view()
        crc = 0
        with view.records_path.open("rb") as file:
            while block := file.read(_BLOCK):
                crc = zlib.crc32(block, crc)
        return f"{crc:08x}"

    @property
    def label(self) -> str:
        """Step and rank, as parts of names of files: ``step0_rank3``."""
        rank = f"rank{self.rank}" if isinstance(self.rank, int) else self.rank
        return f"step{self.step}_{rank}"

    def view(self) -> RankView:
        """Open it."""
        return open_dump(self.path).step(self.step).rank(self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """Everything that a worker process needs.

    Attributes:
        recording: whose calls are checked.
        standards: folder of the user's standards.
        generation: whose rules choose the standard.
        error_data: folder for tensors of calls that do not pass; None for none.
        seed: of generated tensors.
        jit_compile: whether an NPU may compile operators.
        dtype: type to run calls in; None for the recorded ones.
        reference: type of the reference.
        imports: modules or files that define operators and references, imported first.
    """

    recording: Recording
    standards: Path | None = None
    generation: Generation = Generation.NEW
    error_data: Path | None = None
    seed: int = 1234
    jit_compile: bool = False
    dtype: str | None = None
    reference: str = "float64"
    imports: tuple[str, ...] = ()

    def opened(self) -> tuple[RankView, Runner]:
        """Import the definitions; return the recording and what runs its calls.

        Raises:
            ConfigFileError: a file cannot be run.
            UnsupportedError: a module, or the framework, cannot be imported.
        """
        for name in self.imports:
            import_definitions(name)
        view = self.recording.view()
        return view, runner_for(view.head.framework)


@dataclass(slots=True)
class CheckTally:
    """Counts of a check while it runs.

    Attributes:
        counts: calls by status.
        worst: the calls that do not pass.
        reasons: calls that could not be judged, by reason.
        disagreements: results of which the documented standard says otherwise.
    """

    counts: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    worst: list[CheckedCall] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    disagreements: int = 0

    @property
    def passes(self) -> bool:
        """Whether every judged call passes, and at least one was judged."""
        failed = self.counts[Status.ERROR] + self.counts[Status.WARNING]
        return failed == 0 and self.counts[Status.PASS] > 0

    def add(self, call: CheckedCall) -> None:
        """Count a call."""
        status = call.status
        self.counts[status] += 1
        if status is Status.SKIP:
            reason = call.result.message.partition(":")[0]
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
        elif status is not Status.PASS:
            self.worst.append(call)
        self.disagreements += sum(
            row.documented is not None and row.documented.status is not row.detail.status
            for row in call.rows
        )

    def add_done(self, row: ResultRow) -> None:
        """Count a call that an earlier check finished."""
        self.add(CheckedCall(result=row))


def find_recording(path: str, *, step: int | None = None, rank: int | None = None) -> Recording:
    """Return the one rank of one step that a path and two numbers name.

    Raises:
        DumpFormatError: there is no dump.
        UsageError: there are several ranks or steps, and no number says which.
    """
    dump = open_dump(path)
    found = [
        (number, key)
        for number, one in dump.steps.items()
        for key in one.ranks
        if step in (None, number) and rank in (None, key)
    ]
    if len(found) != 1:
        known = "; ".join(place_text(number, key) for number, key in list(found)[:8])
        which = f"has several: {known}" if found else "has no such step and rank"
        raise UsageError(f"{path}: {which}; name one with --step and --rank, or its dump.json")
    return Recording(path=str(Path(path).resolve()), step=found[0][0], rank=found[0][1])


def read_settings(path: Path) -> CheckSettings:
    """Return the section of a `config.json`.

    Raises:
        ConfigError: a key or value that cannot be used.
    """
    tree, _ = read_config_file(path)
    section = next((name for name in SECTIONS if name in tree), None)
    raw = tree.get(section, {}) if section else {}
    if not isinstance(raw, dict):
        raise ConfigError(str(section), raw, "an object {…}", source=path)
    for key in raw:
        if key not in _KEYS:
            raise ConfigError(f"{section}.{key}", key, _KEYS, source=path, hint=nearest(key, _KEYS))
    return CheckSettings(
        white_list=_names(raw, "white_list", section, path),
        black_list=_names(raw, "black_list", section, path),
        error_data_path=_folder(raw.get("error_data_path") or ".", section, path),
        precision=_decimals(raw.get("precision"), section, path),
        online=_online(raw, section, path) if raw.get("is_online") else None,
    )


def wanted_calls(
    view: RankView,
    settings: CheckSettings,
    *,
    filter_repeated: bool = False,
    tensor_methods: frozenset[str] | None = None,
) -> list[str]:
    """Return the records of the calls to check, in order of execution.

    Args:
        view: the recording.
        settings: the user's lists.
        filter_repeated: whether to leave out calls that differ from an earlier one of the same
            operator in nothing but the values of their tensors.
        tensor_methods: methods of MindSpore's tensors that are checked; None for all.

    Raises:
        UsageError: the white list names nothing that was recorded, or no call is left.
    """
    names = [name for name in call_names(view) if not view.records.parsed(name).is_module]
    apis = {name: bare_api(call_name(name)) for name in names}
    unknown = [api for api in settings.white_list if api not in apis.values()]
    if unknown:
        hint = nearest(unknown[0], apis.values())
        raise UsageError(f"white_list: no call of {unknown[0]!r} was recorded {hint}".rstrip())
    white, black = set(settings.white_list), set(settings.black_list)
    names = [n for n in names if apis[n] not in black and (not white or apis[n] in white)]
    if tensor_methods is not None and view.head.framework == "mindspore":
        names = [n for n in names if not n.startswith("Tensor.") or apis[n] in tensor_methods]
    if filter_repeated:
        names = list(_without_repeated(view, names))
    if not names:
        raise UsageError(
            f"{view.directory}: has no call of an API to check (recorded at L1 or mix)"
        )
    return names


def recorded_shape(view: RankView, row: DetailRow) -> str:
    """Return the shape that a recording has of a result in a file of details; empty for none."""
    record, _, place = row.name.rpartition(".output")
    part, *path = f"output{place}".split(".")
    found: Any = view.records[record].data if record in view.records else None
    for key in (part, *path):
        if isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    return str(tuple(found.get("shape") or ())) if isinstance(found, Mapping) else ""


def run_check(
    plan: CheckPlan,
    names: Sequence[str],
    files: CheckFiles,
    *,
    devices: Sequence[str] = ("",),
    workers: int = 1,
    limits: Limits | None = None,
    scheduler: str | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
    reports: dict[str, CallReport] | None = None,
) -> CheckTally:
    """Check calls and append their rows to the files; those that the files have are left out.

    Args:
        plan: what to check.
        names: records of the calls.
        files: where results go.
        devices: words for the devices, dealt out in turn.
        workers: number of processes; 0 to work in this one.
        limits: of each call.
        scheduler: address of a dask cluster that does the work; None for this machine.
        progress: called with the numbers of calls done and of all that were left.
        reports: gets the judgements of each call by its record, if they are to be kept.

    Raises:
        ReportWriteError: a file cannot be written.
        UnsupportedError: no process can run calls of this framework.
    """
    tally = CheckTally()
    for row in files.done.values():
        tally.add_done(row)
    left = [name for name in names if call_name(name) not in files.done]
    tasks = [(name, devices[number % len(devices)]) for number, name in enumerate(left)]
    start = partial(start_checks, plan, max(workers, 1))
    answers = run_tasks(tasks, start, count=workers, limits=limits, scheduler=scheduler)
    for done, ((name, _), found) in enumerate(answers, 1):
        call = _crashed(name, found) if isinstance(found, Crash) else found
        files.add(call.result, [row.detail for row in call.rows])
        tally.add(call)
        if reports is not None and call.report is not None:
            reports[name] = call.report
        progress(done, len(tasks))
    files.put_in_order([call_name(name) for name in names])
    return tally


def start_checks(plan: CheckPlan, processes: int) -> Callable[[Task], CheckedCall]:
    """Return the function that checks calls of a recording; for a worker process.

    Args:
        plan: what to check.
        processes: how many share the cores of this machine.
    """
    view, runner = plan.opened()
    runner.share_cores(processes)
    tensors = TensorSource(view, seed=plan.seed)
    options = CheckOptions(
        device="",
        standards=Standards.load(plan.standards),
        generation=plan.generation,
        error_data=plan.error_data,
        dtype=plan.dtype,
        reference=plan.reference,
    )
    devices: dict[str, str] = {}

    def check(task: Task) -> CheckedCall:
        name, word = task
        if word not in devices:
            devices[word] = runner.device(word, jit_compile=plan.jit_compile)
        own = replace(options, device=devices[word])
        try:
            call = recorded_call(view, name)
        except DumpFormatError as exc:
            return _crashed(name, Crash(Reason.DAMAGED, str(exc)))
        return check_call(call, runner, tensors, own)

    return check


def _crashed(name: str, crash: Crash) -> CheckedCall:
    message = ": ".join(filter(None, (str(crash.reason), crash.detail)))
    row = ResultRow(name=call_name(name), forward=Status.SKIP, backward=None, message=message)
    report = CallReport(name=name, reason=crash.reason, detail=crash.detail)
    return CheckedCall(result=row, report=report)


def _without_repeated(view: RankView, names: Iterable[str]) -> Iterator[str]:
    seen = set()
    for name in names:
        try:
            call = recorded_call(view, name)
        except DumpFormatError:
            yield name  # the check says what is wrong with it
            continue
        key = (call.function, json.dumps([_form(call.args), _form(call.kwargs)], sort_keys=True))
        if key not in seen:
            seen.add(key)
            yield name


def _form(tree: Any) -> Any:
    """Return a part of a record without the values of its tensors."""
    if isinstance(tree, Mapping):
        keys = _FORM if "shape" in tree else tree
        return {key: _form(tree.get(key)) for key in keys}
    if isinstance(tree, Sequence) and not isinstance(tree, str):
        return [_form(item) for item in tree]
    return tree


def _names(raw: Mapping[str, Any], key: str, section: str | None, path: Path) -> tuple[str, ...]:
    found = raw.get(key) or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"{section}.{key}", found, 'bare names, as ["conv1d"]', source=path)
    return tuple(found)


def _folder(found: Any, section: str | None, path: Path) -> Path:
    if not isinstance(found, str) or not Path(found).is_dir():
        raise ConfigError(f"{section}.error_data_path", found, "a folder that exists", source=path)
    return Path(found)


def _decimals(found: Any, section: str | None, path: Path) -> int | None:
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= _MOST_DECIMALS:
        rule = f"a number from 0 to {_MOST_DECIMALS}"
        raise ConfigError(f"{section}.precision", found, rule, source=path)
    return found


def _online(raw: Mapping[str, Any], section: str | None, path: Path) -> OnlineSource:
    texts = {key: raw.get(key) or "" for key in ("nfs_path", "host", "tls_path")}
    for key, found in texts.items():
        if not isinstance(found, str):
            raise ConfigError(f"{section}.{key}", found, "a text", source=path)
    ranks, port = raw.get("rank_list", [0]), raw.get("port")
    if not isinstance(ranks, list) or not ranks or not all(type(one) is int for one in ranks):
        raise ConfigError(f"{section}.rank_list", ranks, "numbers of ranks, as [0, 1]", source=path)
    found = OnlineSource(
        tls_path=Path(texts["tls_path"]) if texts["tls_path"] else None, ranks=tuple(ranks)
    )
    if texts["nfs_path"]:
        return replace(found, nfs_path=Path(texts["nfs_path"]))
    if not texts["host"] or type(port) is not int or not 0 < port <= _LAST_PORT:
        rule = 'with "is_online" either "nfs_path", or "host" and "port" (1 to 65535)'
        raise ConfigError(f"{section}.port", port, rule, source=path)
    return replace(found, address=f"{texts['host']}:{port}")
