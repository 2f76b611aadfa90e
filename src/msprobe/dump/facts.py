# SPDX-License-Identifier: Apache-2.0
"""Facts about the training around the recorded calls: ``facts.json`` (format: docs/formats.md).

Each part of the file is written to the journal as soon as it is known, so a killed process keeps
what it knew. Numbers that JSON lacks are the words ``NaN``, ``Infinity`` and ``-Infinity``.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from msprobe.dump.lines import NATIVE
from msprobe.errors import DumpFormatError
from msprobe.json_text import JSON_ERRORS, NONFINITE_WORDS, parse_json, strict

FACTS_VERSION: Final = 1
SAMPLES: Final = 8
"""Elements kept of each parameter of an optimizer, at most."""

# Texts of exceptions in words; those of frameworks go on for lines.
_MOST_WORDS: Final = 120
# Names of records of collective calls, and what their libraries say when another rank is gone.
_COLLECTIVES: Final = "Distributed.", "MintDistributed."
_OF_PEERS: Final = re.compile(r"gloo|nccl|hccl|\bpeer\b|remote (worker|process)", re.IGNORECASE)

Number = float | None
Projections = tuple[float, float] | None
# Settings of optimizers are open by nature: numbers, switches, texts, lists of these.
Option = Any
OUTLINED_TENSOR: Final = "tensor"
"""A tensor among the arguments of a call that has no record."""
OUTLINED_ITEM: Final = 100_000
"""What the origin of a tensor grows by for each result before it; outlines have no more calls."""
OUTLINED_TURNED: Final = 64
"""Results of a call that are told apart; as many before it has the transpose of the first one."""
WITHOUT_MEANING: Final = ("foreach", "fused", "capturable", "differentiable", "initial_lr")
"""Settings that choose an implementation of the same rule, or are the scheduler's own memory."""


class Ending(StrEnum):
    """How the recording of a step ended.

    `KILLED`: the process ended at once: by a signal, a crash, or ``os._exit``.
    `UNSTOPPED`: the step or the process ended without a call of ``stop``.
    """

    WHOLE = "whole"
    INTERRUPTED = "interrupted"
    UNSTOPPED = "unstopped"
    KILLED = "killed"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a step ended.

    Attributes:
        how: the kind of end.
        exception: class and text of the exception that interrupted it.
        record: name of the record of the innermost call that the exception left.
        stepped: whether ``step`` ended it, and not the end of the program.
        begun_again: how many calls of the model it had made, each time that ``start`` was called in
            it without ``stop`` before.
        later: numbers of the next steps that are to be recorded, as far as the configuration
            lists them.
    """

    how: Ending
    exception: str | None = None
    record: str | None = None
    stepped: bool = True
    begun_again: list[int] = []
    later: list[int] = []

    @property
    def words(self) -> str:
        """What happened to a step that is not whole, to be put behind its name."""
        if self.how is Ending.INTERRUPTED:
            where = f" in {self.record}" if self.record else ""
            text = self.exception or "an exception"
            exception = textwrap.shorten(text, _MOST_WORDS, placeholder=" …")
            return f"was interrupted by {exception}{where}"
        if self.how is Ending.KILLED:
            # Python tells nobody of these ends.
            return "was cut off: the process was killed, crashed, or ended by os._exit"
        if self.how is Ending.WHOLE:
            return "ended with the program (debugger.step() was not called)"
        return "was never stopped (debugger.stop() was not called)"

    @property
    def is_passed_on(self) -> bool:
        """Whether another rank that ended may be what ended it: a communication failed, perhaps.

        A program may catch that, and end without a call of ``stop``.
        """
        if self.how is not Ending.INTERRUPTED:
            return self.how is Ending.UNSTOPPED
        return (self.record or "").startswith(_COLLECTIVES) or _OF_PEERS.search(
            self.exception or ""
        ) is not None


class Modes(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of the model when the step starts.

    Attributes:
        training: ``training`` of the model (name ``""``), and of each module that differs from
            the one around it.
        autocast: device type → type of autocast; only devices where it is on.
        grad_enabled: whether gradients are recorded.
        requires_grad_false: names of the frozen parameters.
    """

    training: dict[str, bool] = {}
    autocast: dict[str, str] = {}
    grad_enabled: bool = True
    requires_grad_false: list[str] = []


class ChangedFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Training flags that the program set after the step started, and autocast that it entered.

    Attributes:
        micro: number of the micro batch whose call of the model is the first with them.
        training: as in `Modes`.
        autocast: as in `Modes`; None in files that do not tell.
    """

    micro: int
    training: dict[str, bool]
    autocast: dict[str, str] | None = None


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters and buffers when the step starts, by column.

    Attributes:
        name: as ``model.named_parameters()`` has it.
        kind: ``parameter`` or ``buffer``.
        shape: its shape.
        dtype: its element type.
        requires_grad: whether it is trained.
        checksum: of its bytes; None where they cannot be read.
        norm: its L2 norm.
        projections: see docs/metrics.md.
        same_as: name of the earlier one that is the same tensor.
    """

    name: list[str] = []
    kind: list[str] = []
    shape: list[list[int]] = []
    dtype: list[str] = []
    requires_grad: list[bool] = []
    checksum: list[str | None] = []
    norm: list[Number] = []
    projections: list[Projections] = []
    same_as: list[str | None] = []


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that enters the model from outside.

    Attributes:
        micro: number of the micro batch in the step.
        record: name of the record of the model's call.
        where: its place among the arguments, ``input.0.input_ids``.
        shape: its shape.
        dtype: its element type.
        checksum: of its bytes; None where they cannot be read.
        max: largest element.
        min: smallest element.
        mean: arithmetic mean.
        norm: L2 norm.
        projections: see docs/metrics.md.
        index: number of the batch in the data loader, where this is followed.
    """

    micro: int
    record: str | None
    where: str
    shape: list[int]
    dtype: str
    checksum: str | None = None
    max: float | int | bool | None = None
    min: float | int | bool | None = None
    mean: Number = None
    norm: Number = None
    projections: Projections = None
    index: int | None = None


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A root of a backward pass.

    Attributes:
        micro: number of the backward pass in the step.
        value: its value; of several elements the sum.
        shape: its shape.
        dtype: its element type.
        made_by: names of the operations that made it, the last one first, some of them.
    """

    micro: int
    value: Number
    shape: list[int]
    dtype: str
    made_by: list[str] = []


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """A call between ranks that has no record: at level L0.

    Attributes:
        api: name of the function.
        ranks: global ranks of its group; empty where this rank is no member.
        op: how values are combined, as ``sum``; None where they are not.
        peer: the rank that sends, receives or collects; None where all do.
        elements: of all tensors that it was given, but for what it fills.
        dtype: type of the first one; None where there is none.
        passes: backward passes of the step that had begun.
        source: the line that called it.
    """

    api: str
    ranks: list[int] = []
    op: str | None = None
    peer: int | None = None
    elements: int = 0
    dtype: str | None = None
    passes: int = 0
    source: str | None = None


class OutlinedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that has no record: at level L0.

    Attributes:
        name: its name as that of a record, without number and direction.
        source: the line that calls it; None inside of a module of the framework.
        arguments: its positional arguments as text, ``tensor`` for each tensor.
        named: likewise those given by name.
    """

    name: str
    source: str | None = None
    arguments: tuple[str, ...] = ()
    named: dict[str, str] = {}


class OutlineRun(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that were made one after the other, without a module between them.

    Attributes:
        parent: name of the record of the module that made them; None outside of all modules.
        after: name of the record of the module that ended last before them; None if there was none.
        body: position of their list in `Outline.bodies`.
    """

    parent: str | None
    after: str | None
    body: int


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a step, in order, where they have no records: at level L0.

    Attributes:
        calls: each call that differs from the others by its place or its arguments.
        bodies: lists of positions in `calls`.
        runs: which of these lists ran where.
        is_whole: whether it holds all calls of the step.
        fed: of each tensor that a call is given, in order, where it comes from: how many calls
            before it was returned, plus `OUTLINED_ITEM` for each result of that call before it, and
            times `OUTLINED_TURNED` for its transpose; 0 where that is unknown; -1 and less for
            those in `given`. Empty in older dumps.
        given: names of tensors that no call made: parameters, ``input.0`` of a model; of
            transposes with ``.T`` behind.
    """

    calls: list[OutlinedCall] = []
    bodies: list[list[int]] = []
    runs: list[OutlineRun] = []
    is_whole: bool = True
    fed: list[int] = []
    given: list[str] = []


class Clip(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="clip"):
    """A call that limits gradients.

    Attributes:
        function: its name.
        max: the limit, of the norm or of each element.
        norm_type: order of the norm; None where elements are limited.
        total_norm: the norm before; None where elements are limited.
        parameters: how many parameters it was given.
        passes: how many backward passes the step has begun before; None if not known.
    """

    function: str
    max: Number
    norm_type: Number = None
    total_norm: Number = None
    parameters: int = 0
    passes: int | None = None


class Scaler(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="scaler"):
    """An update of a gradient scaler.

    Attributes:
        scale: the scale of the step.
        skipped: whether an optimizer's step was skipped because of an infinity or NaN.
        new_scale: the scale of the next step.
    """

    scale: Number
    skipped: bool | None
    new_scale: Number


class Schedule(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="schedule"):
    """A step of a learning-rate scheduler.

    Attributes:
        class_name: its class (key ``class``).
        last_epoch: its counter afterwards.
        lr: the learning rate of each group afterwards.
    """

    class_name: str = msgspec.field(name="class")
    last_epoch: int | None
    lr: list[Number]


class Cleared(msgspec.Struct, frozen=True, kw_only=True):
    """A call of ``zero_grad()``.

    Attributes:
        class_name: class of the optimizer or module whose gradients it clears (key ``class``).
        number: of the optimizer, as in `OptimizerStep`; None before its first step, and of modules.
        parameters: how many parameters it clears.
        passes: how many backward passes the step has begun before.
        updates: how many steps of optimizers have ended before.
    """

    class_name: str = msgspec.field(name="class")
    number: int | None = None
    parameters: int = 0
    passes: int = 0
    updates: int = 0


class Fingerprints(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the parameters of an optimizer step, by column.

    Attributes:
        checksum: of the bytes of each; None where they cannot be read.
        norm: the L2 norm of each.
        projections: see docs/metrics.md.
    """

    checksum: list[str | None] = []
    norm: list[Number] = []
    projections: list[Projections] = []


class OptimizerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of parameters with common settings.

    Attributes:
        options: every setting of the group, as ``lr``, ``betas``, ``weight_decay``.
        parameters: positions of its parameters in the columns.
    """

    options: dict[str, Option]
    parameters: list[int]

    def __post_init__(self) -> None:
        """Take the words for numbers that JSON lacks for these numbers."""
        for name, value in self.options.items():
            if value in NONFINITE_WORDS:
                self.options[name] = float(value)


class OptimizedParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of an optimizer step, by column, in the order of the groups.

    Attributes:
        name: as ``model.named_parameters()`` has it; ``optimizer.0.group.0.3`` where unknown.
        shape: shape of each.
        dtype: element type of each.
        has_gradient: whether it had a gradient.
        steps: the step count in its state, before the step.
        gradient: the gradients as the optimizer got them.
        state: name of a state → its values before the step; None where a parameter lacks it.
        before: the parameters before the step.
        after: the parameters after it.
        samples: some elements of each: ``index`` (flat positions), ``before``, ``gradient``,
            each state, ``after``.
        notes: parameter → why its values are missing.
    """

    name: list[str] = []
    shape: list[list[int]] = []
    dtype: list[str] = []
    has_gradient: list[bool] = []
    steps: list[Number] = []
    gradient: Fingerprints = Fingerprints()
    state: dict[str, Fingerprints] = {}
    before: Fingerprints = Fingerprints()
    after: Fingerprints = Fingerprints()
    samples: dict[str, list[list[int | float | None] | None]] = {}
    notes: dict[str, str] = {}


class OptimizerStep(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="optimizer"):
    """A call of ``optimizer.step()``.

    Attributes:
        class_name: its class with its module (key ``class``).
        number: which optimizer of the run, in the order of their first steps.
        call: which call of its ``step`` in this step of the run.
        record: the last record of a forward call that ended before it did; None if there was none.
        outlined: how many calls of the step's outline come before; None without an outline.
        passes: how many backward passes the step has begun before; None if not known.
        groups: settings of its groups.
        parameters: what it did to each parameter.
    """

    class_name: str = msgspec.field(name="class")
    number: int
    call: int
    record: str | None = None
    outlined: int | None = None
    passes: int | None = None
    groups: list[OptimizerGroup] = []
    parameters: OptimizedParameters = OptimizedParameters()

    @property
    def _written(self) -> set[tuple[str, str | None, str | None]]:
        """The parameters that it changes, with their checksums before and after."""
        columns = self.parameters
        ends = zip(columns.name, columns.before.checksum, columns.after.checksum, strict=False)
        return {(name, before, after) for name, before, after in ends if before != after}

    def is_within(self, other: OptimizerStep) -> bool:
        """Return whether another optimizer's step, which ends after this one, makes it."""
        own = self._written if self.number != other.number else set()
        return bool(own) and own <= other._written


