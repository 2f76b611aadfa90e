# SPDX-License-Identifier: Apache-2.0
"""`msprobe acc-check` and `multi-acc-check`: every recorded API on a device against float64."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import (
    add_imports,
    add_json,
    add_output,
    add_scheduler,
    add_scripts,
    add_workers,
    decimal,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from msprobe.checks.accuracy_call import CheckedCall
    from msprobe.checks.accuracy_check import (
        CheckPlan,
        CheckSettings,
        CheckTally,
        OnlineSource,
        Recording,
    )
    from msprobe.checks.accuracy_csv import CheckFiles, Style
    from msprobe.checks.verify_call import CallReport
    from msprobe.checks.verify_dump import VerifiedDump

EXIT_FOUND: Final = 1
EXIT_UNABLE: Final = 2
_MOST_LISTED: Final = 20
_MOST_WORKERS: Final = 64
# The largest number of the documents.
_LAST_DEVICE: Final = 4095
_THIS_MACHINE: Final = ("127.0.0.1:", "localhost:", "[::1]:")
# A training may take that long between two steps.
_PATIENCE_S: Final = 3600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    add_check_options(parser, most_workers=1)


def add_check_options(parser: argparse.ArgumentParser, *, most_workers: int) -> None:
    """Describe the command and add its options.

    Args:
        parser: of the command.
        most_workers: processes that are used if the user does not say how many.
    """
    parser.description = (
        "Run every recorded API again on a device, forward and backward, against float64 on the "
        "CPU, and judge the results. Writes accuracy_checking_result_{time}.csv and "
        "…_details_{time}.csv."
    )
    parser.epilog = (
        f"examples:\n  {parser.prog} dump/step0/rank -d cpu -o result\n\n"
        "exit codes: 0 all pass, 1 calls that do not pass, 2 could not run, 130 Ctrl-C"
    )
    add_input(parser)
    _add_selection(parser)
    _add_run(parser, most_workers=most_workers)


def add_input(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a recording; read by `named_recording`."""
    parser.add_argument("dump", metavar="DUMP", nargs="?", help="a dump.json, or its folder")
    parser.add_argument("-api_info", "--api-info-file", metavar="FILE", help="the same")
    parser.add_argument(
        "--step", type=whole_number, metavar="N", help="this step, if there are several"
    )
    parser.add_argument(
        "--rank", type=whole_number, metavar="N", help="this rank, if there are several"
    )


def named_recording(options: argparse.Namespace) -> Recording:
    """Return the recording that the options of `add_input` name.

    Raises:
        UsageError: none is named, or more than one.
    """
    from msprobe.checks.accuracy_check import find_recording
    from msprobe.errors import UsageError

    path = options.api_info_file or options.dump
    if path is None or (options.api_info_file and options.dump):
        raise UsageError("name one recording, as DUMP or as -api_info dump.json")
    return find_recording(path, step=options.step, rank=options.rank)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-config",
        "--config",
        "--config-path",
        dest="config_path",
        metavar="FILE",
        type=Path,
        help="config.json with a section acc_check or run_ut: white_list, black_list …",
    )
    parser.add_argument(
        "-f",
        "--filter-api",
        action="store_true",
        help="leave out calls that differ from another in values only",
    )
    parser.add_argument(
        "--standards",
        metavar="DIR",
        type=Path,
        help="folder with your api_precision_standard.yaml, torch_ut_setting.json …",
    )


