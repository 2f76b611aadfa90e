# SPDX-License-Identifier: Apache-2.0
"""Explains in plain words what a Dump with given settings writes, when, where and how much."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from msprobe.kernels.dump_settings import DEVICE_CATEGORIES, DumpSettings, Select

# Measured with fully connected layers on the CPU: each weight is written by itself, as an input of
# its forward and backward kernel and of the optimizer's, and so are its gradient and the states.
_TIMES_WEIGHTS: Final = (10, 13)
_NPY_HEADER: Final = 128
_DEFAULT_CATEGORIES: Final = ("max", "min", "avg", "l2norm")
_MANY_STEPS: Final = 20


class Explanation(NamedTuple):
    """One subject of the explanation.

    Attributes:
        title: a word.
        sentences: the text.
    """

    title: str
    sentences: list[str]


def explain_settings(
    settings: DumpSettings, *, model_bytes: int | None = None
) -> list[Explanation]:
    """Return an explanation of a Dump with these settings.

    Args:
        settings: the settings.
        model_bytes: size of the model's weights in memory, for an estimate of the size.
    """
    return [
        Explanation("what", list(_what(settings))),
        Explanation("when", list(_when(settings))),
        Explanation("where", list(_where(settings))),
        Explanation("how much", list(_how_much(settings, model_bytes))),
        Explanation("mind", list(_caveats(settings))),
    ]


def _what(settings: DumpSettings) -> Iterator[str]:
    if settings.debug_mode == 4:
        yield "Operators that fail: their inputs are kept when the run ends with an exception."
    elif settings.debug_mode:
        yield "Operators in which a number overflows, and a note on each overflow; no others."
    elif settings.select is Select.SET_DUMP:
        yield "The operators of the cells that the program names with set_dump()."
    elif settings.select is Select.ALL:
        yield "All operators."
    elif settings.kernels:
        yield "These operators: " + "; ".join(map(_kernel_words, settings.kernels)) + "."
    else:
        yield "All operators, as the list of kernels is empty."
    sides = {0: "Inputs and outputs", 1: "Inputs", 2: "Outputs"}[settings.input_output]
    categories = ", ".join(settings.categories or _DEFAULT_CATEGORIES)
    number = "all elements" if settings.sample is None else f"{settings.sample} elements each"
    yield {
        "tensor": f"{sides} as tensors, {number}.",
        "statistic": f"{sides} as statistics ({categories}), no tensors.",
        "full": f"{sides} as tensors, {number}, and as statistics ({categories}).",
    }[settings.saved_data]


def _kernel_words(name: str) -> str:
    if found := re.fullmatch(r"name-regex\((.*)\)", name, re.DOTALL):
        return f"whose full name fits {found[1]}"
    if "/" in name:
        return name
    return f"of types that contain {name!r} in any case (relu is also in ReluGrad)"


def _when(settings: DumpSettings) -> Iterator[str]:
    if settings.iterations is None:
        yield "Every iteration, from first to last."
    else:
        ranges = [f"{a}" if a == b else f"{a} to {b}" for a, b in settings.iterations]
        yield f"Iterations {', '.join(ranges)}, counted from {settings.initial_iteration}."
        last = max(last for _, last in settings.iterations)
        if last < settings.initial_iteration:
            yield "None of them is reached: the count begins behind them."
    ranks = ", ".join(map(str, settings.devices))
    yield f"On ranks {ranks}." if ranks else "On no rank, as support_device is empty."


def _where(settings: DumpSettings) -> Iterator[str]:
    path = settings.path or "$MS_DIAGNOSTIC_DATA_PATH/debug_dump"
    if settings.is_synchronous:
        yield f"{path}/rank_{{rank}}/{settings.net_name}/{{graph}}/{{iteration}}/"
        yield "Graphs, order of execution and settings beside it: graphs/, execution_order/, …"
    else:
        yield f"{path}/{{time}}/{{device}}/{{model}}/{{model id}}/{{iteration}}/ (Ascend), or"
        yield f"{path}/rank_{{rank}}/{settings.net_name}/{{graph}}/{{iteration}}/ (GPU and CPU)"
    if settings.saved_data != "tensor":
        yield "Statistics are in statistic.csv in the folder of the iteration."
    if settings.file_format == "bin" and not settings.is_synchronous:
        yield "Tensors are binary files; `msprobe parse` makes .npy files of them."


def _how_much(settings: DumpSettings, model_bytes: int | None) -> Iterator[str]:
    if settings.saved_data == "statistic":
        yield "About 200 bytes for each input and output of an operator and iteration."
        return
    yield (
        f"Each value takes its elements times the bytes of its type, and {_NPY_HEADER} bytes; "
        "bfloat16 takes 4 bytes an element. A value is written again by each operator that reads "
        "it, two to four times in training."
    )
    if model_bytes is None or settings.debug_mode or settings.select is not Select.ALL:
        return
    low, high = (times * model_bytes for times in _TIMES_WEIGHTS)
    if settings.input_output:
        low, high = low // 3, high // 2
    yield (
        f"Weights of {size_words(model_bytes)} alone make about {size_words(low)} (SGD) to "
        f"{size_words(high)} (Adam) a training step and rank; activations come on top."
    )
    ranks = max(1, len(settings.devices))
    if settings.steps is not None and settings.steps * ranks > 1:
        many = settings.steps * ranks
        yield (
            f"With {settings.steps} iterations on {ranks} ranks: {size_words(low * many)} to "
            f"{size_words(high * many)}."
        )


def _caveats(settings: DumpSettings) -> Iterator[str]:
    if settings.iterations is None and not settings.debug_mode:
        yield "Every iteration is dumped until the disk is full; name some in iteration."
    elif settings.steps is not None and settings.steps > _MANY_STEPS and not settings.debug_mode:
        yield f"{settings.steps} iterations are many."
    if settings.debug_mode:
        if settings.select is not Select.ALL:
            yield "While overflows or failures are looked for, dump_mode has no effect."
        yield (
            "Overflows are found on Ascend only, with INF_NAN_MODE_ENABLE=1 and "
            "MS_ASCEND_CHECK_OVERFLOW_MODE=INFNAN_MODE; the CPU dumps everything instead."
        )
        if settings.iterations is not None:
            yield 'In the dynamic graph, looking for overflows needs iteration "all".'
    yield from _caveats_by_kind(settings)
    yield (
        "Switch data sinking off (dataset_sink_mode=False) where steps must be told apart; on GPUs "
        "a synchronous Dump needs it."
    )
    if settings.is_synchronous:
        yield "Memory is not reused between operators meanwhile: the run needs more of it."
    yield "The variable must be set before the first graph runs; afterwards nothing is dumped."
    if settings.select is Select.LISTED and settings.kernels:
        yield (
            "Numbers of operators (…-op12) may change with save_graphs: take names from a graph of "
            "the same settings."
        )
        if not settings.is_synchronous:
            yield (
                "For the asynchronous Dump, take names from the graphs that DUMP_GE_GRAPH=2, "
                "DUMP_GRAPH_LEVEL=1 and DUMP_GRAPH_PATH write."
            )
    yield "set_context(reserve_class_name_in_scope=False) makes file names shorter."
    yield "Training on several kinds of devices at once is not supported by the Dump."


def _caveats_by_kind(settings: DumpSettings) -> Iterator[str]:
    """Yield the remarks on some kinds of data or devices only."""
    if not settings.names_synchronous:
        yield (
            "Without e2e_dump_settings the Dump is asynchronous on Ascend, and newer versions may "
            "dump nothing at all; add it, with enable false."
        )
    if settings.saved_data != "tensor":
        yield (
            "Statistics are refused on the CPU: the run ends there; dump tensors instead "
            "(msprobe at level L2 then computes the statistics)."
        )
        if not settings.is_synchronous and settings.file_format == "bin":
            yield 'In the asynchronous Dump, statistics need "file_format": "npy".'
        wrong = [each for each in settings.categories if each not in DEVICE_CATEGORIES]
        if settings.calculates_on_device and wrong:
            yield f"The device cannot compute {', '.join(wrong)}; use stat_calc_mode host."
    if settings.select is Select.SET_DUMP and settings.is_synchronous:
        yield "dump_mode 2 works in the asynchronous Dump on Ascend only."
    if settings.sample is not None:
        yield "On the CPU all elements are written; sample_num has no effect."


def size_words(size: int) -> str:
    """Return a number of bytes in a readable unit."""
    amount = float(size)
    for unit in ("bytes", "KB", "MB", "GB"):
        if amount < 1000:
            digits = 0 if amount >= 10 or unit == "bytes" else 1
            return f"{amount:.{digits}f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def parse_size(text: str) -> int | None:
    """Return the bytes in a text such as ``14GB`` or ``500 MB``; None if it is none."""
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if found is None:
        return None
    return int(float(found[1]) * 1000 ** (" KMGT".index(found[2].upper() or " ")))
