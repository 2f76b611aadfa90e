# SPDX-License-Identifier: Apache-2.0
"""`ILLDetector`: rare tokens, garbling and repetition in the answers of a language model.

    detector = ILLDetector(decode=tokenizer.decode)
    detector.run(topk_logprobs, tokens)        # [[False, 0], [True, 3]]
    detector.detector(topk_logprobs[1], tokens[1]).words

An answer is judged by the log-probabilities of the `k` likeliest tokens at each position, as
inference servers return them. A wrong kernel, a damaged cache or a bad quantisation shows there:
the model no longer knows what comes next, or goes round in a loop. No framework is needed.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.errors import UsageError

__all__ = ["Anomaly", "DetectionResult", "ILLDetector", "Limits", "analyze_output_anomaly"]

_FEWEST: Final = 32  # tokens: a share of fewer says little
_SAME_SCRIPT: Final = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "KATAKANA-HIRAGANA": "CJK"}

Floats = NDArray[np.float64]
TopK = Mapping[int, Any]
"""Token → its log-probability, a number or an object with the attribute `logprob`."""


class Anomaly(IntEnum):
    """Faults of an answer; the numbers are those of mindstudio-probe."""

    NONE = 0
    RARE = 1
    GARBLED = 2
    REPETITION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From where on an answer is conspicuous. Log-probabilities are natural logarithms.

    Attributes:
        window: tokens that are judged together.
        stride: tokens from one window to the next.
        mass: a position is doubtful if its k tokens together have less probability than this
            (0 to 1), and they are of more than `scripts` writing systems; needs `decode`.
        scripts: see `mass`.
        rare: a position is rare if its likeliest token is below this.
        garbled: the same for positions that count as garbled.
        garbled_share: a window is garbled if this share of its positions is (0 to 1).
        ngram: length of the token sequences that are counted to find loops.
        distinct: a window is a loop if fewer than this share of its sequences differ (0 to 1).
        autocorrelation: a window is periodic if its log-probabilities correlate with themselves,
            moved by some tokens, above this (0 to 1).
        confident: loops and periods count only where the mean log-probability is above this.
        windows_both: an answer repeats itself if so many windows are loops and periodic,
        windows_one: or if so many are one of them.
    """

    window: int = 128
    stride: int = 64
    mass: float = 0.4
    scripts: int = 2
    rare: float = -6.0
    garbled: float = -5.0
    garbled_share: float = 0.2
    ngram: int = 3
    distinct: float = 0.2
    autocorrelation: float = 0.65
    confident: float = -0.2
    windows_both: int = 2
    windows_one: int = 14

    def __post_init__(self) -> None:
        """Refuse sizes below 1.

        Raises:
            UsageError: a size is no whole number above 0.
        """
        for name in ("window", "stride", "ngram", "windows_both", "windows_one"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"Limits: {name} is {value!r}; use a whole number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionResult:
    """Findings in one answer.

    Attributes:
        ill_type: the kind of anomaly; 0 if there is none.
        position: number of the token where it begins, from 0; None if there is none.
        words: the finding in a sentence; empty if there is none.
    """

    ill_type: Anomaly = Anomaly.NONE
    position: int | None = None
    words: str = ""

    @property
    def is_ill(self) -> bool:
        """Whether an anomaly was found."""
        return self.ill_type is not Anomaly.NONE


class ILLDetector:
    """Judges answers of a language model by their top-k log-probabilities."""

    def __init__(
        self, *, decode: Callable[[list[int]], str] | None = None, limits: Limits | None = None
    ) -> None:
        """Create it.

        Args:
            decode: gives the text of tokens, such as `tokenizer.decode`. With it, positions are
                found where the model wavers between writing systems. Without it, only the
                log-probabilities decide.
            limits: from where on an answer is conspicuous.
        """
        self._decode = decode
        self._limits = limits or Limits()
        self._scripts: dict[int, frozenset[str]] = {}

    def run(
        self,
        topk_logprobs: Sequence[Sequence[TopK]],
        tokens: Sequence[Sequence[int]],
        model_configs: object = None,
    ) -> list[list[bool | int]]:
        """Judge several answers, and return ``[is_ill, ill_type]`` of each.

        Args:
            topk_logprobs: of each answer, as in `detector`.
            tokens: of each answer, as in `detector`.
            model_configs: accepted for scripts of mindstudio-probe; `decode` replaces it.

        Raises:
            UsageError: the two are of different lengths, or a position holds no token.
        """
        if len(topk_logprobs) != len(tokens):
            raise UsageError(
                f"run: {len(topk_logprobs)} answers have log-probabilities, {len(tokens)} tokens"
            )
        found = [self.detector(*answer) for answer in zip(topk_logprobs, tokens, strict=True)]
        return [[each.is_ill, int(each.ill_type)] for each in found]

    def detector(
        self, topk_logprobs: Sequence[TopK], tokens: Sequence[int], model_config: object = None
    ) -> DetectionResult:
        """Judge one answer: garbling before repetition, and rare tokens last.

        Args:
            topk_logprobs: for each position token → natural log-probability of the likeliest ones.
            tokens: the token that was taken at each position.
            model_config: as in `run`.

        Raises:
            UsageError: the two are of different lengths, or a position holds no token.
        """
        if len(topk_logprobs) != len(tokens):
            raise UsageError(
                f"detector: {len(topk_logprobs)} positions have log-probabilities, but "
                f"{len(tokens)} have tokens"
            )
        answer = self._read(topk_logprobs, tokens)
        return (
            _undefined(answer)
            or self._garbled(answer)
            or self._repeated(answer)
            or self._rare(answer)
            or DetectionResult()
        )

    # --- reading

    def _read(self, topk_logprobs: Sequence[TopK], tokens: Sequence[int]) -> _Answer:
        size = len(tokens)
        top, taken, doubtful = np.zeros(size), np.zeros(size), np.zeros(size, dtype=bool)
        for position, (candidates, token) in enumerate(zip(topk_logprobs, tokens, strict=True)):
            if not candidates:
                raise UsageError(f"detector: position {position} has no log-probability")
            known = {one: _number(value) for one, value in candidates.items()}
            top[position] = np.max(list(known.values()))  # NaN if one is
            # A token that is not among the likeliest is less likely than all of these.
            taken[position] = known.get(token, min(known.values()))
            doubtful[position] = self._is_doubtful(known)
        return _Answer(np.asarray(tokens), top, taken, doubtful)

    def _is_doubtful(self, candidates: Mapping[int, float]) -> bool:
        if self._decode is None or sum(map(math.exp, candidates.values())) >= self._limits.mass:
            return False
        scripts = frozenset[str]().union(*map(self._scripts_of, candidates))
        return len(scripts) > self._limits.scripts

    def _scripts_of(self, token: int) -> frozenset[str]:
        """Return the writing systems of a token's letters."""
        known = self._scripts.get(token)
        if known is None:
            assert self._decode is not None
            names = (unicodedata.name(one, "") for one in self._decode([token]) if one.isalpha())
            words = (name.split(" ")[0] for name in names if name)
            known = frozenset(_SAME_SCRIPT.get(word, word) for word in words)
            self._scripts[token] = known
        return known

    # --- the three detectors

    def _garbled(self, answer: _Answer) -> DetectionResult | None:
        limits = self._limits
        is_bad = answer.doubtful | (answer.top < limits.garbled)
        for window in self._windows(answer):
            bad = is_bad[window]
            share = float(np.mean(bad))
            if len(bad) >= min(_FEWEST, limits.window) and share >= limits.garbled_share:
                return DetectionResult(
                    ill_type=Anomaly.GARBLED,
                    position=window.start + int(np.argmax(bad)),
                    words=f"garbled: at {share:.0%} of the tokens {window.start} to "
                    f"{window.start + len(bad) - 1} the model does not know what comes next",
                )
        return None

    def _repeated(self, answer: _Answer) -> DetectionResult | None:
        limits = self._limits
        both: list[int] = []
        one: list[int] = []
        for window in self._windows(answer):
            taken, tokens = answer.taken[window], answer.tokens[window]
            if len(tokens) < min(_FEWEST, limits.window) or np.mean(taken) <= limits.confident:
                continue
            is_loop = _distinct_share(tokens, limits.ngram) < limits.distinct
            if is_loop and _is_periodic(taken, limits.autocorrelation, if_constant=True):
                both.append(window.start)
            elif is_loop or _is_periodic(taken, limits.autocorrelation, if_constant=False):
                one.append(window.start)
            if len(both) >= limits.windows_both or len(both) + len(one) >= limits.windows_one:
                begin = min(both + one)
                return DetectionResult(
                    ill_type=Anomaly.REPETITION,
                    position=begin,
                    words=f"repetition: from token {begin} on the answer goes round in a loop",
                )
        return None

    def _rare(self, answer: _Answer) -> DetectionResult | None:
        is_rare = answer.doubtful | (answer.top < self._limits.rare)
        if not is_rare.any():
            return None
        position = int(np.argmax(is_rare))
        return DetectionResult(
            ill_type=Anomaly.RARE,
            position=position,
            words=f"rare: at token {position} the likeliest one has probability "
            f"{math.exp(answer.top[position]):.2g}",
        )

    def _windows(self, answer: _Answer) -> Iterator[slice]:
        """Yield windows of full size, the last one moved back; one for a shorter answer."""
        size, limits = len(answer.tokens), self._limits
        last = max(size - limits.window, 0)
        for begin in range(0, last, limits.stride):
            yield slice(begin, begin + limits.window)
        if size:
            yield slice(last, size)


def analyze_output_anomaly(
    topk_logprobs: Sequence[Sequence[TopK]],
    tokens: Sequence[Sequence[int]],
    model_configs: object = None,
) -> list[list[bool | int]]:
    """Judge several answers by their log-probabilities alone; see `ILLDetector.run`.

    Raises:
        UsageError: as `ILLDetector.run`.
    """
    return ILLDetector().run(topk_logprobs, tokens, model_configs)


@dataclass(frozen=True, slots=True)
class _Answer:
    """One answer, an element for each position.

    Attributes:
        tokens: the tokens taken.
        top: log-probability of the likeliest token.
        taken: log-probability of the token taken.
        doubtful: whether the model wavers between writing systems.
    """

    tokens: NDArray[np.int64]
    top: Floats
    taken: Floats
    doubtful: NDArray[np.bool_]


def _number(value: Any) -> float:
    return float(getattr(value, "logprob", value))


def _undefined(answer: _Answer) -> DetectionResult | None:
    """Return a finding if a position has no likeliest token: NaN, or nothing but -Inf."""
    bad = ~np.isfinite(answer.top)
    if not bad.any():
        return None
    position = int(np.argmax(bad))
    words = f"garbled: the log-probability at token {position} is {answer.top[position]}"
    return DetectionResult(ill_type=Anomaly.GARBLED, position=position, words=words)


def _distinct_share(tokens: NDArray[np.int64], length: int) -> float:
    """Return the share of different sequences of so many tokens (distinct-n, Li et al. 2016)."""
    if len(tokens) < length:
        return 1.0
    sequences = np.lib.stride_tricks.sliding_window_view(tokens, length)
    return len(np.unique(sequences, axis=0)) / len(sequences)


def _is_periodic(values: Floats, limit: float, *, if_constant: bool) -> bool:
    """Return whether values correlate with themselves, moved by up to half their number.

    The correlation is Pearson's, of the values that lie over one another. That of constant
    values is not defined: -Inf is taken as far below all others.
    """
    values = np.maximum(values, -100.0)
    size = len(values)
    if float(np.ptp(values)) < 1e-6:
        return if_constant
    for lag in range(2, size // 2 + 1):
        ahead, behind = values[lag:], values[:-lag]
        if min(float(np.ptp(ahead)), float(np.ptp(behind))) < 1e-6:
            continue
        if float(np.corrcoef(ahead, behind)[0, 1]) > limit:
            return True
    return False
