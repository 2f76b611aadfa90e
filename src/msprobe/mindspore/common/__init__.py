# SPDX-License-Identifier: Apache-2.0
"""Import paths that scripts written for mindstudio-probe have."""
