# SPDX-License-Identifier: Apache-2.0
"""Jobs, origins, measurements and acceptance lines of the staggering benchmark."""
