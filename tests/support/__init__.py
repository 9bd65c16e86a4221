# SPDX-License-Identifier: Apache-2.0
"""What the tests stand on: real servers, real child processes, and data whose bytes are known."""
