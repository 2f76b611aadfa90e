# SPDX-License-Identifier: Apache-2.0
"""At level L0 the verdict names the call, its argument or the labels, though none has a record."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import compared, fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402
from msprobe.triage.ladder import climb  # noqa: E402

pytestmark = [pytest.mark.torch]


class Mixer(nn.Module):
    """Attention by hand; `change` is what a person may have written otherwise."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.read = lambda name, value, default: value if change == name else default
        self.change = change

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        score = (q @ k.transpose(-1, -2)) * self.read("scale", 0.5, 0.25)
        score = score.masked_fill(mask, self.read("limit", -1.0, -1e9))
        weight = score.softmax(-2 if self.change == "axis" else -1)
        if self.change == "square":
            weight = weight.square()
        if self.change == "order":
            return functional.silu(self.out(weight @ v.tanh()))
        if self.change == "detached":
            v = v.detach()
        if self.change == "views":
            v = v.clone().view(v.shape).contiguous()
        return functional.silu(self.out((weight @ v).tanh()))


class Net(nn.Module):
    """Makes the mask that its parts are given."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.layers = nn.ModuleList([Mixer(change), Mixer(change)])
        self.head = nn.Linear(8, 9)
        self.change = change

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        size = ids.shape[1]
        mask = torch.ones(size, size, dtype=torch.bool).triu(0 if self.change == "mask" else 1)
        if self.change == "mask":
            mask = mask & ~torch.eye(size, dtype=torch.bool)
            mask[0, 1] = False
        x = self.embed(ids)
        if self.change == "noise":
            x = x + 0.1 * x.sin()
        for layer in self.layers:
            x = x + layer(x, mask)
        return self.head(x)


def program(debugger: PrecisionDebugger, change: str | None) -> None:
    model = Net(change)
    loaded, labels = torch.randint(0, 9, (3, 2, 5)), torch.randint(0, 9, (10,))
    if change == "labels":
        labels[3] = (labels[3] + 1) % 9

    def loss(_: int) -> torch.Tensor:
        batch = loaded[1 if change == "next" else 0]
        if change == "cut":  # which calls make a batch may depend on what is loaded
            batch = functional.pad(batch[:, :4], (0, 1))
        out = model(batch).flatten(0, 1)
        if change == "rounded":
            out = out.to(torch.bfloat16).float()
        loss = functional.cross_entropy(
            out,
            labels,
            weight=torch.arange(1.0, 10.0) if change == "weight" else None,
            label_smoothing=0.1 if change == "smoothing" else 0.0,
            reduction="sum" if change == "summed" else "mean",
        )
        near = out if change == "summed" else out.float()  # a cast that is none
        loss = loss + 0.001 * near.abs().mean()
        if change == "penalty":
            loss = loss + 0.1 * out.square().mean()
        if change == "halved":
            loss = loss / 2
        return loss

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


def with_line(words: str) -> str:
    """Words in which ``@code)`` is the line of this file with that code."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    before, at, rest = words.partition("@")
    code, _, after = rest.partition(")")
    number = next((i for i, line in enumerate(lines, 1) if code in line), 0)
    return f"{before}{Path(__file__).name}:{number}){after}" if at else words


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ("scale", "argument", r"argument 1 of Tensor.__mul__ (@score = (q) is 0.5 in the"),
        ("limit", "argument", r"value of Tensor.masked_fill (@masked_fill) is -1.0 in the target"),
        ("axis", "argument", r"dim of Tensor.softmax (@score.softmax) is -2 in the target, -1 in"),
        ("square", "call", r"only the target calls Tensor.square (@weight.square)"),
        ("order", "order", r"Tensor.tanh (@v.tanh) is called where the reference calls Tensor."),
        ("mask", "argument", r"diagonal of Tensor.triu (@triu) is 0 in the target, 1 in the ref"),
        ("noise", "call", r"only the target calls Tensor.sin (@x.sin)"),
        ("weight", "argument", r"weight of Functional.cross_entropy (@functional.cross_entropy)"),
        ("smoothing", "argument", r"label_smoothing of Functional.cross_entropy"),
        ("penalty", "call", r"only the target calls Tensor.square (@out.square)"),
        ("cut", "data", r"data: the batch of step 0 differs"),
        ("next", "data", r"the batch of step 0 differs"),
        ("halved", "gradient", r"the factor is 1/2"),
        ("rounded", "precision", r"only the target calls Tensor.to (@out.to)"),
        ("detached", "call", r"only the target calls Tensor.detach (@v.detach)"),
        (
            "summed",
            "argument",
            r"reduction of Functional.cross_entropy (@functional.cross_entropy)",
        ),
        (
            "labels",
            "data",
            "argument 1 of Functional.cross_entropy (@functional.cross_entropy), a tensor without",
        ),
    ],
)
def test_what_differs_between_modules_is_named(
    change: str, expected: str, words: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, program, change, level="L0")
    assert verdict["class"] == expected, verdict["sentence"]
    assert with_line(words) in verdict["sentence"]


