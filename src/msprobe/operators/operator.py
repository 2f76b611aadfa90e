# SPDX-License-Identifier: Apache-2.0
"""`Operator`: everything that is known of one operator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

RUNNING: Final = frozenset(("running_mean", "running_var"))
"""Arguments that are buffers of a model, which a call of the training writes."""
# Arguments that are parameters or buffers of a model.
_STATE: Final = frozenset(("weight", "bias", *RUNNING))
_KIN_HANDED_ON: Final = frozenset(("reshape", "permute", "expand", "contiguous", "to", "split"))
_HANDED_ON: Final = frozenset(
    (
        *("getitem", "movedim", "detach", "alias", "ravel", "narrow", "select", "slice", "real"),
        *("imag", "as_strided", "numpy", "item", "tolist", "requires_grad", "data", "identity"),
        *("hsplit", "vsplit", "dsplit", "view_as_real", "view_as_complex", "diagonal"),
    )
)


class Family(StrEnum):
    """How errors of the inputs become errors of the output."""

    BILINEAR = "bilinear"
    CONVOLUTION = "convolution"
    ADDITIVE = "additive"
    AVERAGING = "averaging"
    MULTIPLYING = "multiplying"
    PRODUCT = "product"
    LIPSCHITZ = "lipschitz"
    KINKED = "kinked"
    EXPONENTIAL = "exponential"
    LOGARITHMIC = "logarithmic"
    ATTENTION = "attention"
    NORMALISING = "normalising"
    MOVING = "moving"
    DISCRETE = "discrete"
    COMPOSITE = "composite"
    OTHER = "other"

    @property
    def sums_products(self) -> bool:
        """Whether each result is a sum of products of two inputs."""
        return self in (Family.BILINEAR, Family.CONVOLUTION)


class Importance(StrEnum):
    """How much an operator matters to the numbers of a model."""

    CORE = "core"
    NORMAL = "normal"
    LOW = "low"


class InPlace(StrEnum):
    """Effect of an in-place operator on the memory of its first argument.

    All others read the memory that they change.
    """

    OVERWRITES = "writes all of it, and reads nothing"
    ASSIGNS = "writes what an index names: where that is everything, it reads nothing"
    EXTENDS = "may add memory that nothing was written to"


class Flow(StrEnum):
    """Which way the values of a communication go."""

    SEND = "send"
    RECEIVE = "receive"
    FROM_ROOT = "from root"
    TO_ROOT = "to root"
    BETWEEN_ALL = "between all"
    MESSAGES = "several messages"

    @property
    def is_message(self) -> bool:
        """Whether it is one message between two ranks."""
        return self in (Flow.SEND, Flow.RECEIVE)


class Linear(StrEnum):
    """In which arguments an operator is linear, in each of them by itself."""

    TENSORS = "in its tensors; numbers are sizes and dimensions"
    NUMBERS_TOO = "in its tensors, and in numbers among its arguments"


class Unordered(StrEnum):
    """Elements whose order changes nothing but roundings."""

    REDUCED = "those that it reduces, over `dim` or over everything"
    ALONG = "those along `dim`: the results come in the same order"
    CONTRACTED = "those of the dimension that two factors have in common"
    FEATURES = "those of the last dimension of the input and of the weight"
    NORMALISED = "those of the last dimension: the results come in the same order"


class Hint(StrEnum):
    """What a word in the name of a function, class or module suggests, where nothing is known."""

    FOLLOWS_MODE = "its result depends on the training flag"
    DRAWS_RANDOM = "it draws random numbers"
    INTERPOLATES = "it reads between elements, at coordinates that it computes"
    PLACED = "it reads at places that it is given as tensors"
    LIMITS_GRADIENTS = "it clips gradients"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a function: its position and its name."""

    position: int
    name: str

    def is_at(self, place: int | str) -> bool:
        """Return whether it is passed at a position, as number or text, or by a name."""
        return place in (self.position, str(self.position), self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """How an operator moves values between ranks.

    Attributes:
        flow: which way they go.
        peer: the argument with the rank of the other end, or of the root.
        fills: a buffer that is output only: before the call it holds nothing of interest.
        sends: a buffer that is input only: after the call it holds nothing new.
        moves_tensors: False where it moves pickled objects, or nothing.
    """

    flow: Flow
    peer: Argument | None = None
    fills: Argument | None = None
    sends: Argument | None = None
    moves_tensors: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Facts about one operator.

    Attributes:
        name: as PyTorch calls it, without the underscores of in-place and private functions;
            communications as ``Distributed.{name}``. For an operator that the table does not know,
            its name in small letters.
        aliases: other names of it, of functions and of modules' classes.
        mindspore: MindSpore's name of it, where that is another name or means something else in
            PyTorch; ``Tensor.fill`` means the method alone.
        family: how errors pass through it.
        importance: how much it matters to the numbers of a model.
        kin: the same for operators that another version or device may take instead of one another;
            empty for none.
        arguments: PyTorch's names of its first arguments, in the order of the function that was
            looked up; empty where nothing depends on them.
        draws_random: it may take numbers from a random generator (some only with certain
            arguments).
        generator_outputs: outputs that are the state of a random generator.
        unwritten_outputs: outputs of MindSpore's operator that its kernel for the CPU leaves as the
            memory was.
        allocates: its result is memory that nothing was written to.
        reads_shape_only: of a tensor that comes first it takes the shape and the type.
        in_place: its effect on the memory of its first argument, when it is called in place; None
            where it only changes it.
        divisor: position of the tensor by whose elements it divides those of the one before it;
            None for all others.
        state_arguments: names of numbers that have their effect in a buffer, not in the result.
        reorders: it can hand on the same elements in another order.
        may_vary: on an accelerator it may give other last bits in every run.
        communication: how it moves values between ranks; None for everything else.
        selects: its results are numbers among its inputs and constants, perhaps with another sign.
        casts: it gives floating-point numbers another precision, or leaves them as they are.
        linear: in which of its arguments it is linear; None where it is not, or not known to be.
        unordered: the elements whose order does not matter; None where it does, or may.
        is_commutative: its first two arguments may change places, if it has no others.
        is_singular: its slope can be infinite at finite arguments.
        free_outputs: places of outputs whose vectors have another sign or phase in every library.
    """

    name: str
    aliases: tuple[str, ...] = ()
    mindspore: tuple[str, ...] = ()
    family: Family = Family.OTHER
    importance: Importance = Importance.NORMAL
    kin: str = ""
    arguments: tuple[str, ...] = ()
    draws_random: bool = False
    generator_outputs: tuple[int, ...] = ()
    unwritten_outputs: tuple[int, ...] = ()
    allocates: bool = False
    reads_shape_only: bool = False
    in_place: InPlace | None = None
    divisor: int | None = None
    state_arguments: tuple[str, ...] = ()
    reorders: bool = False
    may_vary: bool = False
    communication: Communication | None = None
    selects: bool = False
    casts: bool = False
    linear: Linear | None = None
    unordered: Unordered | None = None
    is_commutative: bool = False
    is_singular: bool = False
    free_outputs: tuple[tuple[int, ...], ...] = ()

    @property
    def hands_on(self) -> bool:
        """Whether its results are the numbers it is given, perhaps in another shape or type."""
        return self.kin in _KIN_HANDED_ON or self.name in _HANDED_ON

    @property
    def rounds(self) -> bool:
        """Whether its results are rounded, apart from a change of their type."""
        return not (self.selects or self.family in (Family.MOVING, Family.DISCRETE))

    def of_another_package(self, name: str) -> Operator:
        """Return what is probably known of a function with the same name, under a name of its own.

        That it is linear, or in which order it may add up, is not taken from a name.
        """
        unproved: dict[str, Any] = {"linear": None, "unordered": None, "free_outputs": ()}
        return replace(
            self, name=name, casts=False, is_commutative=False, is_singular=False, **unproved
        )

    def without_buffers(self) -> Operator:
        """Return the same communication where it returns its result and fills no buffer."""
        if self.communication is None:
            return self
        return replace(self, communication=replace(self.communication, fills=None, sends=None))

    def takes_state(self, argument: str) -> bool:
        """Return whether an argument is a model's parameter or buffer.

        Args:
            argument: its position or its name, as text.
        """
        if not argument.isdigit():
            return bool(self.arguments) and argument in _STATE
        position = int(argument)
        return position < len(self.arguments) and self.arguments[position] in _STATE

    def fills(self, argument: int | str) -> bool:
        """Return whether an argument is a buffer that is output only."""
        found = None if self.communication is None else self.communication.fills
        return found is not None and found.is_at(argument)
