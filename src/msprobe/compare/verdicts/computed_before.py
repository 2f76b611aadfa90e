# SPDX-License-Identifier: Apache-2.0
"""`ComputedBefore`: differences inside modules that an earlier step shows to compute the same.

One program makes its attention by one kernel, the other one by five calls. Where all values agreed
in a step, such calls are no cause of what differs in later steps, which begin with other
parameters. That holds where the results of the module around them are still no further apart than
what they are made of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from itertools import accumulate, islice

from msprobe.compare.model import Matched, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.rounding import LARGEST, is_near
from msprobe.compare.verdicts.calls import Call, Calls, names_of
from msprobe.dump.record_names import forward_name
from msprobe.dump.values import Role


class ComputedBefore:
    """Judges the modules of one step whose inside differs."""

    def __init__(self, comparison: RankComparison) -> None:
        self._calls = Calls(comparison)
        self._known: dict[int, bool] = {}
        # The largest error of a parameter, by the path of each module around it.
        self._errors: defaultdict[str, float] = defaultdict(float)
        for row in comparison.rows:
            if row.value.role is Role.PARAMETER and row.error:
                path = self._calls.parse(row.pair).path
                for around in accumulate(path.split("."), "{}.{}".format):
                    self._errors[around] = max(self._errors[around], row.error)

    def modules(self) -> set[str]:
        """Return the modules inside which one side alone has values or shapes."""
        found = (self._around(row) for row in self._calls.rows if is_of_structure(row))
        return {module.pair.name for modules in found for module in modules}

    def explains(self, row: Row, modules: Collection[str]) -> bool:
        """Return whether a value is inside one of some modules that makes no more of its inputs."""
        around = self._around(row)
        return bool(around) and all(
            module.pair.name in modules and self._is_near(module) for module in around
        )

    def _around(self, row: Row) -> list[Call]:
        """Return the innermost module around a row on each side, or the one that it is of."""
        calls = self._calls
        call = calls.of(row)
        if call.is_matched and call.parsed.is_module and not call.is_backward:
            return [call]
        found = []
        for name, is_target in names_of(row.pair):
            own = forward_name(calls.parsed(name, is_target=is_target)) or name
            parent = calls.parent_of(own, is_target=is_target)
            found += [*islice(calls.modules_around(parent, is_target=is_target), 1)]
        return found

    def _is_near(self, module: Call) -> bool:
        known = self._known.get(module.start)
        if known is None:
            known = self._known[module.start] = self._compare(module)
        return known

    def _compare(self, module: Call) -> bool:
        worst = self._errors.get(module.parsed.path, 0.0)
        backward = self._calls.backward_of(module, is_target=True)
        if not any(row.holds_tensor and row.error is not None for row in module.outputs):
            return False
        for call in (module, backward):
            if call is None:
                continue
            given = (row.error or 0.0 for row in call.inputs if row.holds_tensor)
            worst = max(worst, *given, 0.0)
            for row in call.outputs:
                is_close = is_near(row, worst) and (row.error or 0.0) <= LARGEST
                if row.status is Status.DIFFERS and not is_close:
                    return False
        return True


def is_of_structure(row: Row) -> bool:
    """Return whether a value is of one side alone, or has another shape or kind."""
    is_paired = row.status in (Status.EQUAL, Status.CLOSE, Status.DIFFERS)
    return not isinstance(row, Matched) or not is_paired
