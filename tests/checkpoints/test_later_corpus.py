# SPDX-License-Identifier: Apache-2.0
"""Planted differences of a mixture of experts and of a trainer's values come first."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from builders.checkpoint_corpus import FORMATS, Training, training  # noqa: E402
from builders.checkpoints import write_safetensors  # noqa: E402
from msprobe.checkpoints.comparing import compare_checkpoints  # noqa: E402

pytestmark = pytest.mark.torch

Change = Callable[[Any], object]


@dataclasses.dataclass
class Settings:
    warmup: int = 100
    decay: str = "cosine"


class Gain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.gain = 1.5


@dataclass(frozen=True)
class Case:
    """A change, and where and as what it has to come first.

    Attributes:
        name: what was changed.
        format: the format that both sides have.
        change: changes the target.
        kind: the kind of difference.
        place: pattern of the name of the entry.
        start: returns what both sides begin with.
        after: changes the target's files.
    """

    name: str
    format: str
    change: Change
    kind: str
    place: str
    start: Callable[[], Any] = training
    after: Callable[[Path], object] | None = None


def experts() -> Training:
    """Return the state of a mixture of experts in the spelling of a model hub."""
    generator = torch.Generator().manual_seed(4)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (40, 16)}
    for layer in range(4):
        begin = f"model.layers.{layer}."
        shapes |= {f"{begin}self_attn.{kind}_proj.weight": (16, 16) for kind in "qkvo"}
        shapes[begin + "self_attn.q_proj.bias"] = (16,)
        shapes[begin + "input_layernorm.weight"] = (16,)
        shapes[begin + "moe.gate.weight"] = (4, 16)
        for expert in range(4):
            shapes[f"{begin}moe.experts.{expert}.w1.weight"] = (24, 16)
            shapes[f"{begin}moe.experts.{expert}.w2.weight"] = (16, 24)
    shapes |= {"model.norm.weight": (16,), "stem.conv.weight": (8, 3, 3, 3)}
    model = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    found = training()
    found.model = model
    numbers = list(range(len(model)))
    found.optimizer = {
        "state": {
            number: {
                "step": torch.tensor(20.0),
                "exp_avg": torch.randn(tensor.shape, generator=generator),
                "exp_avg_sq": torch.rand(tensor.shape, generator=generator),
            }
            for number, tensor in enumerate(model.values())
        },
        "param_groups": [
            {"lr": 1e-4, "betas": (0.9, 0.95), "amsgrad": False, "params": numbers[:30]},
            {"lr": 1e-5, "betas": (0.9, 0.95), "amsgrad": False, "params": numbers[30:]},
        ],
    }
    return found


def tied() -> Training:
    found = experts()
    found.model["lm_head.weight"] = found.model["model.embed_tokens.weight"]
    return found


def packed() -> Training:
    """Return a model whose query, key and value are one matrix."""
    found = experts()
    found.model["model.layers.1.qkv.weight"] = torch.cat(
        [found.model.pop(f"model.layers.1.self_attn.{kind}_proj.weight") for kind in "qkv"]
    )
    return found


def tree() -> dict[str, Any]:
    """Return what a trainer of one's own saves."""
    generator = torch.Generator().manual_seed(8)
    weights = {f"net.{i}.weight": torch.randn(6, 6, generator=generator) for i in range(5)}
    average = {name: tensor * 0.99 + 0.001 for name, tensor in weights.items()}
    return {
        "weights": OrderedDict(weights) | {"net.0._extra_state": b"\x00\x01scales"},
        "ema": average,
        "settings": Settings(),
        "module": Gain(),
        "adjacency": torch.eye(4).to_sparse(),
        "spectrum": torch.randn(5, dtype=torch.complex64, generator=generator),
        "bn": {"running_mean": torch.zeros(3), "num_batches_tracked": torch.tensor(400)},
        "mask": torch.tensor([True, False, True]),
        "packed": torch.arange(32, dtype=torch.uint8),
        "fp8": torch.arange(16).float().to(torch.float8_e4m3fn),
        "tiny": torch.full((4,), 1e-40),
        "queue": [torch.ones(3), (torch.zeros(2), {"deep": torch.arange(4.0)})],
        "schedulers": [{"milestones": [10, 20], "T_max": 90}, {"gamma": 0.5}],
        "scaler": {"growth_interval": 2000, "enabled": True},
        "python": (3, tuple(range(20)), None),
        "best": np.float64(0.731),
        "commit": "0a1b2c",
        "seen": {"x", "y"},
        "limit": None,
        "ratio": 1 + 2j,
    }


