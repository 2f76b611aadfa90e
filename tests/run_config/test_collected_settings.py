# SPDX-License-Identifier: Apache-2.0
"""Settings of a running training: each one that is changed is the difference that is found."""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from msprobe.config_check import ConfigChecker  # noqa: E402
from msprobe.run_config.comparing import compare_packs  # noqa: E402
from msprobe.run_config.levels import Level  # noqa: E402
from msprobe.run_config.pack import read_pack  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def restored():
    yield
    ConfigChecker.remove_patches()


class Net(torch.nn.Module):
    def __init__(self, *, p: float = 0.1, eps: float = 1e-5, act: Any = torch.relu) -> None:
        super().__init__()
        self.a = torch.nn.Linear(4, 8)
        self.norm = torch.nn.LayerNorm(8, eps=eps)
        self.drop = torch.nn.Dropout(p)
        self.act = act
        self.b = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.b(self.drop(self.act(self.norm(self.a(x)))))


def run(path: Path, **changed: Any) -> Path:
    """Train for two steps with one setting changed; return the pack."""
    settings: dict[str, Any] = dict(  # noqa: C408
        p=0.1, eps=1e-5, act=torch.relu, optimizer=torch.optim.AdamW, options={},
        gamma=0.9, train=True, frozen=False, clip=1.0, autocast=False, shuffle=False, scale=None,
    )  # fmt: skip
    settings |= changed
    torch.manual_seed(7)
    net = Net(p=settings["p"], eps=settings["eps"], act=settings["act"])
    net.train(settings["train"])
    net.a.bias.requires_grad_(not settings["frozen"])
    options = {"lr": 0.1, **settings["options"]}
    optimizer = settings["optimizer"](net.parameters(), **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=settings["gamma"])
    data = torch.utils.data.TensorDataset(torch.arange(32.0).reshape(8, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=settings["shuffle"])
    scaler = torch.amp.GradScaler("cpu", init_scale=settings["scale"] or 1.0,
                                  enabled=settings["scale"] is not None)  # fmt: skip
    ConfigChecker(net, None, path, max_steps=2)
    for (x,) in loader:
        with torch.autocast("cpu", enabled=settings["autocast"]):
            loss = net(x).square().mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), settings["clip"])
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return path


@pytest.mark.parametrize(
    ("changed", "item", "name", "values"),
    [
        ({"p": 0.2}, "modules", "module.drop", ("Dropout(p=0.1, inplace=False)",
                                                "Dropout(p=0.2, inplace=False)")),
        ({"act": torch.tanh}, "modules", "module.act", ("relu", "tanh")),
        ({"options": {"lr": 0.2}}, "optimizer", "optimizer.0.group.0.lr", ("0.1", "0.2")),
        ({"options": {"betas": (0.9, 0.99)}}, "optimizer", "optimizer.0.group.0.betas",
         ("[0.9, 0.999]", "[0.9, 0.99]")),
        ({"options": {"weight_decay": 0.5}}, "optimizer", "optimizer.0.group.0.weight_decay",
         ("0.01", "0.5")),
        ({"optimizer": torch.optim.Adam, "options": {"weight_decay": 0.01}}, "optimizer",
         "optimizer.0.class", ("torch.optim.adamw.AdamW", "torch.optim.adam.Adam")),
        ({"gamma": 0.5}, "schedule", "schedule.0.gamma", ("0.9", "0.5")),
        ({"train": False}, "modes", "training.model", ("True", "False")),
        ({"frozen": True}, "modes", "requires_grad.a.bias", (None, "False")),
        ({"autocast": True}, "modes", "autocast.cpu", (None, "torch.bfloat16")),
        ({"clip": 0.5}, "clip", "clip_grad_norm_.max_norm", ("1.0", "0.5")),
        ({"shuffle": True}, "loader", "loader.0.sampler", ("SequentialSampler", "RandomSampler")),
        ({"scale": 1024.0}, "scaler", "scaler.0.init_scale", (None, "1024.0")),
    ],
)  # fmt: skip
def test_a_changed_setting_is_found(tmp_path: Path, changed, item, name, values) -> None:
    bench, cmp = run(tmp_path / "a.zip"), run(tmp_path / "b.zip", **changed)
    found = compare_packs(bench, cmp).items[item].differences
    assert (name, *values) in [(each.name, each.bench, each.cmp) for each in found]


