# SPDX-License-Identifier: Apache-2.0
"""Loading of one rank, behind ``foresee.Loader`` and ``foresee.torch.DataLoader``.

``session`` wires engine, progress, faults and audit together; both loaders are thin over it. Needs no torch.
"""
