# SPDX-License-Identifier: Apache-2.0
"""`Cause`: why a difference has the origin that it has.

The program decides by these members; their words are for people, and are put together last.
"""

from __future__ import annotations

from msprobe.plain_text import WordedEnum


class Cause(WordedEnum):
    """Reason for the origin of a difference, or for a row being close after all.

    In its words ``{}`` is replaced by the record, value or rank that it names.
    """

    # Parameters and arguments
    PARAMETER = "parameter", "the parameter itself differs"
    SAME_PARAMETER = "same_parameter", "the same parameter as in {}"
    SEE_PARAMETER = "see_parameter", "a parameter; see {}"
    OTHER_PARAMETER = "other_parameter", "called with {}"
    ARGUMENT = "argument", "the call was given another argument"
    CHANGED_STATE = (
        "changed_state",
        "it agreed when the step began, and was changed since by code that was not recorded",
    )
    OTHER_RANKS_STATE = (
        "other_ranks_state",
        "it agreed when the step began; since then only the {} holds what another rank holds, too",
    )
    WRITTEN_STATE = "written_state", "it agreed when the step began; calls since differ"
    LONE_UPDATE = "lone_update", "what an update left in a parameter on one side alone"
    TAKEN_FROM_TENSOR = "taken_from_tensor", "taken from a tensor that differs"

    NO_EFFECT = "no_effect", "without consequence: the result of the call shows none"
    OTHER_LAYOUT = "other_layout", "the same numbers, with dimensions in another order"
    SAME_LIMIT = "same_limit", "the limit of a type on both sides: it marks what is left out"

    # Values that come into a call
    MODEL_INPUT = "model_input", "came in with the model's input"
    OTHER_SPLIT = "other_split", "the batch is split into another number of micro batches"
    OUTSIDE = "outside", "came in from outside the recorded calls"
    UNTRACED = "untraced"
    LIKELY = "likely", "made by code that was not recorded, from values hardly nearer to each other"
    UNRECORDED_CODE = "unrecorded_code", "made by code that was not recorded"
    OTHER_VALUE = "other_value", "fed with {}"
    OTHER_ORDER = "other_order", "fed with {}"
    OTHER_DRAW = "other_draw", "fed with {}"
    UNRECORDED_VALUE = "unrecorded_value", "fed with {}"
    SAME_VALUE = "same_value", "the same value as {}"
    CHANGED_BETWEEN = "changed_between", "changed between {} by code that was not recorded"
    SURROUNDING_CODE = "surrounding_code", "made by the own code of {}"
    RANDOM_STATE = "random_state", "the state of the random generator differs"

    # Results
    OWN_CODE = "own_code", "made by this module's own code between its parts, first in {}"
    OTHER_RESULT = "other_result", "not what {} made"
    OTHER_RETURN = "other_return", "it is {}"
    RANDOM_NUMBERS = (
        "random_numbers",
        "it draws random numbers: are the seeds and earlier draws the same?",
    )
    LONE_PRECISION = "lone_precision"
    FINITE_INPUTS = "finite_inputs", "its inputs are finite"
    BEYOND_TYPE = "beyond_type", "its inputs are finite, but beyond the range of its type"
    UNPROVED_INPUT = (
        "unproved_input",
        "whether {} holds the same elements in the same order was not recorded",
    )
    INPUTS_FAR_APART = "inputs_far_apart", "its inputs are finite, but already far apart"
    INPUTS_REACH_ZERO = "inputs_reach_zero", "its inputs are finite, but already reach zero"
    GROWTH = "growth", "the relative error grew {} times"
    UNEXPLAINED = "unexplained", "more than its inputs explain"
    DOUBTFUL_MASK = "doubtful_mask", "the mask it was given is made from values that differ"
    REORDERED = "reordered", "the elements came in another order"
    ROUNDING = "rounding", "within the rounding of this operation: its terms cancel"
    NOISE = "noise", "zero up to the rounding of the sum that made it, on both sides"
    CLOSE_INPUTS = "close_inputs", "no further apart than what it is made of, which is close"
    MEASURED_NOISE = "measured_noise", "within the noise measured in the reference"
    FIRST_SAVED = "first_saved", "the first saved value that differs"

    # Gradients
    UNEXPLAINED_GRADIENT = (
        "unexplained_gradient",
        "the gradient that came in differs though everything before agrees",
    )
    OTHER_START = "other_start", "the backward pass began with another gradient"
    CHANGED_GRADIENT = (
        "changed_gradient",
        "the gradient was changed after the calls that use this value had handed it back",
    )
    WRITTEN_GRADIENT = (
        "written_gradient",
        "changed between {} by another backward pass or by code that was not recorded",
    )
    SUM_OF_CLOSE = "sum_of_close", "a sum of gradients that are close"
    CLOSE_GRADIENTS = "close_gradients", "explained by gradients that are close"
    SEE_GRADIENT = "see_gradient", "a gradient; see {}"
    OTHER_USERS = "other_users", "other calls use the parameter"
    NO_PARAMETER_GRADIENT = "no_parameter_gradient", "the parameter gets no gradient in the {}"
    UNREAD_GRADIENTS = (
        "unread_gradients",
        "no gradient of a parameter was recorded in the {}, whose own code updates them",
    )
    ACCUMULATED = (
        "accumulated",
        "no recorded call that uses the parameter handed back another gradient; code that was not "
        "recorded made it, or changed or accumulated it afterwards",
    )
    NO_GRADIENT = "no_gradient", "no gradient flows here on one side"
    LATER_GRADIENT = (
        "later_gradient",
        "the first gradient is there, a later one is not, as without create_graph",
    )
    CUT_HERE = (
        "cut_here",
        "the forward call's result requires no gradient, though what it is given does, as under "
        "no_grad",
    )
    CUT_BEFORE = "cut_before", "the forward pass cut the graph before this call"
    DETACHED = (
        "detached",
        "the forward call is given it without a gradient in the {}: detached, frozen, or under "
        "no_grad",
    )
    DETACHED_BEHIND = (
        "detached_behind",
        "the forward call is given it detached in the {}, though it is made with a gradient",
    )
    NOT_DERIVED = (
        "not_derived",
        "the forward call is given a gradient that has none itself in the {}: taken without "
        "create_graph, or detached",
    )

    # Calls that only one side makes
    USED_CALL = "used_call", "only the {} makes this call, and what uses its result differs"
    GRADIENT_CALL = (
        "gradient_call",
        "only the {} makes this call, and the gradients that flow back through it differ",
    )
    REORDERING_CALL = (
        "reordering_call",
        "only the {} makes this call; it puts the elements into another order, and what uses its "
        "result differs",
    )
    CUTTING_CALL = (
        "cutting_call",
        "only the {} makes this call, and cuts the graph: no gradient flows back through it",
    )
    NAN_CALL = "nan_call", "only the target makes this call, and its result holds NaN"
    HARMLESS = "harmless", "without consequence: the result of {} agrees"
    CHOSEN = "chosen", "the program may have chosen it by values that it read, which differ"
    HIDDEN_EFFECT = (
        "hidden_effect",
        "what uses it is given other differences, too: nothing tells whether it has an effect",
    )
    HARMLESS_BEFORE = (
        "harmless_before",
        "without consequence in step {}, before optimizer steps made parameters differ",
    )
    SHARD = "shard", "one side holds a part of it on each rank: their norms are compared together"
    ABSORBED = "absorbed", "though what it was given is equal; without consequence: {} agrees again"
    SAME_GRADIENTS = (
        "same_gradients",
        "without consequence: the optimizer gets the same gradients",
    )

    # Other steps and ranks
    EARLIER_STEP = (
        "earlier_step",
        "an earlier step updated it with a gradient that was not the same",
    )
    EARLIER_RESULT = "earlier_result", "made in an earlier step, from values that differ"
    STEP_GROWTH = (
        "step_growth",
        "an earlier step updated it with a gradient that was not the same, but hardly enough so",
    )
    LEFT_BEHIND = "left_behind", "perhaps left behind by an earlier step, which differs"
    OTHER_UPDATE = (
        "other_update",
        "the parameter itself differs; its gradient agreed in the steps before: it was updated "
        "differently",
    )
    OPTIMIZER_STEP = "optimizer_step", "an optimizer step before made it differ"
    OTHER_RANK = "other_rank", "rank {} put a difference in"
    REPLICA_PARAMETER = "replica_parameter", "a parameter that replicas should share differs"
    REPLICA_GRADIENT = "replica_gradient", "a reduced gradient that replicas should share differs"
    REPLICAS_PART = (
        "replicas_part",
        "{} differ between these ranks: are they data-parallel?",
    )
    PARTED_TOO = "parted_too", "these ranks part as a whole; see {}"
    REPLICA_RESULT = "replica_result", "the inputs are equal on both ranks, the results are not"
