# SPDX-License-Identifier: Apache-2.0
"""Calls that make the batch are data; others outside of the model are what they were."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = [pytest.mark.torch]


class Tagger(nn.Module):
    """A label for each token; what is masked counts as nothing."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.out = nn.Linear(8, 20)
        self.shift = shift

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(ids[:, self.shift : 6 + self.shift]) * mask[:, :6, None])


def program(debugger: PrecisionDebugger, change: str | None) -> None:
    model = Tagger(1 if change == "in the model" else 0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    text = torch.randint(2, 20, (4, 8))
    text[:, 7] = 1
    for _ in recorded_steps(debugger, model):
        optimizer.zero_grad()
        labels = text[:, 2:8] if change == "shift" else text[:, 1:7]
        ids = text[:, :7].clone()
        if change == "sample":
            ids[1] = 3
        if change == "vocabulary":
            ids = torch.remainder(ids + 5, 20)
        limit = 5 if change == "mask" else 2
        mask = (ids >= limit).float()
        weight = torch.tensor(3.0 if change == "weight" else 1.0)
        order = torch.randperm(4)
        out = model(ids[order], mask[order])
        loss = functional.cross_entropy(out.transpose(1, 2), labels[order])
        (loss * weight).backward()
        if change == "gradient":
            model.out.weight.grad[3] = 0.0
        optimizer.step()


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("shift", "data: the batch is made otherwise: input.1.1 of Tensor.__getitem__"),
        ("sample", "data: the batch is made otherwise: only the target calls Tensor.__setitem__"),
        ("vocabulary", "call: only the target calls Tensor.__add__"),
        ("mask", "argument: input.1 of Tensor.__ge__.0.forward"),
        ("weight", "argument: input.0 of Torch.tensor.0.forward"),
        ("in the model", "argument: input.1.1 of Tensor.__getitem__"),
        ("gradient", "gradient: out.weight differs when the optimizer gets it"),
    ],
)
def test_what_makes_the_batch_is_data(
    change: str, expected: str, level: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, program, change, level=level)
    assert verdict["sentence"].startswith(expected), verdict["sentence"]


def trained_in_closures(debugger: PrecisionDebugger, change: str | None) -> None:
    """An optimizer calls what calls the model three times, as Lightning's do."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    anchor, near, far = torch.randn(3, 5, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        pairs = (far, near) if change else (near, far)
        own, first, second = map(model, (anchor, *pairs))
        loss = functional.triplet_margin_loss(own, first, second)
        loss.backward()
        return loss

    for _ in recorded_steps(debugger, model):
        optimizer.step(closure)


def test_what_a_model_is_given_in_an_optimizer_s_step_is_data(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, trained_in_closures, "exchanged")
    assert verdict["sentence"].startswith("data: "), verdict["sentence"]


def recorded_late(debugger: PrecisionDebugger, change: str | None) -> None:
    """Recording starts when the model is first called: what made the first batch has no record."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(3, 2, 5, 3)
    if change == "other data":
        batches[:, 0] += 1.0
    for number in range(3):
        for micro in range(2):
            x = batches[number, micro]
            if change == "noise":
                x = x + 0.1 * torch.randn_like(x)
            if not micro:
                debugger.start(model)
            (model(x).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


@pytest.mark.parametrize(
    ("change", "expected"),
    [("noise", "call: only the target calls Torch.randn_like.0"), ("other data", "data: ")],
)
def test_what_makes_a_later_batch_makes_the_first_one_too(
    change: str, expected: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, recorded_late, change, level="mix")
    assert verdict["sentence"].startswith(expected), verdict["sentence"]


def computed_input(debugger: PrecisionDebugger, change: str | None) -> None:
    """What the program makes of its data is fed to the model."""
    model = nn.Linear(6, 2)
    data = torch.randn(3, 4, 6)

    def loss(number: int) -> torch.Tensor:
        x = data[(number + 1) % 3 if change == "other data" else number]
        if change == "largest is one":
            x = x / x.abs().amax(1, keepdim=True)
        x = x.abs()
        return model(torch.cumsum(x.sort(1, descending=change == "descending")[0], 1)).mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            "largest is one",
            "call: what the model gets in step 0 differs: .*only the target calls Tensor.amax",
        ),
        (
            "descending",
            "argument: what the model gets in step 0 differs: .*descending of Tensor.sort",
        ),
        ("other data", "data: "),
    ],
)
def test_calls_without_records_that_make_the_batch_are_named(
    change: str, expected: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, computed_input, change, level="L0")
    assert re.match(expected, verdict["sentence"]), verdict["sentence"]
    asks_for_data = "feed both runs with the same batches" in str(verdict["next"])
    assert asks_for_data is (change == "other data"), verdict["next"]