def as_file(folder: Path, state: Any) -> Path:
    folder.mkdir()
    torch.save(state, folder / "run.pt")
    return folder / "run.pt"


def as_old_file(folder: Path, state: Any) -> Path:
    folder.mkdir()
    torch.save(state, folder / "run.pt", _use_new_zipfile_serialization=False)
    return folder / "run.pt"


def as_array(folder: Path, state: np.ndarray) -> Path:
    folder.mkdir()
    np.save(folder / "x.npy", state)
    return folder / "x.npy"


def as_coarse(folder: Path, state: Training) -> Path:
    folder.mkdir()
    return write_safetensors(folder / "x.safetensors", state.model)


WRITERS: dict[str, Callable[[Path, Any], Path]] = {
    **FORMATS, "file": as_file, "old file": as_old_file, "npy": as_array, "coarse": as_coarse,
}  # fmt: skip


def on(name: str, change: Callable[[Any], Any]) -> Change:
    """Replace a parameter by what a function returns for it."""
    return lambda state: state.model.update({name: change(state.model[name]).contiguous()})


def at(*keys: Any, to: Any) -> Change:
    """Set a value, or replace it by what a function returns for it."""

    def change(state: Any) -> None:
        node = state
        for key in keys[:-1]:
            node = node[key] if isinstance(node, (dict, list, tuple)) else getattr(node, key)
        known = not isinstance(node, (dict, list))
        old = getattr(node, keys[-1]) if known else node[keys[-1]]
        new = to(old) if callable(to) else to
        setattr(node, keys[-1], new) if known else node.__setitem__(keys[-1], new)

    return change


def every(change: Callable[[str, Any], Any]) -> Change:
    def apply(state: Training) -> None:
        state.model = {name: change(name, tensor) for name, tensor in state.model.items()}

    return apply


def permuted(names: list[str]) -> Change:
    """Give each of these parameters the values of the next one."""

    def change(state: Training) -> None:
        values = [state.model[name] for name in names]
        state.model.update(zip(names, values[1:] + values[:1], strict=True))

    return change


def layers_swapped(one: str, other: str) -> Change:
    def change(state: Training) -> None:
        names = [name for name in state.model if one in name]
        for name in names:
            twin = name.replace(one, other)
            state.model[name], state.model[twin] = state.model[twin], state.model[name]

    return change


def poke(index: int, to: float) -> Callable[[Any], Any]:
    def change(tensor: Any) -> Any:
        tensor = tensor.clone()
        tensor.view(-1)[index] = to
        return tensor

    return change


def truncated(tensor: torch.Tensor) -> torch.Tensor:
    """Return bfloat16 by cutting bits off."""
    bits = tensor.contiguous().view(torch.int32) & -65536
    return bits.view(torch.float32).bfloat16()


def truncate_all(state: Training) -> None:
    state.model = {name: truncated(tensor) for name, tensor in state.model.items()}


def truncate_one(state: Training) -> None:
    one = truncated(state.model[GATE])
    state.model = {name: tensor.bfloat16() for name, tensor in state.model.items()} | {GATE: one}


def in_file(pattern: str, *keys: Any, to: Callable[[Any], Any]) -> Callable[[Path], object]:
    """Change a file after it was written."""

    def change(folder: Path) -> None:
        (path,) = folder.rglob(pattern)
        content = torch.load(path, weights_only=False)
        at(*keys, to=to)(content)
        torch.save(content, path)

    return change


