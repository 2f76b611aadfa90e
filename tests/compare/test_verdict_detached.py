# SPDX-License-Identifier: Apache-2.0
"""Values that one side takes without their gradient."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from builders.recordings import recording  # noqa: E402
from builders.two_runs import fit, verdict_on  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402
from msprobe.pytorch.values.memo import TENSORS  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(TENSORS is None, reason="value_id needs the C extension"),
]


class Flow(nn.Module):
    """A scale and a shift; the logarithm of the scale is a term of the loss."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.net, self.own = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        self.place = place

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.net(x).tanh()
        y = x * scale.exp() - (scale.detach() if self.place == "argument" else scale)
        if self.place == "behind":
            scale = scale.detach()
        return y, scale.sum(1) + self.own.sum()


def recorded(folder: Path, place: str) -> Path:
    torch.manual_seed(2)
    model = Flow(place)
    with recording(folder, "mix") as observed:
        for x in torch.randn(2, 5, 4):
            with observed.step_of(model):
                x.requires_grad_()
                y, logarithm = model(x)
                # A first backward pass that asks for the gradient of the data alone.
                (slope,) = torch.autograd.grad(logarithm.sum() + y.sum(), x, create_graph=True)
                (y.square().sum() + slope.square().sum()).backward()
    return folder


@pytest.mark.parametrize(
    ("place", "call"), [("argument", "Tensor.__sub__.0.backward"), ("behind", "Tensor.sum.")]
)
def test_what_is_detached_is_said_to_be(tmp_path: Path, place: str, call: str) -> None:
    sides = recorded(tmp_path / "target", place), recorded(tmp_path / "reference", "")
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "gradient"
    assert call in verdict["sentence"]
    assert "is given it detached in the target" in verdict["sentence"]


class Behind(nn.Module):
    """Its first layer may run without gradients; one side alone has further calls behind it."""

    def __init__(self, *, is_frozen: bool, further: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.is_frozen, self.further = is_frozen, further

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.is_frozen):
            x = self.first(x)
        for _ in range(0 if self.is_frozen else self.further):
            x = x.clone()
        return self.second(x)


@pytest.mark.parametrize("further", [1, 2])
def test_calls_behind_what_is_computed_without_gradients_do_not_make_them(
    tmp_path: Path, further: int
) -> None:
    for name, is_frozen in (("target", True), ("reference", False)):
        torch.manual_seed(2)
        model = Behind(is_frozen=is_frozen, further=further)
        with recording(tmp_path / name, "L1") as observed, observed.step_of(model):
            model(torch.ones(3, 4)).square().mean().backward()
    sides = tmp_path / "target", tmp_path / "reference"
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "gradient"
    assert "clone" not in verdict["sentence"]


class Copied(nn.Module):
    """One side alone copies a value where no gradients are recorded: the copy has the same."""

    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.first, self.second, self.copies = nn.Linear(4, 4), nn.Linear(4, 4), copies

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        if self.copies:
            with torch.no_grad():
                x = x.clone()
        return self.second(x)


def test_a_call_of_one_side_that_cuts_the_graph_is_named(tmp_path: Path) -> None:
    for name, copies in (("target", True), ("reference", False)):
        torch.manual_seed(2)
        model = Copied(copies=copies)
        with recording(tmp_path / name, "mix") as observed, observed.step_of(model):
            model(torch.ones(3, 4)).square().mean().backward()
    sides = tmp_path / "target", tmp_path / "reference"
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the target calls Tensor.clone" in verdict["sentence"]


class Book(nn.Module):
    """Values are replaced by the nearest of a book, which learns from them, and they from it."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.into, self.book, self.out = nn.Linear(8, 16), nn.Embedding(12, 16), nn.Linear(16, 8)
        self.change = change

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.into(x)
        near = self.book(torch.cdist(z, self.book.weight).argmin(-1))
        own = z.detach() if self.change == "nothing learns" else z
        kept = near if self.change == "both learn" else near.detach()
        drawn = (kept - own).square().mean()
        drawing = (near - z.detach()).square().mean()
        return self.out(z + (near - z).detach()), 0.25 * drawn + drawing


def of_book(debugger: PrecisionDebugger, change: str | None) -> None:
    model = Book(change)
    data = torch.randn(3, 10, 8)

    def loss(number: int) -> Tensor:
        y, terms = model(data[number])
        return (y - data[number]).square().mean() + terms

    fit(debugger, model, torch.optim.Adam(model.parameters(), 1e-3), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("change", ["both learn", "nothing learns"])
def test_a_gradient_of_one_side_alone_is_no_multiple(
    tmp_path: Path, change: str, level: str
) -> None:
    sentence = verdict_on(tmp_path, of_book, change, level=level)["sentence"]
    assert "Tensor.__sub__.0.backward" in sentence, sentence
    assert "the forward call is given it detached in the" in sentence


def of_ratio(debugger: PrecisionDebugger, change: str | None) -> None:
    """A call is given the same values twice, once without their gradient."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    data = torch.randn(3, 4, 6)

    def loss(number: int) -> Tensor:
        scores = model(data[number]).log_softmax(-1)
        old = scores if change else scores.detach()
        return ((scores - old).exp() * data[number, :, :5]).mean()

    fit(debugger, model, torch.optim.Adam(model.parameters(), 1e-2), loss)