Event = Clip | Scaler | Schedule | OptimizerStep


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in ``facts.json``; a part that was not observed has its default.

    Attributes:
        version: of the format.
        step: number of the step.
        ended: how it ended; None while it is still being recorded.
        settings: versions, environment and switches of the run.
        random: name of a random generator → checksum of its state when the step starts.
        undrawn: those of them from which nothing was drawn between their seed and the step's end.
        modes: flags of the model when the step starts.
        flags: training flags that changed after it.
        parameters: parameters and buffers when the step starts.
        data: tensors that entered the model.
        loss: roots of the backward passes.
        buffers_after: buffers when the step ends, those alone that it changed, and the parameters
            that no record of an optimizer tells; columns for their shape and the like are empty.
        communication: calls between ranks that have no records.
        outline: the other calls that have no records.
        labels: tensors without a gradient that such calls, outside of modules, are given together
            with one that has a gradient. `where` is the call and the argument's position or name.
        events: clipping, scaling, schedules and optimizer steps, in order.
        cleared: calls that clear gradients, in order.
    """

    version: int = FACTS_VERSION
    step: int | None = None
    ended: Ended | None = None
    settings: dict[str, str] = {}
    random: dict[str, str | None] = {}
    undrawn: list[str] = []
    modes: Modes | None = None
    flags: list[ChangedFlags] = []
    parameters: Parameters | None = None
    buffers_after: Parameters | None = None
    data: list[Data] = []
    loss: list[Loss] = []
    communication: list[Communication] = []
    outline: Outline | None = None
    labels: list[Data] = []
    events: list[Event] = []
    cleared: list[Cleared] = []

    def optimizer_steps(self) -> list[OptimizerStep]:
        """Return the optimizer steps, in order."""
        return [event for event in self.events if isinstance(event, OptimizerStep)]

    def outer_steps(self) -> list[OptimizerStep]:
        """Return the same without those that an optimizer makes within its own step, as ZeRO does.

        What such a step does to its parameters, the one around it does to the same ones.
        """
        steps = self.optimizer_steps()
        return [
            step
            for place, step in enumerate(steps)
            if not any(step.is_within(later) for later in steps[place + 1 :])
        ]

    def autocast_types(self) -> Mapping[str, str]:
        """Return the types of autocast in which the step begins, or a model is called first."""
        start = {} if self.modes is None else self.modes.autocast
        return next((each.autocast for each in self.flags if each.autocast), start)


def transposed(name: str) -> str:
    """Return the name in `Outline.given` of the transpose of a tensor."""
    return name.removesuffix(".T") if name.endswith(".T") else f"{name}.T"


LIST_PARTS: Final = ("flags", "data", "labels", "loss", "communication", "events", "cleared")
"""Parts of which every journal line adds an entry; of the others the last line counts."""
_PARTS: Final = tuple(name for name in Facts.__struct_fields__ if name != "version")


def sample_index(count: int) -> range:
    """Return the flat positions of the elements kept of `count`: evenly spread, first included."""
    step = max((count - 1) // (SAMPLES - 1), 1)
    return range(0, min(count, SAMPLES * step), step)


def encode_fact(value: object) -> bytes:
    """Return a part, or an entry of a list part, as one line of strict JSON."""
    try:
        if not _holds_nonfinite(value):
            return _FAST.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, as in undecodable file names
        pass
    tree = strict(msgspec.to_builtins(value, enc_hook=_decoded))
    return json.dumps(tree, allow_nan=False, separators=(",", ":")).encode()


def _decoded(value: object) -> Any:
    """Return what is encoded in a part of a value."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    raise NotImplementedError  # what msgspec expects of a hook that does not know a type


def _find_nonfinite(tree: Any) -> bool:
    """Return whether there is a NaN or an infinity in a tree."""
    if isinstance(tree, float):
        return not math.isfinite(tree)
    if isinstance(tree, msgspec.Struct):
        tree = msgspec.structs.astuple(tree)
    elif isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return False
    return any(map(_find_nonfinite, tree))


_holds_nonfinite: Final = _find_nonfinite if NATIVE is None else NATIVE.holds_nonfinite


def facts_lines(parts: Mapping[str, Sequence[bytes]]) -> Iterator[bytes]:
    """Yield the lines inside the object of ``facts.json``, without commas.

    Args:
        parts: encoded parts; of a list part every entry, of any other the last one counts.
    """
    yield b'"version": %d' % FACTS_VERSION
    for name in _PARTS:
        entries = parts.get(name)
        if name in LIST_PARTS:
            yield b'"%b": [%b]' % (name.encode(), b",\n".join(entries or ()))
        elif entries:
            yield b'"%b": %b' % (name.encode(), entries[-1])


def parse_facts(path: Path, text: bytes) -> Facts:
    """Return the facts in the text of a ``facts.json``.

    Args:
        path: named in errors.
        text: of the file.

    Raises:
        DumpFormatError: it is damaged, or of a newer version.
    """
    try:
        tree = parse_json(_ADDRESS.sub(b"", text))
        version = msgspec.convert(tree, _Version).version
        if version > FACTS_VERSION:
            raise DumpFormatError(
                path, f"of version {version}, newer than this msprobe can read ({FACTS_VERSION})"
            )
        # Not strict: numbers may be the words NaN, Infinity and -Infinity.
        return msgspec.convert(tree, Facts, strict=False)
    except JSON_ERRORS as exc:
        raise DumpFormatError(path, f"holds no facts: {exc}") from exc


_FAST: Final = msgspec.json.Encoder()
# In a setting that is an object's text; another in each process.
_ADDRESS: Final = re.compile(rb" at 0x[0-9a-fA-F]+")


class _Version(msgspec.Struct, frozen=True):
    version: int = FACTS_VERSION
