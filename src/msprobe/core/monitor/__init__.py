# SPDX-License-Identifier: Apache-2.0
"""The documented place of the monitor's analysis in mindstudio-probe."""