@pytest.mark.parametrize("change", [None, "views"])
def test_another_way_to_the_same_results_is_equal(change: str | None, tmp_path: Path) -> None:
    summary = compared(tmp_path, program, change, level="L0")
    assert summary["verdict"]["class"] == "equal"
    assert summary["verdict"]["confidence"] == "proved"
    assert not summary["introduced"]


def by_its_parts(debugger: PrecisionDebugger, change: str | None) -> None:
    """A program that calls the parts of its model itself, as a ``training_step`` does."""
    parts = nn.ModuleDict({"embed": nn.Embedding(9, 8), "norm": nn.LayerNorm(8)})
    parts["head"] = nn.Linear(8, 9)
    ids, labels = torch.randint(0, 9, (2, 5)), torch.randint(0, 9, (10,))

    def loss(_: int) -> torch.Tensor:
        x = parts["embed"](ids)
        if change == "louder":
            x = x.mul(4)
        if change == "turned":
            x = x.flip(-1)
        x = parts["norm"](x)
        if change != "linear":
            x = x.cosh()
        return functional.cross_entropy(parts["head"](x).flatten(0, 1), labels)

    fit(debugger, parts, torch.optim.SGD(parts.parameters(), 0.1), loss)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("louder", r"only the target calls Tensor.mul (@x.mul)"),
        ("turned", r"only the target calls Tensor.flip (@x.flip)"),
        ("linear", r"only the reference calls Tensor.cosh (@x.cosh)"),
    ],
)
def test_what_differs_between_models_is_named(change: str, words: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, by_its_parts, change, level="L0")
    assert verdict["class"] == "call", verdict["sentence"]
    assert with_line(words) in verdict["sentence"]


class Erf(nn.Module):
    """The exact form of an activation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x)


class Halves(nn.Module):
    """The same, written in another way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


class Tanh(nn.Module):
    """An approximation of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x, approximate="tanh")


class Feed(nn.Module):
    """Two layers and what is between them."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.enter, self.act, self.leave = nn.Linear(8, 16), act, nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.act(self.enter(x)))


def feeding(debugger: PrecisionDebugger, act: nn.Module) -> None:
    model = nn.Sequential(Feed(act), nn.LayerNorm(8), Feed(act))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    # Where numbers are small, the results of the module around differ within their tolerance.
    x = 0.03 * torch.randn(32, 8)

    fit(debugger, model, optimizer, lambda _: model(x).square().mean())


@pytest.mark.parametrize(
    ("act", "classes"), [(Tanh(), {"call"}), (Halves(), {"equal", "rounding"})]
)
def test_an_approximation_is_no_rounding(act: nn.Module, classes: set[str], tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, feeding, act, Erf(), level="L0")
    assert verdict["class"] in classes, verdict["sentence"]