def diffused(debugger: PrecisionDebugger, change: str | None) -> None:
    """A model is given data with noise, or what `change` says."""
    model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))
    data, kept = torch.randn(3, 4, 8), torch.linspace(0.9, 0.1, 10)

    def loss(number: int) -> torch.Tensor:
        x = data[(number + 1) % 3 if change == "other data" else number]
        noise = torch.randn_like(x)
        share = kept[torch.randint(0, 10, (4,))][:, None]
        noised = share.sqrt() * x + (1 - share).sqrt() * noise
        given = {"clean": x, "noise": noise}.get(change or "", noised)
        return functional.mse_loss(model(given), noise)

    fit(debugger, model, torch.optim.AdamW(model.parameters(), 1e-3), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("clean", r"argument: .*fed with the result of Tensor.__getitem__.0.forward instead"),
        ("noise", r"argument: .*fed with the result of Torch.randn_like.0.forward instead"),
        ("other data", "data: "),
    ],
)
def test_another_result_that_the_model_is_given_is_no_data(
    change: str, expected: str, level: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, diffused, change, level=level)
    assert re.match(expected, verdict["sentence"]), verdict["sentence"]


class Front(nn.Module):
    """Makes spectra of sounds; no model that is watched."""

    def __init__(self, window: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("window", window)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        return torch.stft(sound, 16, 8, window=self.window, return_complex=True).abs()


def heard(debugger: PrecisionDebugger, change: str | None) -> None:
    """A model is given spectra of sounds, made with a window that was made before."""
    model = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 5))
    of_windows = {"window": torch.hamming_window, "front": torch.hamming_window}
    front = Front(of_windows.get(change or "", torch.hann_window)(16))
    sounds, labels = torch.randn(3, 4, 80), torch.randint(0, 5, (3, 4))
    through_module = change in ("front", "same front")

    def loss(number: int) -> torch.Tensor:
        sound = sounds[(number + 1) % 3 if change == "sound" else number]
        if through_module:
            spectrum = front(sound)
        else:
            spectrum = torch.stft(sound, 16, 8, window=front.window, return_complex=True).abs()
        out = model(spectrum.square().clamp(min=1e-6).log().mean(-1))
        return functional.cross_entropy(out, labels[number])

    fit(debugger, model, torch.optim.AdamW(model.parameters(), 1e-3), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("change", "base", "expected"),
    [
        ("window", None, "argument: input.window of Torch.stft.0.forward"),
        ("front", "same front", "argument: input.window of Torch.stft.0.forward"),
        ("sound", None, "data: the same 3 batches come in another order"),
    ],
)
def test_what_calls_take_besides_samples_is_an_argument(
    change: str, base: str | None, expected: str, level: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, heard, change, base, level)
    assert verdict["sentence"].startswith(expected), verdict["sentence"]


