# SPDX-License-Identifier: Apache-2.0
"""Every trainer in every situation: it trains to the bit as without msprobe, and counts right.

| trainer | tests |
|---|---|
| loops around PEFT, timm, diffusers, FSDP1, FSDP2, Megatron-core, DeepSpeed | here |
| `transformers.Trainer`, TRL, Lightning (automatic, manual) | here |
| `MsprobeAccelerator` | test_accelerate.py |
| MindSpore's `Model.train` | tests/mindspore: test_lifecycle.py, test_static_graph.py |
| two ranks | test_unedited_scripts.py |

MSPROBE_TEST_ALL_TRAINERS=1 tries those that CI leaves out as well. Each training has two micro
batches a step and evaluates and saves in between, so that the first test holds bit identity,
gradient accumulation, evaluation loops and the saving of checkpoints.
"""

from __future__ import annotations

import importlib.util
import os
import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from builders.trainers import TRAINERS  # noqa: E402
from builders.trainings import (  # noqa: E402
    GROUPED,
    LOOPS,
    MICRO_BATCHES,
    STEPS,
    Planted,
    Situation,
    one_process_group,
    train,
)
from msprobe import open_dump  # noqa: E402
from msprobe.dump.facts import Ending  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CHOSEN = [*LOOPS, *TRAINERS]
if not os.environ.get("MSPROBE_TEST_ALL_TRAINERS"):
    alike = {"plain", "timm", "diffusers", "fsdp1"}
    CHOSEN = [name for name in CHOSEN if name not in alike]


@pytest.fixture(params=CHOSEN)
def trainer(request):
    """Return what trains, and its class."""
    is_loop = request.param in LOOPS
    package, kind = LOOPS[request.param] if is_loop else TRAINERS[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    with one_process_group() if is_loop and issubclass(kind, GROUPED) else nullcontext():
        yield (partial(train, kind) if is_loop else kind.train), kind


def steps(folder: Path, layer: str) -> dict[int, tuple[int, Ending]]:
    """Return the calls of the layer in each recorded step, and how the step ended."""
    return {
        number: (
            sum(re.match(re.escape(layer), name) is not None for name in view.records),
            view.facts.ended.how,
        )
        for number, step in open_dump(folder).steps.items()
        for view in step.ranks.values()
    }


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_it_trains_the_same_and_counts_on_when_it_is_resumed(tmp_path, trainer):
    training, kind = trainer
    (tmp_path / "plain").mkdir()
    plain = training(Situation(folder=tmp_path / "plain"))
    recorded = training(Situation(folder=tmp_path, recorded=tmp_path / "dump"))
    assert_equal(recorded, plain)
    whole = (MICRO_BATCHES, Ending.WHOLE)
    assert steps(tmp_path / "dump", kind.layer) == dict.fromkeys(range(STEPS), whole)

    from msprobe.capture.session import reset_session

    reset_session()
    resumed = Situation(folder=tmp_path, resumes=True)
    plain = training(resumed)
    reset_session()
    resumed = Situation(folder=tmp_path, resumes=True, recorded=tmp_path / "resumed")
    assert_equal(training(resumed), plain)
    assert steps(tmp_path / "resumed", kind.layer) == {
        2: (kind.first_resumed, Ending.WHOLE),
        3: whole,
    }


def test_an_early_stop_and_an_exception_end_the_step(tmp_path, trainer):
    training, kind = trainer
    stopped = Situation(folder=tmp_path, stops_after=1)
    plain = training(stopped)
    stopped = Situation(folder=tmp_path, stops_after=1, recorded=tmp_path / "stopped")
    assert_equal(training(stopped), plain)
    whole = (MICRO_BATCHES, Ending.WHOLE)
    assert steps(tmp_path / "stopped", kind.layer) == {0: whole}

    from msprobe.capture.session import reset_session

    reset_session()
    with pytest.raises(Planted):
        training(Situation(folder=tmp_path, breaks_at=1, recorded=tmp_path / "broken"))
    reset_session()
    found = steps(tmp_path / "broken", kind.layer)
    assert list(found) == [0, 1]
    assert found[0] == whole
    assert found[1][0] == MICRO_BATCHES - 1
    assert found[1][1] is not Ending.WHOLE
