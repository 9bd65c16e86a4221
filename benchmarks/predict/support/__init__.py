# SPDX-License-Identifier: Apache-2.0
"""What the prediction benchmark is made of: set-ups, origins, loaders, predictions, verdicts."""
