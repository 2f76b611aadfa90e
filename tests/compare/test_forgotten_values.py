# SPDX-License-Identifier: Apache-2.0
"""Values that are not known any more when a call takes them in, though a call made them."""

from __future__ import annotations

from pathlib import Path

from judging import compare

from builders.dumps import DumpBuilder, Value, value


def held(array: list[float], number: int) -> Value:
    return value(array, number, requires_grad=False)


def record(folder: Path, *, is_shifted: bool) -> Path:
    """Record a loss of labels that are the inputs themselves, or those behind them."""
    words, inputs, labels = [1.0, 2.0, 4.0, 9.0], [1.0, 2.0, 4.0], [2.0, 4.0, 9.0]
    dump = DumpBuilder(folder, "statistics+md5")
    dump.call("Tensor.narrow.0.forward", [held(words, 1), 0, 0, 3], [held(inputs, 2)])
    dump.call("Tensor.narrow.1.forward", [held(words, 1), 0, 1, 3], [held(labels, 3)])
    if is_shifted:
        dump.call("Tensor.narrow.2.forward", [held(words, 1), 0, 0, 3], [held(inputs, 2)])
        labels = inputs
    embedded = value([0.5, 1.0, 2.0], 4)
    loss = sum((a - b) ** 2 for a, b in zip([0.5, 1.0, 2.0], labels, strict=True))
    dump.call("Functional.embed.0.forward", [held(inputs, 2)], [embedded])
    dump.call("Functional.mse_loss.0.forward", [embedded, held(labels, 9)], [value([loss], 5)])
    gradient = [value([a - b for a, b in zip([0.5, 1.0, 2.0], labels, strict=True)], 7)]
    dump.call("Functional.mse_loss.0.backward", [value([1.0], 6)], [*gradient, None])
    return dump.write()


def test_a_result_is_not_without_consequence_because_a_known_user_of_its_value_agrees(tmp_path):
    new, old = (record(tmp_path / name, is_shifted=name == "new") for name in ("new", "old"))
    verdict = compare(new, old).result.summary["verdict"]
    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the target calls Tensor.narrow.2" in verdict["sentence"]