def test_lists_of_lists_among_the_arguments(tmp_path: Path) -> None:
    given = argparse.Namespace(stages=[[1, 2], [3]], places=["x"])
    bench = run(tmp_path / "a.zip")
    given.stages = [[1, 2], [4]]
    found = compare_packs(bench, run(tmp_path / "b.zip"))
    assert found.conclusion.difference is not None, found.conclusion.sentence
    assert "stages" in found.conclusion.difference.name
    assert found.items["optimizer"].compared


def test_flags_of_absl_in_an_object_of_their_own(tmp_path: Path) -> None:
    flags = pytest.importorskip("absl.flags")
    own = flags.FlagValues()
    flags.DEFINE_float("own_decay", 0.1, "", flag_values=own)
    own(["train.py"])
    bench = run(tmp_path / "a.zip")
    own.own_decay = 0.2
    found = compare_packs(bench, run(tmp_path / "b.zip")).conclusion
    assert found.difference is not None, found.sentence
    assert found.difference.name == "own_decay"


def test_equal_settings_pass(tmp_path: Path) -> None:
    found = compare_packs(run(tmp_path / "a.zip"), run(tmp_path / "b.zip"))
    assert found.level is Level.PASS, found.differences()
    for item in ("modules", "optimizer", "schedule", "clip", "loader", "modes"):
        assert found.items[item].compared


def test_another_eps_is_a_setting_of_its_module(tmp_path: Path) -> None:
    found = compare_packs(run(tmp_path / "a.zip"), run(tmp_path / "b.zip", eps=1e-3))
    (difference,) = found.items["modules"].differences
    assert difference.name == "module.norm"
    assert "eps=0.001" in difference.cmp


def test_tied_parameters_are_a_setting_of_the_model(tmp_path: Path) -> None:
    for name in "ab":
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        if name == "b":
            net[1].weight = net[0].weight
        ConfigChecker(net, None, tmp_path / f"{name}.zip", max_steps=1)
        net(torch.ones(1, 4))
    found = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip").conclusion
    assert found.difference is not None
    assert found.difference.name == "module.1.weight"
    assert found.difference.cmp == "tied to 0.weight"


def test_long_values_are_shown_where_they_differ(tmp_path: Path) -> None:
    for name, track in (("a", True), ("b", False)):
        net = torch.nn.BatchNorm1d(4, track_running_stats=track)
        ConfigChecker(net, None, tmp_path / f"{name}.zip", max_steps=1)
        net(torch.ones(2, 4))
    sentence = compare_packs(tmp_path / "a.zip", tmp_path / "b.zip").conclusion.sentence
    assert "…track_running_stats=True) → …track_running_stats=False)" in sentence


def test_clipping_functions_are_put_back(tmp_path: Path) -> None:
    before = torch.nn.utils.clip_grad_norm_
    ConfigChecker(Net(), None, tmp_path / "a.zip")
    assert torch.nn.utils.clip_grad_norm_ is not before
    ConfigChecker.remove_patches()
    assert torch.nn.utils.clip_grad_norm_ is before
    assert torch.nn.utils.clip_grad.clip_grad_norm_ is before


def test_the_arguments_of_the_program(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "model.yaml").write_text("model: {hidden: 64}\n")
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--settings-file")
    given = parser.parse_args(
        ["--learning-rate", "0.5", "--settings-file", str(tmp_path / "model.yaml")]
    )
    monkeypatch.setattr(sys, "argv", ["train.py", "--mystery", "7", "-b", "32", "model.dim=9"])
    ConfigChecker(None, None, tmp_path / "a.zip")
    found = read_pack(tmp_path / "a.zip").arguments["hyperparameters_dynamic.json"]
    assert given.learning_rate == found["learning_rate"] == 0.5
    assert (found["mystery"], found["b"], found["model.dim"]) == ("7", "32", "9")
    assert found["settings_file:model.hidden"] == 64


SCRIPT = """
import dataclasses, sys
from pathlib import Path
from msprobe.config_check import ConfigChecker

@dataclasses.dataclass
class Settings:
    depth: int = 3
    name: str = "x"

settings = Settings()
ConfigChecker(None, None, sys.argv[1])
"""


def test_the_users_code_and_dataclasses(tmp_path: Path) -> None:
    script = tmp_path / "code" / "train.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "a.zip")]
    subprocess.run(command, check=True, cwd=tmp_path)
    pack = read_pack(tmp_path / "a.zip")
    assert pack.arguments["hyperparameters_dynamic.json"] == {"depth": 3, "name": "x"}
    assert len(pack.system["code.train.py"]) == 16