def following(debugger: PrecisionDebugger, change: float) -> None:
    """A second model follows the first, as the target of a value function does."""
    models = [nn.Linear(4, 2), nn.Linear(4, 2)]
    optimizer = torch.optim.SGD(models[0].parameters(), 0.1)
    for _ in recorded_steps(debugger, models):
        x = torch.randn(3, 4)
        with torch.no_grad():
            wanted = models[1](x)
        functional.mse_loss(models[0](x), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
            for leading, parameter in pairs:
                parameter.lerp_(leading, change)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_model_that_follows_another_faster(level: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, following, 0.2, 0.1, level)

    assert verdict["class"] == "update", verdict["sentence"]
    assert "Tensor.lerp_" in verdict["sentence"]
    assert re.search("0.2 (in the target, 0.1 in|instead of 0.1)", verdict["sentence"])


def averaging(debugger: PrecisionDebugger, is_reversed: bool) -> None:
    """An average of the weights follows them, or they follow it; it is a part of the model."""
    layer = nn.Linear(4, 2)
    model = nn.ModuleDict({"layer": layer, "average": copy.deepcopy(layer).requires_grad_(False)})
    optimizer = torch.optim.Adam(layer.parameters(), 0.01)
    for _ in recorded_steps(debugger, model):
        layer(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for average, own in zip(model["average"].parameters(), layer.parameters(), strict=True):
                written, read = (own, average) if is_reversed else (average, own)
                written.lerp_(read, 0.1)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("is_reversed", [True, False])
def test_an_average_that_is_written_the_other_way_round(
    level: str, is_reversed: bool, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, averaging, is_reversed, not is_reversed, level)

    assert verdict["class"] == "update", verdict["sentence"]
    assert "differ when step 1 starts" in verdict["sentence"]
    words = r"input.0 and input.1 of Tensor.lerp_.0.forward \(.*\) are interchanged, step 0"
    assert re.search(words, verdict["sentence"]), verdict["sentence"]


class Adapted(nn.Module):
    """A layer with an adapter that adds nothing at first."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.base = scale, nn.Linear(4, 4)
        self.down = nn.Parameter(torch.randn(4, 2))
        self.up = nn.Parameter(torch.zeros(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.down @ self.up * self.scale


def adapting(debugger: PrecisionDebugger, model: Adapted) -> None:

    def loss(_: int) -> torch.Tensor:
        return model(torch.randn(3, 4)).square().mean()

    fit(debugger, model, torch.optim.SGD([model.down, model.up], 0.1), loss, zero_first=False)


def of_scale(debugger: PrecisionDebugger, change: float) -> None:
    adapting(debugger, Adapted(change))


class Divided(Adapted):
    """Divides what the adapter adds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.down @ self.up / self.scale


def of_kind(debugger: PrecisionDebugger, kind: type[Adapted]) -> None:
    adapting(debugger, kind(2.0))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_division_by_which_gradients_alone_shrink(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, of_kind, Divided, Adapted, level)

    assert verdict["class"] == "call", verdict["sentence"]
    assert "Tensor.__truediv__" in verdict["sentence"]


def twice_divided(debugger: PrecisionDebugger, change: bool) -> None:
    """A trainer divides each loss; the program perhaps does so before."""
    model = nn.Linear(4, 2)

    def trained(loss: torch.Tensor) -> torch.Tensor:
        return loss / 2

    def loss(_: int) -> torch.Tensor:
        made = model(torch.randn(3, 4)).square().mean()
        if change:
            made = made / 2
        return trained(made)

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


def test_of_two_divisions_the_line_of_one_side_alone_is_told(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, twice_divided, True, False, "L0")

    assert verdict["class"] == "gradient", verdict["sentence"]
    words = with_line("only the target calls Tensor.__truediv__ (@made = made / 2)")
    assert words in verdict["sentence"]


def test_a_number_by_which_gradients_alone_grow(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, of_scale, 4.0, 2.0, "L0")

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "is 4.0 in the target, 2.0 in the reference" in verdict["sentence"]


def sharpness(debugger: PrecisionDebugger, change: str | None) -> None:
    """Parameters are moved for a second loss, and moved back."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in recorded_steps(debugger, model):
        x = torch.randn(3, 4)
        model(x).square().mean().backward()
        moves = [
            parameter.grad * (0.4 if change == "far" else 0.2) for parameter in model.parameters()
        ]
        model.zero_grad()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.add_(move)
        model(x).square().mean().backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                if change != "left":
                    parameter.sub_(move)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ("far", "argument", "is 0.4 in the target, 0.2 in the reference"),
        ("left", "call", "only the reference calls Tensor.sub_"),
    ],
)
def test_parameters_that_the_program_moves(
    tmp_path: Path, change: str, expected: str, words: str
) -> None:
    verdict = verdict_on(tmp_path, sharpness, change, None, "L0")

    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]
    assert climb(tmp_path / "target", tmp_path / "reference").verdict["class"] == expected


class Biased(nn.Module):
    """Attention that prefers what is near, by as little as bfloat16 resolves."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.bias, self.enter, self.leave = bias, nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.enter(x).chunk(3, -1)
        apart = (torch.arange(16)[:, None] - torch.arange(16)).abs()
        score = q @ k.transpose(-1, -2) * 0.2 + apart * self.bias
        return self.leave(score.softmax(-1) @ v)


def biased(debugger: PrecisionDebugger, bias: float) -> None:
    model = Biased(bias)

    def loss(_: int) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            found = model(torch.randn(8, 16, 32) + 0.3)
        return found.float().square().mean()

    fit(debugger, model, torch.optim.AdamW(model.parameters(), 1e-3), loss, zero_first=False)


def test_what_moves_as_a_whole_is_told_with_the_call_before_it(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, biased, -0.03, -0.02, "L0")

    assert verdict["confidence"] != "proved", verdict["sentence"]
    assert "is -0.03 in the target, -0.02 in the reference" in verdict["sentence"]


def gating(debugger: PrecisionDebugger, way: str) -> None:
    """A loss leaves out what is small; `way` is how a person writes that, and what follows."""
    model = nn.Linear(4, 4)

    def loss(_: int) -> torch.Tensor:
        x = model(torch.randn(6, 4))
        x = x.masked_fill(x < 0, 0 if way == "whole" else 0.0)
        if way == "whole":
            x = x.tanh()
        if way == "nothing":
            x = x / float("inf")
        return x.square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)


@pytest.mark.parametrize(
    ("way", "call"), [("whole", "Tensor.tanh"), ("nothing", "Tensor.__truediv__")]
)
def test_zeros_of_two_types_are_alike_and_infinity_is_no_scale(
    tmp_path: Path, way: str, call: str
) -> None:
    verdict = verdict_on(tmp_path, gating, "", way, "L0")

    assert verdict["class"] == "call", verdict["sentence"]
    assert f"only the reference calls {call}" in verdict["sentence"]
    assert "more call" not in verdict["sentence"]


def with_noise(debugger: PrecisionDebugger, change: str) -> None:
    """Give a model a batch with noise, by calls that both sides make but for one."""
    model = nn.Linear(8, 4)
    data = torch.randn(3, 8, 8)

    def loss(number: int) -> torch.Tensor:
        x = data[number][torch.randint(0, 7 if change == "sample" else 8, (8,))]
        x = x * 1.5 if change == "larger" else x
        x = x + 0.1 * torch.randn(1 if change == "shared" else 8, 8)
        return model(x).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        ("shared", "argument", "argument 0 of Torch.randn"),
        ("larger", "call", "only the target calls Tensor.__mul__"),
        ("sample", "data", "the batch of step 0 differs"),
    ],
)
def test_noise_and_what_is_written_before_the_model_are_no_data(
    tmp_path: Path, change: str, kind: str, told: str
) -> None:
    verdict = verdict_on(tmp_path, with_noise, change, "", "L0")

    assert verdict["class"] == kind, verdict["sentence"]
    assert told in verdict["sentence"]


