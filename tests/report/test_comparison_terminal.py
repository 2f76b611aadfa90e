# SPDX-License-Identifier: Apache-2.0
"""What a comparison says on the terminal; golden files are refreshed with pytest --overwrite."""

from __future__ import annotations

import io
import re
from pathlib import Path

import polars as pl
import pytest
from comparison_samples import (
    NOISE,
    SCHEMA,
    Sample,
    equal_run,
    joined,
    summary_of,
    tensor,
    transformer,
    unread_run,
)
from rich.cells import cell_len
from rich.console import Console

from msprobe.compare.model import Mode, Origin, Status
from msprobe.compare.native_table import COLUMNS
from msprobe.report import comparison_words
from msprobe.report.comparison_answer import Outcome, answer_of
from msprobe.report.comparison_facts import module_tree, operations, ranked
from msprobe.report.comparison_lines import SCREEN, comparison_lines, quiet_line, short_lines

FILES = (Path("out/compare_result_20261122_031500.xlsx"), Path("out/summary.json"))


def text_of(frame: pl.DataFrame, width: int = 80, **more) -> str:
    summary = more.pop("summary", None) or summary_of(frame)
    lines = comparison_lines(summary, frame, width=width, **more)
    return "".join(f"{line.plain.rstrip()}\n" for line in lines)


def short_text(frame: pl.DataFrame, width: int = 80, **more) -> str:
    summary = more.pop("summary", None) or summary_of(frame)
    lines = short_lines(summary, frame, width=width, **more)
    return "".join(f"{line.plain.rstrip()}\n" for line in lines)


