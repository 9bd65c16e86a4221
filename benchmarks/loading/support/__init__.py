# SPDX-License-Identifier: Apache-2.0
"""What every arm shares: data, origins, processes, the machine."""
