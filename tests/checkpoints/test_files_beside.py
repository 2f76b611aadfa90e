# SPDX-License-Identifier: Apache-2.0
"""Files beside the weights are compared, or listed as not compared; never passed over."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from msprobe.checkpoints.comparing import compare_checkpoints
from msprobe.cli import main


def folder(path: Path, config: object = None, **files: bytes) -> Path:
    path.mkdir()
    save_file({"w": np.arange(4, dtype=np.float32)}, path / "model.safetensors")
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (path / name.replace("_", ".")).write_bytes(content)
    return path


def test_settings_of_a_model_are_compared_value_by_value(tmp_path: Path) -> None:
    sizes = {"hidden": 32, "rope": {"theta": 1e4}, "kinds": ["a", "b"]}
    target = folder(tmp_path / "t", {**sizes, "rope": {"theta": 5e5}})
    found = compare_checkpoints(target, folder(tmp_path / "r", sizes))
    assert found.ranked() == [("changed", "config.json.rope.theta")]


def test_equal_and_unknown_files_are_compared_by_their_bytes(tmp_path: Path) -> None:
    target = folder(tmp_path / "t", {"b": 1, "a": 2}, vocab_txt=b"one\ntwo", note_md=b"x")
    reference = folder(tmp_path / "r", {"a": 2, "b": 1}, vocab_txt=b"one\n2", note_md=b"x")
    assert compare_checkpoints(target, reference).ranked() == [("changed", "vocab.txt")]


@pytest.mark.parametrize("reference", ["r", "r/model.safetensors"])
def test_a_file_without_a_partner_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reference: str
) -> None:
    target = folder(tmp_path / "t", {"a": 1})
    folder(tmp_path / "r")
    assert main(["compare-ckpt", str(target), str(tmp_path / reference), "--exit-code"]) == 1
    note = "1 not compared not compared config.json target: the other side has no file of this name"
    assert note in " ".join(capsys.readouterr().out.split())


def test_a_folder_with_a_pickle_of_random_states(tmp_path: Path) -> None:
    states = {"random_state": (3, (1, 2), None), "numpy": np.arange(5)}
    target = folder(tmp_path / "t", rng_pkl=pickle.dumps({**states, "numpy": np.arange(5) + 1}))
    reference = folder(tmp_path / "r", rng_pkl=pickle.dumps(states))
    assert compare_checkpoints(target, reference).ranked() == [("changed", "numpy")]


def test_words_in_the_header_of_a_safetensors_file(tmp_path: Path) -> None:
    weights = {"w": np.ones(3, np.float32)}
    target, reference = tmp_path / "t.safetensors", tmp_path / "r.safetensors"
    save_file(weights, target, {"format": "np", "quantization": "nf4"})
    save_file(weights, reference, {"format": "pt", "quantization": "fp4"})
    found = compare_checkpoints(target, reference)
    assert found.ranked() == [("changed", "__metadata__.quantization")]


@pytest.mark.parametrize("side", ["target", "reference"])
def test_stacked_experts_are_recognised(tmp_path: Path, side: str) -> None:
    laws = np.random.default_rng(0)
    experts = {
        f"layers.{layer}.experts.{number}.w1": laws.normal(size=(4, 6)).astype(np.float32)
        for layer in range(2)
        for number in range(12)
    }
    stacked = {
        f"layers.{layer}.experts.w1": np.stack(
            [experts[f"layers.{layer}.experts.{number}.w1"] for number in range(12)]
        )
        for layer in range(2)
    }
    paths = {}
    for name, tensors in (("apart", experts), ("stacked", stacked)):
        paths[name] = tmp_path / f"{name}.safetensors"
        save_file(tensors, paths[name])
    order = ("stacked", "apart") if side == "target" else ("apart", "stacked")
    found = compare_checkpoints(*(paths[name] for name in order))
    kind = "joined" if side == "target" else "split"
    assert {each[0] for each in found.ranked()} == {kind}
    assert len(found.ranked()) == 2