def augmented(debugger: PrecisionDebugger, change: str | None) -> None:
    """Images are normalised, some of them mirrored."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    images, labels = torch.rand(3, 6, 3, 8, 8), torch.randint(0, 5, (3, 6))
    mean, deviation = torch.rand(2, 3, 1, 1) + 0.5

    def loss(number: int) -> torch.Tensor:
        x = images[number]
        if change == "rewritten":
            x = x * (1 / deviation) - mean / deviation
        else:
            x = (x - mean) / deviation
        is_mirrored = torch.rand(6) < 0.5
        if change != "none mirrored":
            x = torch.where(is_mirrored[:, None, None, None], x.flip(-1), x)
        return functional.cross_entropy(model(x), labels[number])

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.05), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_what_is_computed_of_samples_by_one_side_alone_is_no_data(
    level: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, augmented, "none mirrored", level=level)
    assert verdict["class"] == "call", verdict["sentence"]


@pytest.mark.parametrize("sides", [("rewritten", None), (None, "rewritten")])
def test_a_table_that_the_other_side_divides_is_not_changed(
    sides: tuple[str | None, str | None], tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, augmented, *sides)
    assert verdict["class"] == "equal", verdict["sentence"]


def test_what_is_cut_out_of_a_detached_result_is_no_data(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        models = first, second = nn.Linear(4, 6), nn.Linear(6, 6)
        updates = [torch.optim.SGD(each.parameters(), 0.1) for each in models]
        x = torch.randn(5, 7, 4)
        for _ in recorded_steps(debugger, [*models]):
            made = first(x)
            made.square().mean().backward()
            updates[0].step()  # without it the calls tell already
            made = made.detach()
            wanted = made[:, :-1] if change else made[:, 1:]
            (second(made[:, :-1]) - wanted).square().mean().backward()
            updates[1].step()

    verdict = verdict_on(tmp_path, run, "shifted")
    assert verdict["class"] == "argument", verdict["sentence"]
    assert "input.1.1 of Tensor.__getitem__" in verdict["sentence"]


def transitions(debugger: PrecisionDebugger, change: str | None) -> None:
    """A score for each pair of neighbours, looked up by both of them, or the other way round."""
    model, scores = nn.Linear(6, 4), nn.Parameter(torch.randn(4, 4))
    optimizer = torch.optim.SGD([*model.parameters(), scores], 0.1)
    x, tags = torch.randn(3, 5, 6), torch.randint(0, 4, (3, 5, 3))

    def loss(number: int) -> torch.Tensor:
        own = tags[number]
        first, second = (1, 0) if change == "exchanged" else (0, 1)
        second = 2 if change == "other" else second
        found = scores[own[:, first], own[:, second]]
        return functional.cross_entropy(model(x[number]), own[:, 0]) - found.mean()

    fit(debugger, model, optimizer, loss)


@pytest.mark.parametrize(("change", "expected"), [("exchanged", "argument"), ("other", "data")])
def test_samples_that_change_places_in_a_call_are_no_other_data(
    change: str, expected: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, transitions, change)
    assert verdict["class"] == expected, verdict["sentence"]


def loading(debugger: PrecisionDebugger, is_made: bool) -> None:
    """Batches come from a loader while a step is recorded, or were made before, in order."""
    samples = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randint(0, 3, (24,)))
    order = torch.Generator().manual_seed(3)
    loader = torch.utils.data.DataLoader(samples, 8, shuffle=True, generator=order)
    made = [tuple(each[i : i + 8] for each in samples.tensors) for i in (0, 8, 16)]
    batches = iter(made if is_made else loader)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(_: int) -> torch.Tensor:
        x, labels = next(batches)
        return nn.functional.cross_entropy(model(x), labels)

    fit(debugger, model, optimizer, loss)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_calls_of_a_loader_that_one_side_does_without_are_data(tmp_path: Path, level: str) -> None:
    found = verdict_on(tmp_path, loading, True, False, level)

    assert found["class"] == "data", found["sentence"]


def one_by_one(debugger: PrecisionDebugger, change: str) -> None:
    """Each sample has boxes of its own, as many as there are; their sides are weighed alike."""
    model, x = nn.Linear(4, 8), torch.randn(3, 3, 4)
    boxes = [torch.rand(count, 4) * (2 if change == "boxes" else 1) for count in (1, 2, 3)]
    weights = torch.tensor([1.0, 1.0, 2.0 if change == "weights" else 1.5, 1.0])

    def loss(number: int) -> torch.Tensor:
        made = model(x[number]).unflatten(-1, (2, 4))
        losses = [
            (torch.cdist(own, wanted) * torch.mul(own, weights).sum()).mean()
            for own, wanted in zip(made, boxes, strict=True)
        ]
        return torch.stack(losses).sum()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(("change", "verdict"), [("boxes", "data"), ("weights", "argument")])
def test_what_comes_in_anew_for_each_sample_is_data(
    change: str, verdict: str, level: str, tmp_path: Path
) -> None:
    found = verdict_on(tmp_path, one_by_one, change, "", level)

    assert found["class"] == verdict, found["sentence"]


def of_lists(debugger: PrecisionDebugger, change: str) -> None:
    """The program makes its batch of lists of tokens; what it compares with is made before."""
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(24, 1))
    texts = torch.randint(0, 20, (3, 5, 6)).tolist()
    if change == "token":
        texts[1][2][3] = (texts[1][2][3] + 1) % 20
    wanted = list(torch.randn(3, 7) * (1.01 if change == "target" else 1.0))
    weights = [1.0, 1.0, 1.0, 1.0, 2.0 if change == "weights" else 1.5, 1.0, 1.0]
    rows = torch.tensor([0, 1, 2, 3, 4, 0, 2])

    def loss(number: int) -> torch.Tensor:
        found = model(torch.tensor(texts[number]))[rows, 0]
        apart = functional.smooth_l1_loss(found, wanted[number], reduction="none")
        return (apart * torch.tensor(weights)).mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ("token", "data", "input.0.2.3 of Torch.tensor"),
        ("target", "data", "it differs when it comes in"),
        ("weights", "argument", "2.0 instead of 1.5"),
    ],
)
def test_lists_of_which_the_batch_is_made_are_data(
    change: str, verdict: str, words: str, level: str, tmp_path: Path
) -> None:
    found = verdict_on(tmp_path, of_lists, change, "", level)

    assert found["class"] == verdict, found["sentence"]
    assert words in found["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_labels_in_another_order_are_made_by_the_call_that_gives_them(
    tmp_path: Path, level: str
) -> None:
    """A call before it is given the same labels, in their own order."""

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.embed = nn.Linear(8, 6), nn.Embedding(4, 6)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return (self.out(x) * self.embed(labels)).sum(1)

    def run(debugger: PrecisionDebugger, is_rolled: bool) -> None:
        makes, critic = nn.Linear(8, 8), Critic()
        models = nn.ModuleDict({"makes": makes, "critic": critic})
        optimizer = torch.optim.SGD(models.parameters(), 0.1)
        data, labels = torch.randn(3, 6, 8).unbind(), torch.randint(0, 4, (3, 6)).unbind()

        def loss(step: int) -> torch.Tensor:
            real = critic(data[step], labels[step])
            made = makes(data[step])
            given = labels[step].roll(1) if is_rolled else labels[step]
            return real.square().mean() - critic(made, given).mean()

        fit(debugger, models, optimizer, loss)

    verdict = verdict_on(tmp_path, run, True, False, level)

    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the target calls Tensor.roll" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("loss", [functional.huber_loss, nn.MSELoss()])
def test_what_a_loss_compares_with_is_data_however_long_the_batch_is(
    tmp_path: Path, level: str, loss: Any
) -> None:
    """One number for each graph, of which the model is given the nodes."""

    def run(debugger: PrecisionDebugger, scale: float) -> None:
        model = nn.Linear(6, 1)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        nodes, wanted = torch.randn(3, 20, 6).unbind(), (scale * torch.randn(3, 4)).unbind()

        def graph_loss(step: int) -> torch.Tensor:
            return loss(model(nodes[step]).view(4, 5).sum(1), wanted[step])

        fit(debugger, model, optimizer, graph_loss)

    verdict = verdict_on(tmp_path, run, 0.9, 1.0, level)

    assert verdict["class"] == "data", verdict["sentence"]
    assert "it differs when it comes in" in verdict["sentence"]


def noisy(debugger: PrecisionDebugger, change: str | None) -> None:
    """One line makes the batch, by operators that the program uses elsewhere, too."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    points, kept = torch.rand(3, 6, 4) + 1.0, torch.rand(3, 6, 1)

    def loss(number: int) -> torch.Tensor:
        x, a, noise = points[number], kept[number], torch.randn(6, 4)
        # fmt: off
        mixed = (a.sqrt() / x if change == "quotient" else (a if change == "no root" else a.sqrt()) * x) + noise / 4  # noqa: E501
        # fmt: on
        return ((model(mixed) - noise) / a).square().mean()

    fit(debugger, model, optimizer, loss)


