# SPDX-License-Identifier: Apache-2.0
"""Answers of a known random source are healthy; damaged ones are named by the right detector."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from msprobe.errors import UsageError
from msprobe.response_anomaly import Anomaly, ILLDetector, Limits, analyze_output_anomaly

TOP = 20
VOCABULARY = 2000
Answer = tuple[list[dict[int, float]], list[int]]


def answer(
    seed: int,
    size: int = 600,
    *,
    sharpness: float = 1.2,
    flat: range = range(0),
    vocabulary: int = VOCABULARY,
) -> Answer:
    """Draw tokens by Zipf's law, names shuffled at each position; evenly in `flat`."""
    chance = np.random.default_rng(seed)
    zipf = -sharpness * np.log(np.arange(1, vocabulary + 1))
    zipf -= np.log(np.exp(zipf).sum())
    even = np.full(vocabulary, -math.log(vocabulary))
    candidates, tokens = [], []
    for position in range(size):
        logs = even if position in flat else zipf
        names = chance.permutation(vocabulary)
        candidates.append(dict(zip(names[:TOP].tolist(), logs[:TOP].tolist(), strict=True)))
        tokens.append(int(names[chance.choice(vocabulary, p=np.exp(logs))]))
    return candidates, tokens


def loop(period: int, size: int, seed: int = 0) -> Answer:
    """Return an answer that says the same tokens again and again, surely."""
    chance = np.random.default_rng(seed)
    tokens = np.arange(size) % period
    logs = -0.02 - 0.2 * chance.random(period)
    return [{int(each): float(logs[each])} for each in tokens], tokens.tolist()


@pytest.mark.parametrize("sharpness", [0.9, 1.2, 3.0, 6.0])
def test_healthy_answers_show_nothing(sharpness: float) -> None:
    answers = [answer(seed, sharpness=sharpness) for seed in range(6)]
    found = analyze_output_anomaly(*zip(*answers, strict=True))
    assert found == [[False, 0]] * 6


def test_a_token_the_model_knows_nothing_about_is_rare() -> None:
    found = ILLDetector().detector(*answer(1, flat=range(300, 301)))
    assert (found.ill_type, found.position) == (Anomaly.RARE, 300)
    assert "0.0005" in found.words  # 1 / 2000


@pytest.mark.parametrize(("bad", "kind"), [(24, Anomaly.RARE), (26, Anomaly.GARBLED)])
def test_a_fifth_of_a_window_is_garbled(bad: int, kind: Anomaly) -> None:
    # 20 % of 128 tokens are 25.6.
    found = ILLDetector().detector(*answer(2, flat=range(256, 256 + bad)))
    assert (found.ill_type, found.position) == (kind, 256)


def test_garbling_at_the_end_of_an_answer_is_seen() -> None:
    found = ILLDetector().detector(*answer(3, size=601, flat=range(570, 601)))
    assert (found.ill_type, found.position) == (Anomaly.GARBLED, 570)


def test_limits_are_those_of_the_user() -> None:
    case = answer(2, flat=range(256, 280))
    strict = ILLDetector(limits=Limits(garbled_share=0.1)).detector(*case)
    tolerant = ILLDetector(limits=Limits(rare=-9.0)).detector(*case)
    assert (strict.ill_type, tolerant.ill_type) == (Anomaly.GARBLED, Anomaly.NONE)


@pytest.mark.parametrize(("period", "size"), [(1, 320), (3, 320), (20, 320), (40, 1100)])
def test_a_loop_is_repetition(period: int, size: int) -> None:
    head, tail = answer(4, size=200, sharpness=3.0), loop(period, size)
    found = ILLDetector().detector(head[0] + tail[0], head[1] + tail[1])
    assert found.ill_type is Anomaly.REPETITION
    assert found.position is not None
    assert 0 <= 200 - found.position <= 128 or 0 <= found.position - 200 <= 128


def test_a_short_loop_or_an_unsure_one_is_none() -> None:
    short = loop(3, 100)
    unsure = [{each: -1.5} for each in loop(3, 900)[1]], loop(3, 900)[1]
    assert analyze_output_anomaly([short[0], unsure[0]], [short[1], unsure[1]]) == [[False, 0]] * 2


def test_sure_text_without_a_loop_is_none() -> None:
    tokens = list(range(3000))
    assert not ILLDetector().detector([{each: -1e-9} for each in tokens], tokens).is_ill


LETTERS = ("a", "ж", "中", "ש", "한")


def test_wavering_between_writing_systems_is_seen_with_texts() -> None:
    def wavering() -> Answer:
        candidates, tokens = answer(5)
        # 20 candidates of 1.5 % each, so 30 % together; without texts that is healthy.
        candidates[77] = {each: math.log(0.015) for each in range(TOP)}
        return candidates, tokens

    def decode(scripts: int) -> ILLDetector:
        return ILLDetector(decode=lambda tokens: LETTERS[tokens[0] % scripts])

    case = wavering()
    assert not ILLDetector().detector(*case).is_ill
    assert not decode(2).detector(*case).is_ill
    found = decode(3).detector(*case)
    assert (found.ill_type, found.position) == (Anomaly.RARE, 77)


def test_kana_and_ideographs_are_one_writing_system() -> None:
    candidates, tokens = answer(5)
    candidates[9] = {each: math.log(0.015) for each in range(TOP)}
    letters = ("あ", "ア", "中", "a")
    detector = ILLDetector(decode=lambda tokens: letters[tokens[0] % 4])
    assert not detector.detector(candidates, tokens).is_ill


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_position_without_a_likeliest_token_is_garbled(value: float) -> None:
    candidates, tokens = answer(6)
    candidates[41] = dict.fromkeys(candidates[41], value)
    found = ILLDetector().detector(candidates, tokens)
    assert (found.ill_type, found.position) == (Anomaly.GARBLED, 41)
    assert str(value) in found.words


@dataclass
class Logprob:
    """What vLLM gives for each candidate."""

    logprob: float


def test_objects_with_a_log_probability_are_read() -> None:
    candidates, tokens = answer(1, flat=range(300, 301))
    wrapped = [{one: Logprob(value) for one, value in each.items()} for each in candidates]
    detector = ILLDetector()
    assert detector.detector(wrapped, tokens) == detector.detector(candidates, tokens)


def test_no_token_and_few_tokens() -> None:
    assert not ILLDetector().detector([], []).is_ill
    assert ILLDetector().detector(*answer(0, size=31, flat=range(31))).ill_type is Anomaly.RARE
    assert ILLDetector().detector(*answer(0, size=32, flat=range(32))).ill_type is Anomaly.GARBLED


def test_what_does_not_fit_is_refused() -> None:
    candidates, tokens = answer(0, size=5)
    with pytest.raises(UsageError, match="5 positions have log-probabilities, but 4 have tokens"):
        ILLDetector().detector(candidates, tokens[:4])
    with pytest.raises(UsageError, match="1 answers have log-probabilities, 0 tokens"):
        ILLDetector().run([candidates], [])
    with pytest.raises(UsageError, match="position 3 has no log-probability"):
        ILLDetector().detector([*candidates[:3], {}, candidates[4]], tokens)
    with pytest.raises(UsageError, match="stride is 0"):
        Limits(stride=0)


def test_no_framework_is_loaded() -> None:
    code = "import sys, msprobe.response_anomaly; print({'torch', 'mindspore'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