def _add_run(parser: argparse.ArgumentParser, *, most_workers: int) -> None:
    add_output(parser, "folder of results (./)", default=Path(), aliases=("--out-path",))
    parser.add_argument(
        "-d",
        "--device",
        metavar="DEVICE",
        nargs="+",
        default=[],
        help="cpu, cuda:1, or numbers of devices; the accelerator if there is one, else the CPU",
    )
    add_workers(
        parser,
        "processes (%(default)s); 0: this one, where a crash ends the check",
        kind=_workers,
        default=min(most_workers, os.cpu_count() or 1),
        aliases=("--num-splits",),
    )
    add_scheduler(parser)
    add_imports(parser)
    add_scripts(parser, "scripts that show the worst N calls, in the folder scripts")
    parser.add_argument(
        "-csv_path",
        "--result-csv-path",
        metavar="FILE",
        type=Path,
        help="go on with the result file of an interrupted check",
    )
    parser.add_argument(
        "-save_error_data",
        "--save-error-data",
        action="store_true",
        help="save the tensors of calls that do not pass",
    )
    parser.add_argument(
        "-j", "--jit-compile", action="store_true", help="let an NPU compile operators"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="run every call in this type, as if its model had been trained in it",
    )
    parser.add_argument(
        "--reference",
        choices=("float64", "float32"),
        default="float64",
        help="type of the reference (%(default)s; float32: half the time and memory)",
    )
    parser.add_argument(
        "--seed", type=whole_number, default=1234, help="of generated inputs (1234)"
    )
    parser.add_argument(
        "--timeout", type=decimal, default=300.0, metavar="S", help="seconds for each call (300)"
    )
    parser.add_argument("--english", action="store_true", help="write English column titles")
    parser.add_argument(
        "--html",
        action="store_true",
        help="also write a page to click through, accuracy_checking_report_{time}.html",
    )
    add_json(parser, "print the judgements as JSON, as verify does, instead of text")
    parser.add_argument(
        "--follow",
        type=decimal,
        metavar="S",
        help="check a recording while it is made; end when no call came for S seconds",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="check calls that a training sends (online_run_ut); end when all ranks have ended",
    )
    parser.add_argument(
        "--keys", metavar="DIR", type=Path, help="keys for --listen, made by online-keys"
    )
    parser.add_argument(
        "--rank-list",
        metavar="N",
        nargs="+",
        type=whole_number,
        help="with --listen: the ranks that are waited for (0)",
    )


def run(options: argparse.Namespace) -> int:
    """Check the calls of a recording and print those that do not pass."""
    from msprobe.checks.accuracy_check import CheckSettings, read_settings, wanted_calls
    from msprobe.checks.standards.standard import Standards
    from msprobe.checks.verify_json import verify_json
    from msprobe.cli.terminal import print_json
    from msprobe.errors import UsageError

    if len(options.device) > 1 and options.dump is None and Path(options.device[-1]).exists():
        options.dump = options.device.pop()  # in "-d cpu DUMP" argparse takes both for devices
    settings = read_settings(options.config_path) if options.config_path else CheckSettings()
    standards = Standards.load(options.standards)
    source = _online_source(options, settings)
    if source is not None or options.follow is not None:
        if options.json:
            raise UsageError("--json prints one recording: leave it out with --follow and online")
        with _without_warnings_of_journals():
            if source is None or source.nfs_path is not None:
                return _follow(options, settings, None if source is None else source.nfs_path)
            return _listen(options, settings, source)
    recording = named_recording(options)
    view = recording.view()
    names = wanted_calls(
        view,
        settings,
        filter_repeated=options.filter_api,
        tensor_methods=standards.tensor_methods,
    )
    devices = checked_devices(options.device)
    resolve_devices(options.device, view.head.framework)
    files = _files(options, settings, recording)
    plan = _plan(options, settings, recording, files)
    reports: dict[str, CallReport] = {}
    try:
        tally = _run(options, plan, names, files, devices, reports)
    except KeyboardInterrupt:
        print(
            f"interrupted after {len(files.done)} of {len(names)} calls; "
            f"go on with: -csv_path {files.result}",
            file=sys.stderr,
        )
        raise
    found = _verified(plan, names, reports)
    if not options.json:
        return _print(options, tally, files, plan, found)
    print_json(verify_json(found))
    if options.html:
        _write_page(found, files)
    return _exit_code(tally)