@pytest.mark.parametrize("change", ["quotient", "no root"])
def test_other_calls_of_a_line_are_named_at_level_l0(change: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, noisy, change, level="L0")

    assert verdict["class"] == "call", verdict["sentence"]
    assert re.search(r"calls Tensor\.(__truediv__|sqrt) \(test_made_data", verdict["sentence"])


def normalised(debugger: PrecisionDebugger, change: str | None) -> None:
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    points = torch.rand(3, 6, 16, dtype=torch.float64)
    points = (points - points.mean((1, 2), keepdim=True)).float() * (1.1 if change else 1.0)
    fit(debugger, model, optimizer, lambda number: model(points[number]).square().mean())


def test_means_that_are_rounding_do_not_tell_how_data_differ(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, normalised, "more", level="L0")

    assert verdict["class"] == "data", verdict["sentence"]
    assert "norm of input.0 is" in verdict["sentence"]


class Lines(torch.utils.data.Dataset[torch.Tensor]):
    """Samples of a loader; one of them may be another one."""

    def __init__(self, change: str | None) -> None:
        self.samples = torch.rand(24, 5, generator=torch.Generator().manual_seed(4))
        if change is not None:
            self.samples[13] = 1.0 - self.samples[13]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> torch.Tensor:
        return self.samples[place]