def test_a_recording_holds_the_same_settings(tmp_path: Path) -> None:
    from msprobe import open_dump
    from msprobe.capture.session import reset_session
    from msprobe.pytorch import PrecisionDebugger

    reset_session()
    try:
        debugger = PrecisionDebugger(dump_path=str(tmp_path / "dump"), level="L0")
        net = Net(p=0.3)
        debugger.start(net)
        net(torch.ones(2, 4)).sum().backward()
        debugger.stop()
    finally:
        reset_session()
    facts = open_dump(tmp_path / "dump").step().rank().facts
    assert facts.settings["module.drop"] == "Dropout(p=0.3, inplace=False)"
    assert facts.settings["module.act"] == "relu"


class Broken(torch.nn.Module):
    """A module and a loader whose own code fails when it is asked."""

    def extra_repr(self) -> str:
        raise KeyError("not now")

    def forward(self, x):
        return x


class Endless(torch.utils.data.IterableDataset):
    def __len__(self) -> int:
        raise AttributeError("endless")

    def __iter__(self):
        return iter(())


class Odd(torch.optim.SGD):
    @property
    def param_groups(self):
        raise KeyError("half made")

    @param_groups.setter
    def param_groups(self, value):
        """Forget it."""


def test_objects_that_cannot_be_read_do_not_reach_the_training(tmp_path: Path) -> None:
    odd = Odd.__new__(Odd)
    loader = torch.utils.data.DataLoader(Endless())
    model = torch.nn.Sequential(Broken(), torch.nn.Linear(2, 1))
    ConfigChecker(model, None, tmp_path / "a.zip", max_steps=1)
    assert model(torch.ones(1, 2)).shape == (1, 1)
    found = read_pack(tmp_path / "a.zip")
    assert found.training[0]["modules"]["module.1"].startswith("Linear(")
    assert found.weights
    del odd, loader


class Closed(torch.nn.Linear):
    def named_modules(self, *_args, **_kwargs):
        raise ZeroDivisionError("not through here")


def test_a_model_that_refuses_to_be_looked_through_keeps_the_other_settings() -> None:
    from msprobe.pytorch.training.training_settings import training_settings

    closed, plain = Closed(2, 2), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    found = training_settings([("0", closed), ("1", plain)], {"optimizer": [optimizer]})
    assert found["modules"]["module.0"] == "Closed: unreadable, ZeroDivisionError"
    assert found["modules"]["module.1"].startswith("Linear(")
    assert any(value == "0.5" for value in found["optimizer"].values())


def test_objects_of_the_programs_own_classes_are_told(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "helpers_of_user.py").write_text("class Ema:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    helpers = __import__("helpers_of_user")
    packs = []
    for decay in (0.99, 0.999):
        kept = helpers.Ema()
        kept.decay, kept.log_dir, kept.mask = decay, f"/logs/{decay}", torch.ones(3)
        packs.append(run(tmp_path / f"{decay}.zip"))
        del kept
    found = compare_packs(*packs)
    assert [each.name for each in found.differences()] == ["object.Ema.0.decay"]
    assert found.level is Level.WARNING
    assert (
        read_pack(packs[0]).training[0]["objects"]["object.Ema.0.mask.values"].startswith("Tensor")
    )


class Private:
    """An object whose settings are private attributes."""

    def __init__(self, rate: float) -> None:
        self._rate = rate


class Unseen:
    """An object whose settings cannot be seen."""

    __slots__ = ("_rate",)


@pytest.mark.parametrize(
    ("values", "level", "words"),
    [
        ((Private(0.1), Private(0.2)), Level.ERROR, "rate"),
        ((Unseen(), Unseen()), Level.WARNING, "no more than its class is known"),
        ((threading.Lock(), threading.Lock()), Level.PASS, "nothing"),
        (
            (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
            Level.ERROR,
            "seed 1",
        ),
    ],
)
def test_an_object_passes_only_if_its_settings_are_known(
    tmp_path: Path, monkeypatch, values: tuple[object, object], level: Level, words: str
) -> None:
    start, packs = Net.__init__, []
    for number, value in enumerate(values):

        def with_thing(self, thing: object = value, **given: Any) -> None:
            start(self, **given)
            self.thing = thing

        monkeypatch.setattr(Net, "__init__", with_thing)
        packs.append(run(tmp_path / f"{number}.zip"))
    found = compare_packs(*packs)
    assert found.level is level
    assert words in found.conclusion.sentence
