# SPDX-License-Identifier: Apache-2.0
"""The training around the calls of two runs: settings, data, start state, optimizers.

Enter at `history.TrainingHistory`, which compares the facts of all ranks (`msprobe.dump.facts`) and
returns each `differences.FactDifference` in the order of a training step. `update_rules` replays
optimizers in float64, `gradient_factors` says by which number gradients differ. Nothing here
decides what the cause is: `msprobe.compare.verdicts.find_verdict` does.
"""
