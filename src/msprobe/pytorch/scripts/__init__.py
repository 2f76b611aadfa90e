# SPDX-License-Identifier: Apache-2.0
"""Scripts that show one recorded call on any machine. Enter at ``op_script.py``.

``call_source.py`` writes the call as a line of Python, ``tensor_source.py`` its tensors;
``op_script.py`` puts these and the allowed errors into the frame of a script that needs PyTorch
alone; ``shrinking.py`` looks for a smaller call with the same fault.
"""
