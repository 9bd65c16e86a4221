# SPDX-License-Identifier: Apache-2.0
"""Parts of the benchmark of training straight from a bucket."""
