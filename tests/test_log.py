# SPDX-License-Identifier: Apache-2.0
"""The logger `msprobe`: level from the environment, one handler, warnings once."""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys

import pytest

from msprobe.log import SILENT, ensure_handler, reset_warn_once, warn_once


@pytest.fixture
def logger(monkeypatch):
    """Return the logger `msprobe` without a level, and undo everything afterwards."""
    logger = logging.getLogger("msprobe")
    before = (logger.level, list(logger.handlers), logger.propagate)
    monkeypatch.delenv("MSPROBE_LOG_LEVEL", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    logger.setLevel(logging.NOTSET)
    reset_warn_once()
    yield logger
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]
    logger.propagate = before[2]
    reset_warn_once()


def detach(logger: logging.Logger) -> None:
    """Leave the logger alone in the world; pytest's handlers come back before each test."""
    logger.handlers.clear()
    logger.propagate = False


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("0", logging.DEBUG),
        ("1", logging.INFO),
        ("2", logging.WARNING),
        ("3", logging.ERROR),
        ("4", SILENT),
        ("", logging.INFO),
        (" 2 ", logging.WARNING),
    ],
)
def test_level_from_the_environment(logger, monkeypatch, value, level):
    monkeypatch.setenv("MSPROBE_LOG_LEVEL", value)
    ensure_handler()
    assert logger.level == level
    assert logging.getLogger("msprobe.some.module").isEnabledFor(logging.CRITICAL) is (value != "4")


@pytest.mark.parametrize("value", ["5", "-1", "debug", "1.0"])
def test_a_bad_level_warns_once_and_means_info(logger, monkeypatch, capsys, value):
    detach(logger)
    monkeypatch.setenv("MSPROBE_LOG_LEVEL", value)
    ensure_handler()
    ensure_handler()
    assert logger.level == logging.INFO
    error_output = capsys.readouterr().err
    assert error_output.count("MSPROBE_LOG_LEVEL") == 1
    assert f"{value!r}; use 0 (debug), 1 (info)" in error_output


def test_many_calls_leave_one_handler_that_writes_to_the_present_stderr(logger):
    detach(logger)
    ensure_handler()
    ensure_handler()
    assert len(logger.handlers) == 1
    for _ in range(2):  # the stream of the first round is gone in the second
        with contextlib.redirect_stderr(io.StringIO()) as stream:
            logging.getLogger("msprobe.dump").info("kept %d records", 3)
        assert stream.getvalue().endswith("[INFO] msprobe.dump: kept 3 records\n")


def test_no_handler_is_added_where_the_user_has_one(logger):
    detach(logger)
    mine = logging.NullHandler()
    logger.addHandler(mine)
    ensure_handler()
    assert logger.handlers == [mine]


def test_no_handler_is_added_where_the_root_logger_has_one(logger):
    detach(logger)
    logger.propagate = True
    assert logging.getLogger().handlers  # pytest's
    ensure_handler()
    assert logger.handlers == []


def test_a_level_that_the_user_has_set_stays_unless_the_variable_is_set(logger, monkeypatch):
    logger.setLevel(logging.ERROR)
    ensure_handler()
    assert logger.level == logging.ERROR
    monkeypatch.setenv("MSPROBE_LOG_LEVEL", "0")
    ensure_handler()
    assert logger.level == logging.DEBUG


@pytest.mark.parametrize(
    ("variable", "rank"), [("RANK", "3"), ("RANK", "50%"), ("RANK_ID", "1"), ("PMI_RANK", "2")]
)
def test_lines_name_the_rank(logger, monkeypatch, capsys, variable, rank):
    detach(logger)
    monkeypatch.setenv(variable, rank)
    ensure_handler()
    logger.warning("text")
    assert f"[rank {rank}] [WARNING] msprobe: text\n" in capsys.readouterr().err


def test_a_broken_stderr_does_not_reach_the_caller(logger, monkeypatch):
    detach(logger)
    ensure_handler()
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(logging, "raiseExceptions", False)
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        logger.warning("nobody hears this")


def test_a_warning_comes_once_for_each_logger_and_key_until_reset(logger, capsys):
    detach(logger)
    ensure_handler()
    first, second = logging.getLogger("msprobe.a"), logging.getLogger("msprobe.b")

    def say() -> list[str]:
        warn_once(first, "key", "value %s", 1)
        warn_once(first, "key", "value %s", 2)
        warn_once(first, ("other", 1), "other")
        warn_once(second, "key", "second")
        return [line.split("] ")[-1] for line in capsys.readouterr().err.splitlines()]

    assert say() == ["msprobe.a: value 1", "msprobe.a: other", "msprobe.b: second"]
    assert say() == []
    reset_warn_once()
    assert len(say()) == 3


def test_warning_names_the_place_that_warned(logger, caplog):
    warn_once(logger, "place", "text")
    assert caplog.records[0].filename == "test_log.py"


def test_importing_changes_no_logger():
    code = (
        "import logging, msprobe.log; logger = logging.getLogger('msprobe'); "
        "print(logger.handlers, logger.level, logging.getLogger().handlers)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] 0 []"
