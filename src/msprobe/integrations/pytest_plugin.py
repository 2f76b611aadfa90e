# SPDX-License-Identifier: Apache-2.0
"""pytest plugin: a test's training is recorded and held against the golden recording of that test.

`docs/trainers/pytest.md` shows it. Nothing of PyTorch is imported before a test uses the fixture.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest

from msprobe.files import write_whole

if TYPE_CHECKING:
    from msprobe.compare.result import CompareResult
    from msprobe.integrations.trainer_steps import Steps

PROPERTY: Final = "msprobe_verdict"
"""Name of the property of a test in JUnit XML that holds the verdict."""
_RECORDING: Final = "recording"
_TOLERANCES: Final = "tolerances.yaml"
# A learned error was seen once or a few times; the next one may be larger.
_MARGIN: Final = 3.0
_UNSAFE: Final = re.compile(r"[^\w.-]+")


class Mode(Enum):
    """Outcomes of the recordings of tests."""

    OFF = "off"
    CHECK = "check"
    LEARN = "learn"
    UPDATE = "update"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("msprobe", "golden recordings of trainings")
    for flag, mode, text in (
        ("--msprobe-golden", Mode.CHECK, "hold trainings against their golden recordings"),
        ("--msprobe-golden-update", Mode.UPDATE, "replace the golden recordings"),
        (
            "--msprobe-golden-learn",
            Mode.LEARN,
            "widen the tolerances of values that differ from the golden recordings",
        ),
    ):
        group.addoption(
            flag, action="store_const", const=mode, default=Mode.OFF, dest="msprobe_mode", help=text
        )
    parser.addini(
        "msprobe_golden_dir", "folder of golden recordings, from that of the test", default="golden"
    )


@pytest.fixture
def msprobe_golden(request: pytest.FixtureRequest) -> Golden:
    """Return a context in which a training is recorded: ``with msprobe_golden(): train()``."""
    _, _, within_file = request.node.nodeid.partition("::")
    name = _UNSAFE.sub("_", within_file)
    folder = Path(str(request.config.getini("msprobe_golden_dir")))
    place = request.path.parent / folder / request.path.stem / name
    mode = request.config.getoption("msprobe_mode")
    return Golden(place, mode, request.node.user_properties)


class Golden:
    """Records a training and compares it with the golden recording of its test.

    Attributes:
        folder: of the golden recording and its tolerances.
        mode: what becomes of the recording.
    """

    def __init__(self, folder: Path, mode: Mode, properties: list[tuple[str, object]]) -> None:
        """Create it.

        Args:
            folder: of the golden recording.
            mode: what becomes of the recording.
            properties: of the test; gets the verdict.
        """
        self.folder = folder
        self.mode = mode
        self._properties = properties

    @contextmanager
    def __call__(
        self, *, level: str = "mix", task: str = "statistics", step: Steps = None
    ) -> Iterator[None]:
        """Record the training in the body; models and steps are found by themselves.

        Without an option of the plugin nothing is recorded.

        Args:
            level: as in ``config.json``.
            task: as in ``config.json``.
            step: steps to record; None for all.
        """
        if self.mode is Mode.OFF:
            yield
            return
        from msprobe.capture.session import reset_session
        from msprobe.integrations.loops import record_training

        with TemporaryDirectory(prefix="msprobe") as temporary:
            new = Path(temporary) / _RECORDING
            try:
                with record_training(
                    dump_path=new, level=level, task=task, step=[] if step is None else step
                ):
                    yield
            finally:
                reset_session()
            self._use(new)

    def _use(self, new: Path) -> None:
        """Keep a recording, or compare it with the golden one."""
        if not new.is_dir():
            pytest.fail(
                "nothing was recorded: no module with parameters was called in the body of "
                "msprobe_golden()",
                pytrace=False,
            )
        golden = self.folder / _RECORDING
        if self.mode is Mode.UPDATE:
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.copytree(new, golden)
            return
        if not golden.is_dir():
            pytest.fail(
                f"no golden recording in {self.folder}: make it with --msprobe-golden-update",
                pytrace=False,
            )
        found = self._compare(new, golden)
        if self.mode is Mode.LEARN and found.differs:
            self._learn(found)
            found = self._compare(new, golden)
        verdict = found.summary["verdict"]
        self._properties.append((PROPERTY, verdict["sentence"]))
        if found.differs or found.has_unread:
            pytest.fail(_message(found, self.folder), pytrace=False)

    def _compare(self, new: Path, golden: Path) -> CompareResult:
        from msprobe.compare.run import compare_dumps

        tolerances = self.folder / _TOLERANCES
        return compare_dumps(
            new, golden, tolerances=tolerances if tolerances.is_file() else None, verify=False
        )

    def _learn(self, found: CompareResult) -> None:
        """Widen the tolerances of the tensors that differ, if nothing else does."""
        import polars as pl
        import yaml

        from msprobe.compare.model import Status

        different = [str(status) for status in Status if status.is_difference]
        differing = found.frame.filter(pl.col("status").is_in(different))
        tensors = differing.filter(
            (pl.col("status") == "differs")
            & pl.col("target_shape").is_not_null()
            & pl.col("error").is_not_null()
        )
        if len(tensors) < len(differing):
            return
        path = self.folder / _TOLERANCES
        rules: dict[str, Any] = {}
        if path.is_file():
            rules = yaml.safe_load(path.read_text(encoding="utf-8"))["rows"]
        for name, error in tensors.select("name", "error").iter_rows():
            glob = re.sub(r"([*?\[])", r"[\1]", name)
            learned = max(_MARGIN * error, rules.get(glob, {}).get("rtol", 0.0))
            rules[glob] = {"rtol": float(learned)}
        write_whole(path, [yaml.safe_dump({"rows": rules}).encode()])


def _message(found: CompareResult, folder: Path) -> str:
    """Return why a test fails, in a few lines."""
    verdict = found.summary["verdict"]
    lines = [f"differs from the golden recording in {folder}", verdict["sentence"]]
    lines += [f"  {text}" for text in verdict["evidence"]]
    lines += [f"next: {text}" for text in verdict["next"] if not text.startswith("msprobe")]
    lines.append(
        "if this is meant: --msprobe-golden-update; if it is noise: --msprobe-golden-learn"
    )
    return "\n".join(lines)
