# SPDX-License-Identifier: Apache-2.0
"""One file per loader: how it reads the samples, in its best format and with its best settings."""
