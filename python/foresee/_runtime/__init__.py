# SPDX-License-Identifier: Apache-2.0
"""Facts of a training process: its rank, the waits of its loop by cause, and its step times."""