class Parts(nn.Module):
    """Two parts, called one after the other, in another order by `change`."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [self.parts[self.place(i)](x[:, i].tanh()) for i in range(2)]
        return torch.stack(made, dim=1)

    def place(self, number: int) -> int:
        return 1 - number if self.change == "turned" else number


def test_what_comes_behind_a_part_is_not_missing(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        model, x = Parts(change), torch.arange(24.0).view(3, 2, 4) / 9
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        fit(debugger, model, optimizer, lambda _: model(x).square().mean())

    compared(tmp_path, run, "turned", None, level="L0")
    for path in tmp_path.rglob("facts.json"):  # as older dumps, which tell no flow
        facts = json.loads(path.read_text("utf-8"))
        facts["outline"].pop("fed", None)
        path.write_text(json.dumps(facts), "utf-8")
    sides = tmp_path / "target", tmp_path / "reference"
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "order", verdict["sentence"]
    assert re.search(
        r"Module.parts.1.Linear.forward.0 \(.*\) is called before "
        r"Module.parts.0.Linear.forward.0 in the target, after it in the reference",
        verdict["sentence"],
    ), verdict["sentence"]


coarse: set[bool] = set()  # not an attribute of a module: comparisons would name it


class Coarse(nn.Module):
    """A convolution that may be written as a function, in a coarse type."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if True in coarse:
            weights = self.conv.weight.bfloat16(), self.conv.bias.bfloat16()
            made = functional.conv2d(x.bfloat16(), *weights, 2, 1).float()
        else:
            made = self.conv(x)
        return self.head(made.mean((2, 3)))


def convolving(debugger: PrecisionDebugger, is_coarse: bool) -> None:
    coarse.clear()
    coarse.add(is_coarse)
    model = Coarse()

    def loss(_: int) -> torch.Tensor:
        return model(torch.randn(3, 2, 8, 8)).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


def test_one_number_for_all_axes_is_no_other_argument(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, convolving, True, False, "L0")

    assert verdict["class"] == "precision", verdict["sentence"]
    assert "Tensor.bfloat16" in verdict["sentence"]


def matching(debugger: PrecisionDebugger, change: str) -> None:
    """The loss is that of the box which is nearest to the true one."""
    layers = nn.Linear(4, 12), nn.Linear(12, 12)
    truth = torch.rand(3, 2, 4) + 0.3 * (change == "truth")

    def loss(number: int) -> torch.Tensor:
        first = layers[0](torch.randn(2, 4))
        second = layers[1](first)
        total = torch.zeros(())
        for made in (first, first if change == "first" else second):
            for boxes, wanted in zip(made.unflatten(-1, (3, 4)), truth[number], strict=True):
                costs = (boxes.detach() - wanted).square().sum(-1).tolist()
                best = torch.tensor([costs.index(min(costs))])
                total = total + functional.l1_loss(boxes[best], wanted[None])
        return total

    models = nn.ModuleList(layers)
    fit(debugger, models, torch.optim.SGD(models.parameters(), 0.1), loss)


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ("truth", "data", "a tensor without a gradient, differs"),
        ("first", "argument", "is fed with the result of"),
    ],
)
def test_places_that_are_chosen_by_values_are_no_cause(
    change: str, expected: str, words: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, matching, change, "", "L0")

    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]
