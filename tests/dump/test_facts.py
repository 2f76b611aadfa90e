# SPDX-License-Identifier: Apache-2.0
"""``facts.json``: strict, kept by a killed process, and read as typed objects."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from msgspec.structs import replace

import msprobe
from msprobe.dump.clearing import clear_run
from msprobe.dump.facts import (
    Clip,
    Data,
    Ended,
    Ending,
    Loss,
    OptimizedParameters,
    OptimizerGroup,
    OptimizerStep,
    parse_facts,
)
from msprobe.dump.repair import repair_dump
from msprobe.dump.writer import DumpHead, DumpWriter
from msprobe.errors import DumpFormatError

HEAD = DumpHead("statistics", "mix", "pytorch")
CLIP = Clip(function="clip_grad_norm_", max=math.inf, norm_type=2.0, total_norm=math.nan)
STEP = OptimizerStep(
    class_name="torch.optim.adamw.AdamW",
    number=0,
    call=0,
    groups=[OptimizerGroup(options={"lr": 1e-3, "betas": [0.9, 0.999]}, parameters=[0])],
    parameters=OptimizedParameters(
        name=["fc.weight"],
        samples={"index": [[0, 7]], "before": [[1.5, -math.inf]], "exp_avg": [None]},
    ),
)
DATA = Data(micro=0, record=None, where="input.0", shape=[2], dtype="torch.int64", max=3, min=True)


def put(dump) -> None:
    dump.put_fact("step", 4)
    dump.put_fact("random", {"cpu": "9f3c01aa", "cuda:0": None})
    dump.put_fact("settings", {"env.A": "NaN", "env.B": "null"})
    dump.put_fact("settings", {"env.A": "Infinity", "env.B": "null", "path": "\udc80"})
    dump.put_fact("events", CLIP)
    dump.put_fact("data", DATA)
    dump.put_fact("loss", Loss(micro=0, value=math.nan, shape=[], dtype="torch.float32"))
    dump.put_fact("events", STEP)
    dump.put_record("Functional.relu.0.forward", 0, {"output": []})


def written(directory, ended=Ending.WHOLE):
    writer = DumpWriter()
    dump = writer.open(directory, HEAD)
    put(dump)
    if ended is not None:
        dump.put_fact("ended", Ended(how=ended))
    dump.close()
    writer.close()
    return msprobe.open_dump(directory).step().rank()


def check_parts(facts) -> None:
    assert facts.step == 4
    assert facts.random == {"cpu": "9f3c01aa", "cuda:0": None}
    assert facts.settings["env.A"] == "Infinity"
    assert facts.settings["env.B"] == "null"
    assert facts.data == [DATA]
    assert math.isnan(facts.loss[0].value)
    clip, step = facts.events
    assert clip.max == math.inf
    assert math.isnan(clip.total_norm)
    assert step == STEP
    assert facts.optimizer_steps() == [STEP]
    assert facts.parameters is None


def test_facts_are_read_as_they_were_written(tmp_path):
    facts = written(tmp_path / "step4" / "rank").facts
    check_parts(facts)
    assert facts.ended == Ended(how=Ending.WHOLE)


def test_the_file_is_strict_json(tmp_path):
    written(tmp_path / "step4" / "rank")

    def refuse(word):
        raise AssertionError(word)

    text = (tmp_path / "step4" / "rank" / "facts.json").read_text()
    tree = json.loads(text, parse_constant=refuse)
    assert tree["version"] == 1
    assert tree["events"][0]["max"] == "Infinity"
    assert tree["events"][1]["kind"] == "optimizer"
    assert tree["events"][1]["class"] == "torch.optim.adamw.AdamW"


@pytest.mark.parametrize(
    ("norms", "samples"),
    [
        ([1.0, math.nan], [[1.0], None]),
        ([1.0, None], [[1.0, -math.inf], None]),
        ([1e308, 1e308], [[], [2.0, 10**30]]),
    ],
)
def test_numbers_that_json_lacks_are_found_anywhere_in_columns(tmp_path, norms, samples):
    writer = DumpWriter()
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)
    parameters = replace(STEP.parameters, name=["a", "b"], samples={"before": samples})
    gradient = replace(parameters.gradient, norm=norms)
    dump.put_fact("events", replace(STEP, parameters=replace(parameters, gradient=gradient)))
    dump.close()
    writer.close()
    (step,) = msprobe.open_dump(tmp_path).step().rank().facts.optimizer_steps()
    assert repr(step.parameters.gradient.norm) == repr(norms)
    assert repr(step.parameters.samples["before"]) == repr(samples)


def test_a_dump_without_facts_has_none(tmp_path):
    writer = DumpWriter()
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)
    dump.put_record("Functional.relu.0.forward", 0, {"output": []})
    dump.close()
    writer.close()
    assert not (tmp_path / "step0" / "rank" / "facts.json").exists()
    assert msprobe.open_dump(tmp_path).step().rank().facts is None


def test_a_step_that_goes_on_has_not_ended(tmp_path):
    writer = DumpWriter()
    dump = writer.open(tmp_path / "step4" / "rank", HEAD)
    put(dump)
    dump.build_json()
    tree = json.loads((tmp_path / "step4" / "rank" / "facts.json").read_text())
    assert "ended" not in tree
    assert len(tree["events"]) == 2
    dump.close()
    writer.close()


def killed(directory) -> None:
    code = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(__file__).rsplit("/", 1)[0]!r})
from test_facts import HEAD, put
from msprobe.dump.writer import DumpWriter
dump = DumpWriter().open(Path({str(directory)!r}), HEAD)
put(dump)
dump.flush()
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    with (directory / "journal.jsonl").open("ab") as file:
        file.write(b'["f","events",{"kind":"optim')


def test_a_killed_process_keeps_its_facts(tmp_path):
    killed(tmp_path / "step4" / "rank")
    before = msprobe.open_dump(tmp_path).step().rank().facts
    check_parts(before)
    assert before.ended == Ended(how=Ending.KILLED)
    (done,) = repair_dump(tmp_path)
    assert done.problem is None
    assert not (tmp_path / "step4" / "rank" / "journal.jsonl").exists()
    after = msprobe.open_dump(tmp_path).step().rank().facts
    check_parts(after)
    assert after.ended == before.ended


def test_a_process_killed_before_its_facts_reached_the_disk(tmp_path):
    directory = tmp_path / "step4" / "rank"
    killed(directory)
    journal = directory / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])

    found = msprobe.open_dump(tmp_path).step().rank().facts

    assert found.ended == Ended(how=Ending.KILLED)
    assert not found.data


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b'{"events": [{"kind": "?"}]}', b'{"version": 99}', b"\xff" * 9]
)
def test_a_damaged_file_is_an_error_of_its_own(tmp_path, text):
    directory = tmp_path / "step4" / "rank"
    written(directory)
    (directory / "facts.json").write_bytes(text)
    view = msprobe.open_dump(tmp_path).step().rank()
    with pytest.raises(DumpFormatError, match=r"facts\.json"):
        _ = view.facts
    assert "facts.json" in view.ignore_damaged()[0]
    assert view.facts is None


def test_addresses_in_settings_are_no_part_of_them(tmp_path):
    facts = [
        parse_facts(
            tmp_path / "facts.json",
            b'{"version": 1, "settings": {"module.fc": "Dense(init=<Uniform object at %s>)"}}' % at,
        )
        for at in (b"0x7fd8305de190", b"0x7fd7e313dcd0")
    ]
    assert facts[0] == facts[1]
    assert facts[0].settings == {"module.fc": "Dense(init=<Uniform object>)"}


def test_unknown_parts_and_fields_are_ignored(tmp_path):
    directory = tmp_path / "step4" / "rank"
    written(directory)
    path = directory / "facts.json"
    tree = json.loads(path.read_text())
    tree["later"] = {"a": 1}
    tree["events"][0]["later"] = 3
    path.write_text(json.dumps(tree))
    check_parts(msprobe.open_dump(tmp_path).step().rank().facts)


def test_a_new_run_clears_the_file(tmp_path):
    written(tmp_path / "step4" / "rank")
    clear_run(tmp_path, "rank")
    assert not (tmp_path / "step4").exists()
