# SPDX-License-Identifier: Apache-2.0
"""Set-ups, origins, loaders, predictions and acceptance lines of the prediction benchmark."""