def another_step(state: Training) -> None:
    for name in list(state.model)[1::2]:
        state.model[name] += 0.01


def padded(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, torch.zeros(8, 16)])


def without(*words: str) -> Change:
    def change(state: Training) -> None:
        for name in [name for name in state.model if any(word in name for word in words)]:
            del state.model[name]

    return change


def joined_and_changed(state: Training) -> None:
    begin = "model.layers.2.self_attn."
    parts = [state.model.pop(f"{begin}{kind}_proj.weight") for kind in "qkv"]
    state.model[begin + "qkv_proj.weight"] = poke(300, 9.0)(torch.cat(parts))


def nothing(_: object) -> None:
    """Change nothing."""


def kqv(tensor: torch.Tensor) -> torch.Tensor:
    query, key, value = tensor.chunk(3)
    return torch.cat([key, query, value])


O = "model.layers.3.self_attn.o_proj.weight"  # noqa: E741
Q = "model.layers.0.self_attn.q_proj.weight"
BIAS = "model.layers.2.self_attn.q_proj.bias"
EMBED = "model.embed_tokens.weight"
GATE = "model.layers.1.moe.gate.weight"
CONV = "stem.conv.weight"
CORE_NORM = "decoder.layers.1.input_layernorm.weight"
CORE_FC1 = "decoder.layers.3.mlp.linear_fc1.weight"
EXPERTS = [f"model.layers.2.moe.experts.{i}.w1.weight" for i in range(4)]
ZERO_1 = "*zero_pp_rank_1_mp_rank_00_optim_states.pt"
MASTERS = ("optimizer_state_dict", "single_partition_of_fp32_groups", 0)