@contextmanager
def _without_warnings_of_journals() -> Iterator[None]:
    """Hide that a recording was not closed: each look at a journal would say so."""
    log = logging.getLogger("msprobe.dump.rank_view")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _online_source(options: argparse.Namespace, settings: CheckSettings) -> OnlineSource | None:
    """Return where calls come from while a training runs; None for a recording."""
    from msprobe.checks.accuracy_check import OnlineSource

    if options.listen is None:
        return settings.online
    ranks = tuple(options.rank_list or (0,))
    return OnlineSource(address=options.listen, tls_path=options.keys, ranks=ranks)


def _listen(options: argparse.Namespace, settings: CheckSettings, source: OnlineSource) -> int:
    """Receive the calls of a training, and check them as they come."""
    from msprobe.errors import UsageError
    from msprobe.online.keys import read_keys
    from msprobe.online.receiver import Receiver

    if source.tls_path is None and not str(source.address).startswith(_THIS_MACHINE):
        hint = "make keys with: msprobe online-keys DIR"
        raise UsageError(f"{source.address}: other machines are heard with --keys only; {hint}")
    keys = None if source.tls_path is None else read_keys(source.tls_path, "server")
    folder = options.output / f"online_{time.strftime('%Y%m%d%H%M%S')}"
    receiver = Receiver(f"tcp://{source.address}", keys, folder)
    print(f"listening at {receiver.address}", flush=True)

    def awaited() -> set[int]:
        return set(source.ranks) - _numbers(receiver.ended)

    try:
        code = _follow(options, settings, folder, lambda: not awaited())
    finally:
        receiver.close()
    for rank in sorted(awaited()):
        said = "did not begin; see that its training has this address, and keys that fit"
        if rank in _numbers(receiver.begun):
            said = "did not end: its training was killed, or stopped sending, as its log says"
        print(f"rank {rank} {said}", file=sys.stderr)
    return code or (EXIT_UNABLE if awaited() else 0)


def _numbers(folders: Iterable[str]) -> set[int]:
    """Return the numbers of ranks by their folders."""
    return {int(name.removeprefix("rank") or 0) for name in folders}