def prefetched(debugger: PrecisionDebugger, change: str | None) -> None:
    """The batch of the next step is loaded within a step, as by Accelerate."""
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = iter(torch.utils.data.DataLoader(Lines(change), batch_size=6))
    following = next(batches)
    for _ in recorded_steps(debugger, model):
        batch, following = following, next(batches)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_batch_that_is_loaded_a_step_ahead_is_data(level: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, prefetched, "sample", level=level)

    assert verdict["class"] == "data", verdict["sentence"]
    assert "step 2" in verdict["sentence"]


def tokens(debugger: PrecisionDebugger, change: str | None) -> None:
    """Lines of other lengths are filled into a batch, token by token."""
    model = nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 20))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    lines = [[3, 5, 7, 9], [4, 6, 8], [11, 2, 13, 1, 5], [7, 7, 1], [9, 4, 2, 2], [8, 1, 3]]
    if change is not None:
        lines[2][1] = 12
    for number in recorded_steps(debugger, model):
        ids = torch.zeros(2, 5, dtype=torch.long)
        for row, line in enumerate(lines[2 * number : 2 * number + 2]):
            taken = torch.tensor(line)
            ids[row, : len(taken)] = taken
        optimizer.zero_grad()
        model(ids).logsumexp(-1).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_another_token_is_data(level: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, tokens, "token", level=level)

    assert verdict["class"] == "data", verdict["sentence"]
    assert "step 1" in verdict["sentence"]
