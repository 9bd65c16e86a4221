# SPDX-License-Identifier: Apache-2.0
"""The parts of the gradients benchmark."""
