# SPDX-License-Identifier: Apache-2.0
"""Names in mapping files that no dump has are errors that tell file, line and key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pairing import write_side

from builders.records import forward, tensor
from msprobe import compare_dumps
from msprobe.errors import ConfigError

OUTER, ATTENTION = "Cell.net.layer.Layer.forward.0", "Cell.net.layer.attn.Attention.forward.0"


def records(*names: str) -> dict[str, Any]:
    return {name: forward([tensor()], [tensor()]) for name in names}


def dumps(folder: Path, *, level: str = "mix") -> tuple[Path, Path]:
    """Write a layer of MindSpore and its twin of PyTorch; return their dump paths."""
    calls = ("Primitive.norm.RmsNorm.0.forward", "Mint.matmul.0.forward")
    parents = {ATTENTION: OUTER, OUTER: None} | dict.fromkeys(calls, ATTENTION)
    names = [*(calls if level == "mix" else ()), ATTENTION, OUTER]
    write_side(folder, records(*names), parents=parents, level=level, framework="mindspore")
    others = ("NPU.npu_rms_norm.0.forward", "Torch.matmul.0.forward")
    modules = (
        "Module.net.layer.self_attn.SelfAttention.forward.0",
        "Module.net.layer.Block.forward.0",
    )
    parents = {modules[0]: modules[1], modules[1]: None} | dict.fromkeys(others, modules[0])
    names = [*(others if level == "mix" else ()), *modules]
    write_side(folder, records(*names), parents=parents, level=level, source="reference")
    return folder / "target", folder / "reference"


def written(folder: Path, text: str) -> Path:
    path = folder / "mapping.yaml"
    path.write_text(text, encoding="utf-8")
    return path


API = "- ms_api: {}\n  pt_api: {}\n"
LAYERS = "Layer:\n  attn: self_attn\n"
ROW = f"{ATTENTION}.input.0"
PARTNER = "Module.net.layer.self_attn.SelfAttention.forward.0.input.0"

UNKNOWN = [
    (
        "data_mapping",
        f"{ROW}: {PARTNER}\n{ROW[:-1]}1: N/A\n",
        ["line 2", f'"{ROW[:-1]}1" is "unknown"', "a row of the target", f'"{ROW}"?'],
    ),
    (
        "data_mapping",
        f"{ROW}: {PARTNER[:-1]}7\n",
        ["line 1", f'"{ROW}" is "{PARTNER[:-1]}7"', "a row of the reference", f'"{PARTNER}"?'],
    ),
    ("cell_mapping", "attn: self_attn\nlayr: x\n", ["line 2", '"layr" is "unknown"']),
    ("cell_mapping", "attn: self_atn\n", ["line 1", '"attn" is "self_atn"', "of the reference"]),
    (
        "api_mapping",
        API.format("Primitive.norm.RmsNorms", "NPU.npu_rms_norm"),
        ["line 1", '"ms_api" is "Primitive.norm.RmsNorms"', '"Primitive.norm.RmsNorm"?'],
    ),
    (
        "api_mapping",
        API.format("Mint.matmul", "Torch.matmul") + API.format("Mint.matmul", "Torch.matmull"),
        ["line 3", '"pt_api" is "Torch.matmull"', '"Torch.matmul"?'],
    ),
    (
        "layer_mapping",
        f"{LAYERS}Atention:\n  q: k\n",
        ["line 3", '"Atention" is "unknown"', '"Attention"?'],
    ),
    (
        "layer_mapping",
        "Layer:\n  attn: self_attn\n  atn: x\n",
        ["line 3", '"Layer.atn" is "unknown"', '"attn"?', "1 more names are unknown"],
    ),
    (
        "layer_mapping",
        "Layer:\n  attn: self_attention\n",
        ["line 2", '"Layer.attn" is "self_attention"', "of the reference", '"self_attn"?'],
    ),
    (
        "layer_mapping",
        f"{LAYERS}Attention:\n  RmsNorms: npu_rms_norm\n",
        ["line 4", '"Attention.RmsNorms" is "unknown"', '"RmsNorm"?'],
    ),
]


@pytest.mark.parametrize(("option", "text", "messages"), UNKNOWN)
def test_unknown_names(tmp_path: Path, option: str, text: str, messages: Sequence[str]) -> None:
    target, reference = dumps(tmp_path)
    options: Any = {option: written(tmp_path, text)}
    with pytest.raises(ConfigError) as caught:
        compare_dumps(target, reference, **options)
    message = str(caught.value)
    assert str(tmp_path / "mapping.yaml") in message
    for part in messages:
        assert part in message


KNOWN = [
    ("data_mapping", f"{ROW}: {PARTNER}\n{ROW.replace('input', 'output')}: N/A\n"),
    ("cell_mapping", "net.layer.attn.Attention: net.layer.self_attn.SelfAttention\n"),
    ("cell_mapping", "Cell: Module\nattn: self_attn\n"),
    # Functions that the frameworks have may be in a mapping for several models.
    ("api_mapping", API.format("Functional.expand_dims", "Functional.silu")),
    ("api_mapping", API.format("Primitive.RmsNorm", "NPU.npu_rms_norm")),
    ("layer_mapping", f"TopLayer:\n  net: net\n{LAYERS}Attention:\n  RmsNorm: npu_rms_norm(X)\n"),
    ("layer_mapping", f"{LAYERS}  attn.norm.RmsNorm: self_attn.npu_rms_norm\n"),
]


@pytest.mark.parametrize(("option", "text"), KNOWN)
def test_known_names(tmp_path: Path, option: str, text: str) -> None:
    target, reference = dumps(tmp_path)
    options: Any = {option: written(tmp_path, text)}
    compare_dumps(target, reference, **options)


def test_names_are_looked_for_on_their_own_side(tmp_path: Path) -> None:
    target, reference = dumps(tmp_path)
    path = written(tmp_path, LAYERS)
    compare_dumps(reference, target, layer_mapping=path)  # MindSpore comes first in the file
    path = written(tmp_path, "Block:\n  self_attn: attn\n")
    with pytest.raises(ConfigError, match='"Block" is "unknown"'):
        compare_dumps(reference, target, layer_mapping=path)


def test_without_calls_nothing_tells_a_misspelt_child_from_a_call(tmp_path: Path) -> None:
    target, reference = dumps(tmp_path, level="L0")
    path = written(tmp_path, f"{LAYERS}Attention:\n  RmsNorm: npu_rms_norm\n")
    result = compare_dumps(target, reference, layer_mapping=path)
    assert result.summary["unmatched"]["target"] == 0


def test_a_mapping_made_in_python(tmp_path: Path) -> None:
    target, reference = dumps(tmp_path)
    with pytest.raises(ConfigError, match='data mapping: "nothing" is "unknown"'):
        compare_dumps(target, reference, data_mapping={"nothing": "N/A"})


def test_a_name_that_another_rank_has_is_known(tmp_path: Path) -> None:
    for rank, cell, module in ((0, "embed", "embedding"), (1, "head", "lm_head")):
        for side, path, framework in (
            ("target", f"Cell.{cell}.Dense", "mindspore"),
            ("reference", f"Module.{module}.Linear", "pytorch"),
        ):
            write_side(
                tmp_path / str(rank),
                records(f"{path}.forward.0"),
                source=side,
                framework=framework,
            )
            folder = tmp_path / side / "step0" / f"rank{rank}"
            folder.parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / str(rank) / side / "step0" / "rank").rename(folder)
    path = written(tmp_path, "embed: embedding\nhead: lm_head\n")

    result = compare_dumps(tmp_path / "target", tmp_path / "reference", cell_mapping=path)

    assert set(result.frame["match"]) == {"mapped"}