def test_what_is_given_twice_is_detached_once(tmp_path: Path) -> None:
    sentence = verdict_on(tmp_path, of_ratio, "kept")["sentence"]
    assert "is given it detached in the reference" in sentence, sentence


class Tied(nn.Module):
    """A table that is used at both ends; what lies between may be cut off."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.table, self.place, self.norm = nn.Embedding(9, 6), nn.Embedding(5, 6), nn.LayerNorm(6)
        self.change = change

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids) + self.place(torch.arange(5))
        return self.norm(x.detach() if self.change else x) @ self.table.weight.T


def of_tied(debugger: PrecisionDebugger, change: str | None) -> None:
    model = Tied(change)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    ids = torch.randint(0, 9, (3, 4, 5))

    fit(debugger, model, optimizer, lambda number: model(ids[number]).logsumexp(-1).mean())


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_cut_is_named_and_not_the_sums_of_gradients(tmp_path: Path, level: str) -> None:
    sentence = verdict_on(tmp_path, of_tied, "cut", level=level)["sentence"]
    assert "layer_norm.0.backward" in sentence, sentence
    assert "it detached in the target, though" in sentence


class Shifted(nn.Module):
    """A shift that the first batch sets; it is a term of the loss, too."""

    def __init__(self, *, detaches: bool) -> None:
        super().__init__()
        self.shift, self.net = nn.Parameter(torch.zeros(4)), nn.Linear(4, 4)
        self.detaches, self.is_set = detaches, False

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.is_set:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
            self.is_set = True
        term = self.shift.detach() if self.detaches else self.shift
        return self.net(x + self.shift), term.sum().expand(len(x))


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_parameter_that_was_written_in_place_needs_its_gradient(
    tmp_path: Path, level: str
) -> None:
    def train(debugger: PrecisionDebugger, detaches: bool) -> None:
        model = Shifted(detaches=detaches)
        data = torch.randn(3, 8, 4)

        def loss(number: int) -> Tensor:
            y, term = model(data[number])
            return (y.square().sum(1) - term).mean()

        fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)

    verdict = verdict_on(tmp_path, train, True, False, level)
    assert verdict["class"] == "gradient", verdict["sentence"]
    assert "no gradient gets to Tensor.sum." in verdict["sentence"], verdict["sentence"]


class Branches(nn.Module):
    """A branch that a side cuts off, or computes without gradients."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.change = change
        self.stem, self.own, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).relu()
        with torch.set_grad_enabled(self.change != "no grad"):
            made = self.own(h)
        if self.change == "cut":
            made = made.detach()
        scored: Tensor = self.out(h + made.sigmoid())
        return scored


def of_branches(debugger: PrecisionDebugger, change: str | None) -> None:
    model = Branches(change)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.randn(3, 5, 6)
    fit(debugger, model, optimizer, lambda number: model(data[number]).square().mean())


@pytest.mark.parametrize(
    ("level", "change", "words"),
    [
        ("mix", "cut", "given it detached in the target, though it is made with a gradient"),
        ("L1", "cut", "given it detached in the target, though it is made with a gradient"),
        ("L0", "cut", "only the target calls Tensor.detach"),
        ("mix", "no grad", "the forward call's result requires no gradient, though"),
        ("L1", "no grad", "the forward call's result requires no gradient, though"),
    ],
)
def test_how_a_gradient_is_lost_is_told(
    tmp_path: Path, level: str, change: str, words: str
) -> None:
    verdict = verdict_on(tmp_path, of_branches, change, level=level)

    assert verdict["class"] in ("gradient", "call"), verdict["sentence"]
    assert words in verdict["sentence"]