def _follow(
    options: argparse.Namespace,
    settings: CheckSettings,
    received: Path | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Check the calls of a recording while it is made; each rank and step has its own files.

    Tensors of `received` are removed once their step was checked.
    """
    from msprobe.checks.accuracy_follow import Follower
    from msprobe.errors import UsageError

    path = received or options.api_info_file or options.dump
    if path is None:
        raise UsageError("name the folder that is recorded into: msprobe acc-check DUMP --follow S")
    devices = checked_devices(options.device)
    open_files: dict[Recording, tuple[CheckFiles, dict[str, CallReport]]] = {}
    codes: dict[Recording, int] = {}
    patience_s = _PATIENCE_S if options.follow is None else options.follow
    follower = Follower(Path(path), settings, patience_s, rank=options.rank, is_over=is_over)
    for arrived in follower.arrivals():
        recording = arrived.recording
        view = recording.view()
        if recording not in open_files:
            open_files[recording] = _files(options, settings, recording, is_online=True), {}
        files, reports = open_files[recording]
        plan = _plan(options, settings, recording, files)
        tally = _run(options, plan, arrived.names, files, devices, reports)
        if arrived.has_ended:
            print(f"{recording.label}: ", end="")
            found = _verified(plan, list(reports), reports)
            codes[recording] = _print(options, tally, files, plan, found)
            if received is not None:
                shutil.rmtree(view.tensor_directory, ignore_errors=True)
    unfinished = open_files.keys() - codes.keys()
    for recording in unfinished:
        print(f"{recording.label} did not end")
    if EXIT_FOUND in codes.values():
        return EXIT_FOUND
    return EXIT_UNABLE if unfinished or not codes else 0


def _plan(
    options: argparse.Namespace, settings: CheckSettings, recording: Recording, files: CheckFiles
) -> CheckPlan:
    from msprobe.checks.accuracy_check import CheckPlan
    from msprobe.checks.standards.standard import Generation
    from msprobe.replay.references import whole_path

    name = files.result.stem.removeprefix("accuracy_checking_result_")
    folder = settings.error_data_path.resolve()
    saved = folder / f"ut_error_data{name}" if options.save_error_data else None
    return CheckPlan(
        recording=recording,
        standards=options.standards,
        # The documents go with the spelling that names a framework.
        generation=Generation.DOCUMENTED if options.framework else Generation.NEW,
        error_data=saved,
        seed=options.seed,
        jit_compile=options.jit_compile,
        dtype=options.dtype,
        reference=options.reference,
        imports=tuple(map(whole_path, options.imports)),
    )


def _run(
    options: argparse.Namespace,
    plan: CheckPlan,
    names: Sequence[str],
    files: CheckFiles,
    devices: list[str],
    reports: dict[str, CallReport],
) -> CheckTally:
    from msprobe.checks.accuracy_check import run_check
    from msprobe.replay.workers import Limits
    from msprobe.report.call_progress import call_progress

    with call_progress() as progress:
        return run_check(
            plan,
            names,
            files,
            devices=devices,
            workers=options.workers,
            limits=Limits(seconds=options.timeout),
            scheduler=options.scheduler,
            progress=progress,
            reports=reports if options.html or options.json else None,
        )


def _verified(
    plan: CheckPlan, names: Sequence[str], reports: Mapping[str, CallReport]
) -> VerifiedDump:
    """Return the judgements of calls as `verify` writes and shows them."""
    from msprobe.checks.verify_dump import VerifiedCall, VerifiedDump
    from msprobe.dump.stack_frames import user_line
    from msprobe.plain_text import count_text

    recording = plan.recording
    view = recording.view()
    calls = [
        VerifiedCall(
            step=recording.step,
            rank=recording.rank,
            position=position,
            report=reports[name],
            source=user_line(tuple(view.frames(name))),
        )
        for position, name in enumerate(names)
        if name in reports
    ]
    earlier = len(names) - len(calls)
    note = f"{count_text(earlier, 'call')} of an earlier check: see the files of results"
    return VerifiedDump(path=view.directory, calls=calls, notes=(note,) if earlier else ())


def _write_page(found: VerifiedDump, files: CheckFiles) -> Path:
    from msprobe.checks.verify_page import write_verify_page

    name = files.result.stem.replace("_result", "_report", 1)
    return write_verify_page(found, files.result.with_name(f"{name}.html"))


def _exit_code(tally: CheckTally) -> int:
    if tally.passes:
        return 0
    return EXIT_FOUND if tally.worst else EXIT_UNABLE


def _files(
    options: argparse.Namespace,
    settings: CheckSettings,
    recording: Recording,
    *,
    is_online: bool = False,
) -> CheckFiles:
    from msprobe.checks.accuracy_check import recorded_shape
    from msprobe.checks.accuracy_csv import new_files, resumed_files
    from msprobe.dump.record_names import call_name
    from msprobe.replay.recorded_calls import call_names

    view = recording.view()
    style = _style(options, settings, view.head.framework)
    if options.result_csv_path:
        calls = set(map(call_name, call_names(view)))
        shape_of = partial(recorded_shape, view)
        source = recording.fingerprint
        return resumed_files(
            options.result_csv_path, style, calls=calls, shape_of=shape_of, source=source
        )
    if is_online:  # names of the documents, in a folder for each step
        folder = options.output / f"step{recording.step}"
        return new_files(folder, style, suffix=f"_rank{recording.number}")
    return new_files(options.output, style, source=recording.fingerprint)


def _style(options: argparse.Namespace, settings: CheckSettings, framework: str) -> Style:
    from msprobe.checks.accuracy_csv import DEFAULT_PRECISION, MINDSPORE_COLUMNS, Style

    precision = DEFAULT_PRECISION if settings.precision is None else settings.precision
    style = Style(english=options.english, precision=precision)
    if framework == "mindspore":
        return style._replace(type_prefix="mindspore.", columns=MINDSPORE_COLUMNS)
    return style


def _print(
    options: argparse.Namespace,
    tally: CheckTally,
    files: CheckFiles,
    plan: CheckPlan,
    found: VerifiedDump,
) -> int:
    from msprobe.checks.standards.first_verdict import Status
    from msprobe.dump.record_names import forward_record
    from msprobe.dump.stack_frames import user_line

    counts, view, saved = tally.counts, plan.recording.view(), plan.error_data
    print(
        f"{sum(counts.values())} calls: {counts[Status.PASS]} pass, {counts[Status.WARNING]} "
        f"warnings, {counts[Status.ERROR]} errors, {counts[Status.SKIP]} not judged"
    )
    order = (Status.ERROR, Status.WARNING)
    worst = sorted(tally.worst, key=lambda call: order.index(call.status))
    for call in worst[:_MOST_LISTED]:
        source = user_line(tuple(view.frames(forward_record(call.result.name))))
        place = f" [{source}]" if source else ""
        print(f"  {call.status:7} {call.result.name}: {call.result.message}{place}")
    if len(worst) > _MOST_LISTED:
        print(f"  and {len(worst) - _MOST_LISTED} more")
    for reason, count in sorted(tally.reasons.items(), key=lambda item: -item[1]):
        print(f"  not judged: {count} ({reason or 'no reason given'})")
    if tally.disagreements:
        print(
            f"the documented standard says otherwise of {tally.disagreements} results; "
            "their messages say why"
        )
    if options.scripts:
        _write_scripts(options, worst, plan)
    if saved is not None and saved.is_dir():
        print(f"tensors: {saved}")
    print(f"results: {files.result}\ndetails: {files.details}")
    if options.html:
        print(f"page: {_write_page(found, files)}")
    return _exit_code(tally)


def _write_scripts(
    options: argparse.Namespace, worst: Sequence[CheckedCall], plan: CheckPlan
) -> None:
    """Write scripts of the worst calls; print how each is run on the device that was checked."""
    from msprobe.checks.op_scripts import FaultyCall, write_worst_scripts
    from msprobe.checks.standards.first_verdict import Status
    from msprobe.dump.record_names import forward_record

    faulty = [call.result for call in worst if call.status is Status.ERROR]
    if not faulty:
        return
    view, runner = plan.opened()
    device = runner.device(checked_devices(options.device)[0])
    step = plan.recording.step
    calls = (
        FaultyCall(view, forward_record(one.name), one.forward is not Status.ERROR, step)
        for one in faulty
    )
    folder = options.output / "scripts"
    for path in write_worst_scripts(calls, folder, options.scripts, device=device):
        print(f"script: python {path} {device}")


def checked_devices(words: list[str]) -> list[str]:
    """Return the words for devices; one empty word for none, which means the best there is.

    Raises:
        UsageError: one is named twice, or has a number that no device has.
    """
    from msprobe.errors import UsageError

    if len(set(words)) < len(words):
        raise UsageError(f"-d {' '.join(words)}: name each device once")
    for word in words:
        if word.isdigit() and int(word) > _LAST_DEVICE:
            raise UsageError(f"-d {word}: devices have numbers from 0 to {_LAST_DEVICE}")
    return words or [""]


def resolve_devices(words: Sequence[str], framework: str) -> None:
    """Say where numbers of devices mean the CPU, for there is no accelerator.

    Raises:
        UsageError: there is no such device: here it is refused in one line.
    """
    from msprobe.replay.runner import runner_for

    runner = runner_for(framework)
    found = {word: runner.device(word) for word in words}
    numbers = [word for word, device in found.items() if word.isdigit() and device == "cpu"]
    if numbers:
        said = f"-d {' '.join(numbers)}: no accelerator was found, so calls run on the CPU"
        print(said, file=sys.stderr)


def _workers(text: str) -> int:
    number = whole_number(text)
    if number > _MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to {_MOST_WORKERS}")
    return number
