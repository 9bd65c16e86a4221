# SPDX-License-Identifier: Apache-2.0
"""Samples for PyTorch: ``DataLoader``, datasets, worker processes, and the audit of any loader.

Public names are exported by ``foresee.torch``. The gradient path stands in ``foresee.torch.gradients``.
"""
