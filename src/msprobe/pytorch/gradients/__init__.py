# SPDX-License-Identifier: Apache-2.0
"""Gradients where they cross the boundary of a call, and those of parameters.

`gradient_taps` hooks the nodes of the user's graph; nothing is added to it.
"""
