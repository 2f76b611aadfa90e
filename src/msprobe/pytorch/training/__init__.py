# SPDX-License-Identifier: Apache-2.0
"""The training loop around the model: data loaders, seeds, and the settings of a run."""