# Written after the code. The first time 51 of 58 came first with kind and place. Two expectations
# were wrong (two groups of equal shapes leave the names of the parameters open); four files with a
# class of modules in PyTorch's old format were refused, and one joined parameter was not found.
CASES = (
    Case("rows", "safetensors", on(O, lambda t: t[[1, 0, *range(2, 16)]]), "changed", O, experts),
    Case("scale", "shards", on(Q, lambda t: t * 1.0001), "changed", Q, experts),
    Case(
        "layers",
        "torch shards",
        layers_swapped("layers.0", "layers.1"),
        "changed",
        r"layers\.[01]\.",
        experts,
    ),
    Case(
        "experts", "safetensors", permuted(EXPERTS), "changed", r"layers\.2\.moe\.experts", experts
    ),
    Case("bias", "mindspore", without(BIAS), "removed", BIAS, experts),
    Case("cut bits", "coarse", truncate_all, "changed", "weight|bias", experts),
    Case("cut bits of one", "coarse", truncate_one, "changed", GATE, experts),
    Case(
        "nan in state",
        "torch",
        at("optimizer", "state", 0, "exp_avg_sq", to=poke(3, float("nan"))),
        "nonfinite",
        r"\.0\.exp_avg_sq",
        experts,
    ),
    Case(
        "step",
        "dcp",
        at("optimizer", "state", 0, "step", to=torch.tensor(21.0)),
        "changed",
        r"\.step$",
        experts,
    ),
    Case(
        "group 1",
        "trainer",
        at("optimizer", "param_groups", 1, "betas", to=(0.8, 0.95)),
        "changed",
        r"param_groups\.1\.betas",
        experts,
    ),
    Case(
        "amsgrad",
        "old torch",
        at("optimizer", "param_groups", 0, "amsgrad", to=True),
        "changed",
        r"0\.amsgrad",
        experts,
    ),
    Case(
        "frozen",
        "torch",
        lambda s: s.optimizer["state"].pop(1),
        "removed",
        r"\.1\.(step|exp_avg)",
        experts,
    ),
    Case(
        "reset",
        "trainer",
        at("optimizer", "state", 2, "exp_avg", to=torch.zeros(16, 16)),
        "changed",
        "exp_avg$",
        experts,
    ),
    Case("untied", "safetensors", on("lm_head.weight", poke(4, 2.0)), "changed", "lm_head", tied),
    Case(
        "untied storage",
        "torch",
        on("lm_head.weight", lambda t: t + 1e-5),
        "changed",
        "lm_head",
        tied,
    ),
    Case(
        "order of q k v", "shards", on("model.layers.1.qkv.weight", kqv), "changed", "qkv", packed
    ),
    Case(
        "joined, changed",
        "safetensors",
        joined_and_changed,
        "changed",
        "2.self_attn.qkv_proj",
        experts,
    ),
    Case("kernel", "npz", on(CONV, lambda t: t.transpose(0, 1)), "shape", CONV, experts),
    Case("kernel flipped", "dcp", on(CONV, lambda t: t.transpose(2, 3)), "changed", CONV, experts),
    Case("another step", "shards", another_step, "changed", "weight|bias", experts),
    Case("vocabulary", "npz", on(EMBED, padded), "shape", EMBED, experts),
    Case(
        "renamed, scaled",
        "safetensors",
        lambda s: (
            every(lambda n, t: t)(s)
            or s.__setattr__(
                "model",
                {
                    n.replace("o_proj", "out_proj"): t * 1.01 if "o_proj" in n else t
                    for n, t in s.model.items()
                },
            )
        ),
        "changed",
        "out_proj",
        experts,
    ),
    Case(
        "last layer gone", "torch shards", without("layers.3."), "removed", r"layers\.3\.", experts
    ),
    Case(
        "prefix",
        "torch",
        lambda s: (
            on(GATE, poke(0, 3.0))(s),
            s.__setattr__("model", {f"module.{n}": t for n, t in s.model.items()}),
        ),
        "changed",
        GATE,
        experts,
    ),
    Case(
        "overflow",
        "coarse",
        lambda s: (on(Q, poke(1, 1e6))(s), every(lambda n, t: t.half())(s)),
        "nonfinite",
        Q,
        experts,
    ),
    Case(
        "other infinity",
        "mindspore",
        on(O, poke(1, float("inf"))),
        "nonfinite",
        O,
        lambda: (lambda s: (on(O, poke(1, -float("inf")))(s), s)[1])(experts()),
    ),
    Case(
        "quarter",
        "blocks",
        on(Q, lambda t: torch.cat([t[:8], t[8:] * torch.arange(16).lt(8)])),
        "changed",
        Q,
        experts,
    ),
    Case(
        "sign of a moment",
        "zero 3",
        lambda s: s.moment(GATE).view(-1)[3].neg_(),
        "changed",
        f"{GATE}.exp_avg",
        experts,
    ),
    Case(
        "steps",
        "zero 2",
        at("values", "scheduler", "last_epoch", to=11),
        "changed",
        "step|last_epoch",
        experts,
    ),
    Case(
        "one partition",
        "zero 2",
        nothing,
        "contradiction",
        "weight",
        experts,
        in_file(ZERO_1, *MASTERS, to=lambda t: t + 0.5),
    ),
    Case(
        "replica",
        "megatron tp2",
        nothing,
        "contradiction",
        CORE_NORM,
        after=in_file("mp_rank_01/model_optim_rng.pt", "model", CORE_NORM, to=lambda t: t + 1),
    ),
    Case(
        "one rank",
        "megatron tp2",
        nothing,
        "changed",
        CORE_FC1,
        after=in_file("mp_rank_01/model_optim_rng.pt", "model", CORE_FC1, to=poke(9, 4.0)),
    ),
    Case("iteration", "megatron pp2", at("values", "epoch", to=4), "changed", "iteration"),
    Case(
        "stages",
        "megatron pp2",
        layers_swapped("layers.1.", "layers.2."),
        "changed",
        r"layers\.[12]\.",
    ),
    Case(
        "last bit",
        "npy",
        lambda a: a.__setitem__((2, 3), np.nextafter(a[2, 3], 9)),
        "changed",
        "x",
        lambda: np.arange(1.0, 31.0, dtype=np.float32).reshape(5, 6),
    ),
    Case(
        "average", "file", lambda t: t["weights"].update(t["ema"]), "changed", r"^weights\.", tree
    ),
    Case(
        "extra state",
        "file",
        at("weights", "net.0._extra_state", to=b"\x00\x02scales"),
        "changed",
        "_extra_state",
        tree,
    ),
    Case("field", "file", at("settings", "warmup", to=200), "changed", r"settings.*warmup", tree),
    Case("attribute", "old file", at("module", "gain", to=1.6), "changed", r"module.*gain", tree),
    Case("sparse", "file", at("adjacency", to=lambda t: t * 2), "changed", "adjacency", tree),
    Case(
        "sparse place",
        "file",
        at("adjacency", to=lambda t: torch.eye(4).roll(1, 1).to_sparse()),
        "changed",
        "adjacency",
        tree,
    ),
    Case(
        "imaginary",
        "file",
        at("spectrum", to=lambda t: t.conj().resolve_conj()),
        "changed",
        "spectrum",
        tree,
    ),
    Case(
        "batches",
        "old file",
        at("bn", "num_batches_tracked", to=torch.tensor(401)),
        "changed",
        "num_batches_tracked",
        tree,
    ),
    Case(
        "narrower",
        "file",
        at("bn", "num_batches_tracked", to=torch.tensor(400).int()),
        "dtype",
        "num_batches_tracked",
        tree,
    ),
    Case("mask", "file", at("mask", to=lambda t: ~t), "changed", "mask", tree),
    Case(
        "nibble",
        "file",
        at("packed", to=lambda t: t.bitwise_xor(torch.eye(32)[3].byte() * 16)),
        "changed",
        "packed",
        tree,
    ),
    Case(
        "fp8",
        "file",
        at("fp8", to=lambda t: torch.arange(16).float().flip(0).to(t.dtype)),
        "changed",
        "fp8",
        tree,
    ),
    Case("subnormal", "file", at("tiny", to=poke(2, 0.0)), "changed", "tiny", tree),
    Case(
        "deep",
        "old file",
        lambda t: t["queue"][1][1]["deep"].add_(1),
        "changed",
        r"queue.*deep",
        tree,
    ),
    Case(
        "milestone",
        "file",
        at("schedulers", 0, "milestones", 1, to=30),
        "changed",
        r"schedulers\.0\.milestones",
        tree,
    ),
    Case(
        "growth",
        "file",
        at("scaler", "growth_interval", to=1000),
        "changed",
        "growth_interval",
        tree,
    ),
    Case(
        "python rng",
        "file",
        at("python", to=(3, (7, *range(1, 20)), None)),
        "changed",
        r"^python",
        tree,
    ),
    Case("numpy number", "file", at("best", to=np.float64(0.7310001)), "changed", "best", tree),
    Case("commit", "old file", at("commit", to="0a1b2d"), "changed", "commit", tree),
    Case("set", "file", at("seen", to={"x", "z"}), "changed", "seen", tree),
    Case("none", "file", at("limit", to=0), "changed", "limit", tree),
    Case("one for true", "file", at("scaler", "enabled", to=1), "dtype", "enabled", tree),
    Case("complex number", "file", at("ratio", to=1 - 2j), "changed", "ratio", tree),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format}, {case.name}")
def test_a_planted_difference_comes_first(tmp_path: Path, case: Case) -> None:
    state = copy.deepcopy(case.start())
    case.change(state)
    target = WRITERS[case.format](tmp_path / "t", state)
    reference = WRITERS[case.format](tmp_path / "r", case.start())
    if case.after:
        case.after(target)
    kind, name = compare_checkpoints(target, reference).ranked()[0]
    assert kind == case.kind
    assert re.search(case.place, name)