def section(text: str, start: str) -> list[str]:
    """Return the lines below the title that begins so, up to the next empty line."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(start)) + 1
    last = lines.index("", first) if "" in lines[first:] else len(lines)
    return lines[first:last]


@pytest.mark.parametrize("width", [80, 140])
def test_a_faulty_run(golden, width):
    text = text_of(transformer(12).frame, width, files=FILES)
    golden(f"comparison_{width}.txt", text)


def runs_and_ranks() -> pl.DataFrame:
    runs = [transformer(3, step=step, rank=rank) for step in (0, 1) for rank in ("0", "1")]
    return joined(*runs, equal_run(step=2))


def test_several_steps_and_ranks(golden):
    golden("comparison_ranks.txt", text_of(runs_and_ranks(), 110))


def test_an_equal_run(golden):
    golden("comparison_equal.txt", text_of(equal_run().frame, files=FILES))


def verdict(**more) -> dict:
    """Return a verdict as a summary has it."""
    return {
        "class": "optimizer_setting",
        "sentence": "optimizer setting: AdamW beta2 is 0.99 in the target, 0.999 in the reference "
        "(step 0, all 38 parameters)",
        "confidence": "proved",
        "evidence": [
            "all 82 values of the forward pass and all gradients agree",
            "the update of all 38 parameters is that of AdamW with beta2 0.99 (error 2e-08)",
        ],
        "where": {
            "step": 0,
            "rank": 0,
            "record": None,
            "module": None,
            "source": "train.py:41",
            "parameter": None,
            "phase": "optimizer",
        },
        "next": ["set beta2 of the optimizer in train.py:41", "msprobe show runs/new --step 0"],
        **more,
    }


def grouped(frame: pl.DataFrame, **more) -> dict:
    """Return a summary with a verdict and two groups of culprits."""
    summary = summary_of(frame, verdict=verdict(), **more)
    introduced = summary["introduced"]
    first = {**introduced[0], "name": "Tensor.mul_.3.forward", "source": "optimizer.py:41"}
    groups = [(22, first, "0.9998 instead of 0.9999"), (1, introduced[1], introduced[1]["reason"])]
    summary["culprit_groups"] = [
        {
            "count": count,
            "kind": culprit["kind"],
            "cause": "argument",
            "reason": reason,
            "source": culprit["source"],
            "first": culprit,
        }
        for count, culprit, reason in groups
    ]
    return summary


def test_the_verdict_on_one_screen(golden):
    frame = transformer(12).frame
    golden("short_verdict.txt", short_text(frame, summary=grouped(frame), files=FILES))


def test_one_screen_without_a_verdict(golden):
    page = Path("out/compare_report_20261122_031500.html")
    golden("short_counts.txt", short_text(runs_and_ranks(), 110, files=[page, *FILES]))


@pytest.mark.parametrize("width", [80, 100, 240])
def test_one_screen_holds_the_answer_whatever_there_is_to_say(width):
    sample = transformer(12)
    for layer in range(60):
        values = [tensor("output.0", 0.1, origin="introduced", reason="a reason " * 30)]
        sample.call(f"Torch.fft.{layer}.forward", f"m.{layer}", values, source=f"m.py:{layer}")
    frame = joined(sample, unread_run(step=1))
    said = verdict(evidence=[f"fact {n} " * 12 for n in range(9)], sentence="a cause " * 20)
    replica = {"name": "fc2", "error": 0.1, "reason": "rank 2 against 0, 1"}
    summary = summary_of(
        frame, verdict=said, notes=["a note " * 9] * 9, replicas=[replica] * 9,
        target="runs/" + "long/" * 10,
    )  # fmt: skip
    text = short_text(frame, width, summary=summary, files=FILES * 5)
    lines = text.splitlines()
    assert lines[0].startswith("DIFFERENT  a cause a cause")
    assert "Functional.gelu.0.forward.output.0" in text  # what could not be read
    assert any(line.startswith("Culprits") for line in lines)
    assert "fc2.Linear" in text
    assert "msprobe show runs/new --step 0" in text
    assert "9 notes" in lines[-1]
    assert len(lines) <= SCREEN


def test_a_screen_without_anything_unusual_is_short():
    frame = transformer(12).frame
    text = short_text(frame, summary=grouped(frame, notes=["one", "two", "three"]), files=FILES)
    assert len(text.splitlines()) <= SCREEN
    assert "By module" not in text


def test_notes_come_where_there_is_room():
    frame = equal_run().frame
    notes = ["only statistics were compared: the reference kept no tensors"]
    text = short_text(frame, summary=summary_of(frame, notes=notes), files=FILES)
    assert section(text, "Notes") == [f"  - {notes[0]}"]
    assert text.splitlines()[-1] == "  -v shows 1 more file"


def test_values_agree_and_something_else_does_not():
    frame = equal_run().frame
    summary = summary_of(frame, verdict=verdict())
    assert short_text(frame, summary=summary).startswith("EQUAL, BUT  optimizer setting: AdamW")
    assert quiet_line(summary).startswith("equal, but: optimizer setting: AdamW beta2 is 0.99")


def test_values_agree_and_the_last_update_does_not() -> None:
    frame = equal_run().frame
    summary = summary_of(frame, verdict=verdict(), equal=False, changed_steps=[2])
    assert short_text(frame, summary=summary).startswith("DIFFERENT  optimizer setting: AdamW")


def test_the_outcome_is_not_said_twice():
    frame = equal_run().frame
    said = verdict(
        **{"class": "equal", "sentence": "equal: all 24 values agree, bit for bit"}, evidence=()
    )
    summary = summary_of(frame, verdict=said)
    assert quiet_line(summary) == "equal: all 24 values agree, bit for bit"
    text = short_text(frame, summary=summary)
    assert text.startswith("EQUAL  all 24 values agree, bit")
    assert text.count("agree") == 1


def test_the_users_own_code_comes_before_that_of_libraries():
    sample = Sample()
    values = [tensor("output.0", 0.5, origin="introduced")]
    sample.call("Functional.linear.0.forward", "q", values, source="modeling_llama.py:236")
    summary = summary_of(sample.frame)
    stack = [
        "File /env/lib/python3.11/site-packages/transformers/modeling_llama.py, line 236, in"
        " forward, \n q = self.q(x)",
        "File /home/me/train.py, line 41, in <module>, \n loss = model(x)",
    ]
    summary["introduced"][0]["stack"] = stack
    assert "train.py:41 via modeling_llama.py:236" in short_text(sample.frame, summary=summary)
    assert "(train.py:41 via modeling_llama.py:236)" in quiet_line(summary)


def test_plain_ascii(golden):
    frame = transformer().frame
    assert short_text(frame, summary=grouped(frame), unicode=False).isascii()
    text = text_of(frame, unicode=False)
    assert text.isascii()
    golden("comparison_ascii.txt", text)


@pytest.mark.parametrize("width", [60, 80, 100, 110, 200])
def test_lines_fit_but_names_that_are_there_to_be_copied_are_whole(width):
    frame = transformer(30).frame
    text = text_of(frame, width, files=FILES) + short_text(frame, width, files=FILES)
    whole = set(frame["name"]) | set(frame["operation"]) | {str(path) for path in FILES}
    for line in text.splitlines():
        is_copied = any(line.endswith(name) for name in whole)
        assert cell_len(line) <= width or is_copied, line


def test_the_words_are_those_of_the_comparison():
    assert set(comparison_words.SEVERITY) == set(comparison_words.STATUSES) == set(Status)
    assert set(comparison_words.DIFFERENCES) == {word for word in Status if word.is_difference}
    assert set(comparison_words.STATUS_MEANINGS) == set(comparison_words.STATUS_STYLES)
    assert set(comparison_words.STATUS_STYLES) == set(Status)
    assert set(comparison_words.ORIGINS) == set(comparison_words.ORIGIN_STYLES) == set(Origin)
    assert set(comparison_words.MODE_MEANINGS) == set(Mode)


def test_the_samples_have_the_columns_of_a_comparison():
    assert set(SCHEMA) == set(COLUMNS)


def test_the_answer_needs_no_colour():
    tree = section(text_of(transformer().frame, 140), "By module")
    born = [line for line in tree if "introduced" in line]
    assert len(born) == 3
    assert all(line.startswith("!!") for line in born)
    assert next(line for line in tree if "qkv agrees" in line).startswith("  ")


def test_modules_and_steps_with_unread_values_do_not_agree():
    text = text_of(joined(transformer(), unread_run(step=1), equal_run(step=2)))
    assert any("… 1 could not be read " in line for line in section(text, "By module"))
    assert section(text, "Steps and ranks")[-2:] == [
        "  1 of 3 could not be read in full",
        "  1 of 3 agrees",
    ]


def test_values_that_agree_beside_a_cause_were_read():
    verdict = {"class": "optimizer setting", "sentence": "optimizer setting: Adam beta2 is 0.9"}
    summary = summary_of(equal_run().frame, equal=False, verdict=verdict)
    assert answer_of(summary).outcome is Outcome.EQUAL_BUT


def test_colours_are_only_added():
    frame = transformer().frame
    written = {}
    for is_terminal in (True, False):
        colours = "standard" if is_terminal else None
        console = Console(
            file=io.StringIO(), force_terminal=is_terminal, color_system=colours, width=80
        )
        for line in comparison_lines(summary_of(frame), frame, width=80):
            console.print(line)
        written[is_terminal] = console.file.getvalue()
    assert "\x1b[1;31m!!" in written[True]
    plain_text = re.sub(r"\x1b\[[0-9;]*m", "", written[True])
    assert written[False] == plain_text


def test_a_limit_says_what_it_hides():
    frame = transformer(12).frame
    everything = section(text_of(frame, limit=0), "By module")
    few = section(text_of(frame, limit=5), "By module")
    lines = len(everything) - 3  # without heading and legend
    assert few[6].strip() == f"{lines - 5} more lines of this tree; the files hold everything"


def test_modules_that_only_hand_a_difference_on_are_folded():
    tree = section(text_of(transformer(40).frame), "By module")
    assert len(tree) < 40
    assert any("more differ" in line for line in tree)
    carrier = next(line for line in tree if "├ 2 " in line)
    assert "16 of 18" in carrier or "20 of 22" in carrier


def test_the_first_difference_is_shown_open_although_nothing_begins_there():
    sample = Sample()
    for layer in range(8):
        values = [tensor("input.0", 0.1 * (layer > 3)), tensor("output.0", 0.1 * (layer > 3))]
        sample.call(f"Functional.relu.{layer}.forward", f"blocks.{layer}.act", values)
    tree = section(text_of(sample.frame), "By module")
    assert any("Functional.relu.4 input.0" in line for line in tree)
    assert not any("Functional.relu.5" in line for line in tree)


def test_statistics_and_checksums_have_no_elements(golden):
    blank = ["max_abs_err", "max_abs_index", "mismatches", "unequal", "count"]
    frame = transformer().frame.with_columns(pl.lit(None).alias(name) for name in blank)
    text = text_of(frame, summary=summary_of(frame, mode="statistics", bytes_read=0))
    assert "maximum, minimum, mean and norm; 2.4 s" in text
    assert "elements" not in text
    checksums = frame.with_columns(error=pl.lit(None, pl.Float64))
    text = text_of(checksums, summary=summary_of(checksums, mode="md5"))
    assert "relative" not in text
    assert "Linear parameters.weight" in text


def test_a_dtype_and_a_shape_are_named_on_both_sides():
    sample = Sample()
    shapes = {"target_shape": "[2, 4]", "reference_shape": "[4, 2]", "status": "shape"}
    sample.call("Tensor.t.0.forward", "", [tensor("output.0", None, **shapes)])
    assert "shape      [2, 4], reference [4, 2]" in text_of(sample.frame)


def test_nothing_in_common():
    frame = Sample().frame
    assert text_of(frame).startswith("NOTHING TO COMPARE")
    assert quiet_line(summary_of(frame)) == "nothing to compare"


def test_hostile_names_stay_text():
    sample = Sample()
    evil = "Module.a\x1b[2J\n\u202eb.Evil.forward.0"
    sample.call(evil, "a\x1b[2J\n\u202eb", [tensor("output.0", 0.5, origin="introduced")])
    text = text_of(sample.frame, 140)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert all(line.isprintable() for line in text.splitlines())


def test_quiet_is_one_line():
    frame = transformer().frame
    assert quiet_line(summary_of(frame)) == (
        "different: 52 of 82 values differ; introduced by Module.layers.3.mlp.fc2.Linear.forward.0"
        " (model.py:47)"
    )
    assert quiet_line(summary_of(equal_run().frame)) == "equal: all 24 values agree"


def test_an_operation_is_known_by_its_worst_value():
    found = operations(transformer().frame)
    weight = found.filter(pl.col("operation") == "Module.layers.3.mlp.fc2.Linear.forward.0")
    row = weight.row(0, named=True)
    assert (row["slot"], row["origin"], row["rows"], row["differ"]) == (
        "parameters.weight",
        "introduced",
        3,
        3,
    )
    assert row["error_in"] == 0.25
    assert row["error_out"] == 0.18
    assert found["order"].to_list() == sorted(found["order"])


def test_what_cannot_be_measured_ranks_before_what_can():
    statuses = ranked(transformer().frame)["status"].to_list()
    assert statuses[0] == "nonfinite"
    assert statuses[-1] == "equal"


def test_modules_add_up_whatever_their_number():
    frame = transformer(50).frame
    root = module_tree(frame)
    assert root.total.rows == len(frame)
    assert root.total.introduced == 3
    assert root.total.differ == frame["status"].is_in(comparison_words.DIFFERENCES).sum()
    labels = {node.path: node.label for node in root.walk()}
    assert labels["layers.0"] == "0"
    assert labels["layers.0.mlp.fc2"] == "mlp.fc2"  # nothing ran in layers.0.mlp itself
    assert "layers.0.mlp" not in labels


def test_what_several_steps_lack_is_named_once():
    runs = joined(*(transformer(3, step=step) for step in range(3)))
    summary = summary_of(runs)
    summary["unmatched"] = {
        "target": 9,
        "reference": 0,
        "operations": {"added": ["a.0.forward", "b.0.forward"] * 3, "missing": []},
    }
    lines = section(text_of(runs, summary=summary), "Operations without a partner: 9 only")
    assert lines == ["  added    a.0.forward", "  added    b.0.forward", f"{'':11}and 3 more added"]


def test_replicas():
    frame = equal_run().frame
    assert "Ranks" not in text_of(frame)
    assert "Ranks that should agree do\n" in text_of(frame, summary=summary_of(frame, replicas=[]))
    found = {
        "name": "Functional.relu.3.forward",
        "row": "Functional.relu.3.forward.output.0",
        "error": NOISE,
        "reason": "rank 2 against 0, 1: max 3 instead of 4",
        "source": "model.py:3",
    }
    text = text_of(frame, summary=summary_of(frame, replicas=[found] * 12))
    lines = section(text, "Ranks that should agree differ: 12 values")
    assert lines[0] == "  Functional.relu.3.forward.output.0  3.1e-07  model.py:3"
    assert lines[1] == "      rank 2 against 0, 1: max 3 instead of 4"
    assert lines[-1] == "  4 more"


def test_where_little_fits_the_best_culprits_are_still_there():
    sample = Sample()
    for layer in range(60):
        values = [tensor("input.0"), tensor("output.0", 0.1, origin="introduced")]
        sample.call(f"Functional.relu.{layer}.forward", f"blocks.{layer}.act", values)
    frame = sample.frame
    summary = summary_of(frame)
    summary["introduced"] = summary["introduced"][50:] + summary["introduced"][:50]
    tree = section(text_of(frame, summary=summary), "By module")
    assert any("Functional.relu.57" in line for line in tree)
    assert not any("Functional.relu.5 " in line for line in tree)
    assert not any("more lines" in line for line in tree)
