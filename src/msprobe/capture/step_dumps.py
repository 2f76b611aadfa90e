# SPDX-License-Identifier: Apache-2.0
"""`StepDumps`: the folders of a run, and the dump of each step: opened, kept in memory, written."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from msprobe.capture.account import Account, Written
from msprobe.capture.flight import FlightRecorder, KeptStep
from msprobe.capture.online import OnlineRun
from msprobe.capture.task_checks import Attempt, TaskChecks, noise_seed
from msprobe.config import Config, Level, StatisticsSection, TensorSection
from msprobe.dump.facts import Ended
from msprobe.dump.layout import rank_directory
from msprobe.dump.locking import RankClaim, claim_rank_directory
from msprobe.dump.run_times import RUN_KEY, RunTimes, process_began
from msprobe.dump.writer import DumpHead, DumpWriter, RankDump, WriteAccount
from msprobe.errors import UsageError

logger = logging.getLogger(__name__)


class StepDumps:
    """Opens and closes the dumps of a run.

    Attributes:
        flight: keeps the last steps in memory; None where every step is written.
        folder: gets the folders of steps; another one may be set before the first step.
    """

    def __init__(
        self,
        config: Config,
        framework: str,
        checks: TaskChecks,
        *,
        attempt: Attempt,
        settle: Callable[[], None],
    ) -> None:
        """Create it; no file is touched.

        Args:
            config: the settings.
            framework: its name.
            checks: are told of steps.
            attempt: runs parts of the user's `step`, and notes their exceptions.
            settle: brings the account's time up to date.
        """
        self.flight: FlightRecorder | None = None
        self.folder = config.dump_path
        section = config.section
        if isinstance(section, StatisticsSection) and section.keep_last:
            self.flight = FlightRecorder(section.keep_last)
        self._config = config
        self._framework = framework
        self._checks = checks
        self._attempt = attempt
        self._settle = settle
        self._writer: DumpWriter | None = None
        self._online: OnlineRun | None = None
        self._claims: dict[int | None, RankClaim] = {}
        self._began = process_began()

    def begin_writing(self) -> bool:
        """Start the writer; return whether there was none before."""
        is_new = self._writer is None
        if is_new:
            self._writer = DumpWriter()
        return is_new

    def claim(self, rank: int | None) -> RankClaim:
        """Return the folder of a rank, which no other process then writes into."""
        claim = self._claims.get(rank)
        if claim is None:
            claim = claim_rank_directory(self.folder, rank)
            self._claims[rank] = claim
            logger.info("recording to %s, rank folder %s", claim.dump_path, claim.name)
        return claim

    def open(self, step: int, rank: int | None) -> RankDump:
        """Open the dump of a step."""
        if self._writer is None:
            raise UsageError("begin_writing() comes first")
        claim = self.claim(rank)
        directory = rank_directory(claim.dump_path, step, claim.name)
        config = self._config
        head = DumpHead(
            config.task,
            config.level,
            self._framework,
            began=self._began,
            noise_seed=noise_seed(config),
        )
        calls = config.extra_info and config.level is not Level.DEBUG
        is_held = self.flight is not None
        dump = self._writer.open(directory, head, extra_info=calls, held=is_held)
        self._send_online(claim)
        results = claim.dump_path / f"{config.task}_{claim.name}"
        self._checks.begin_step(step, rank, results, directory)
        return dump

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task on the writer's thread, if there is one."""
        if self._writer is not None:
            self._writer.submit(task)

    def _send_online(self, claim: RankClaim) -> None:
        section = self._config.section
        if self._online is None and isinstance(section, TensorSection) and section.online:
            self._online = OnlineRun(section.online, claim)

    def close_step(
        self, dump: RankDump, account: Account, ended: Ended, is_bad: Callable[[], bool]
    ) -> None:
        """Write a step that is over, or keep it in memory.

        Args:
            dump: its records.
            account: its counts.
            ended: how it ended.
            is_bad: returns whether a record of it shows NaN or +Inf; asked when all are written,
                for a device delivers its numbers late.
        """
        fields: dict[str, Any] = {RUN_KEY: RunTimes(self._began, time.time()).as_json()}
        kept = KeptStep(dump, account, fields)
        if self.flight is not None:
            self.flight.keep(kept)
            self._write_if_needed(self.flight, ended, is_bad())
            return
        written = dump.close()
        if self._online is not None:
            self._attempt("online", partial(self._online.step_ended, account.step))
        fields |= self._checks.end_step()
        self._write_account(kept, written)

    def _write_if_needed(self, flight: FlightRecorder, ended: Ended, is_bad: bool) -> None:
        reason = self._attempt("flight recorder", flight.why_now, ended, is_bad)
        if reason is not None:
            self._attempt("flight recorder", self._write_kept, flight, reason)

    def _write_kept(self, flight: FlightRecorder, reason: str) -> None:
        """Write the steps that are kept in memory, the last one first, and say why."""
        if not flight.kept:
            return
        logger.warning("the last %d steps are written: %s", len(flight.kept), reason)
        last = flight.kept[-1]
        while flight.kept:
            step = flight.kept.pop()
            step.account.note(f"written because of {reason}")
            step.fields["written_because"] = reason
            self._write_account(step, step.dump.release())
        if flight.on_written is not None:
            flight.on_written(last.account.step, last.dump.directory, reason)

    def _write_account(self, step: KeptStep, written: WriteAccount) -> None:
        # Device statistics count when their copy is asked for, overflow checks when kept.
        facts = Written(
            size_bytes=written.bytes_written,
            tensors=written.tensors + written.linked,
            complete=written.complete,
        )
        self._settle()
        fields = step.account.as_json(facts) | step.fields
        fields["write_errors"] = written.errors
        fields["linked_tensors"] = written.linked
        step.dump.write_account(fields)
        logger.info(step.account.line(facts))

    def flush(self, reason: str, *, is_recording: bool) -> None:
        """Write the steps that are kept in memory: now, or with the step that is being recorded."""
        if self.flight is None:
            return
        if is_recording:
            self.flight.ask(reason)
        else:
            self._attempt("flight recorder", self._write_kept, self.flight, reason)

    def end_flight(self, ended: Ended) -> None:
        """Write the last steps if an exception ends the program; else they are forgotten."""
        if self.flight is not None:
            self._write_if_needed(self.flight, ended, False)
            self.flight.close()

    def close(self, *, is_forked: bool) -> None:
        """Bring everything to the disk, and let go of the folders."""
        if self._writer is not None:
            self._writer.close()
        if self._online is not None and not is_forked:
            self._attempt("close", self._online.close)

    def release(self) -> None:
        """Let other processes write into the folders."""
        for claim in self._claims.values():
            claim.release()
        self._claims.clear()

    def forget(self) -> None:
        """Keep no step any more: this is a forked child."""
        if self.flight is not None:
            self.flight.kept.clear()
