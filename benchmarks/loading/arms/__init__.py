# SPDX-License-Identifier: Apache-2.0
"""One file per loader: how it reads the same samples, with what it is best at."""
