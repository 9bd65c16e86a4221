# SPDX-License-Identifier: Apache-2.0
"""Gradients of a PyTorch model, shared between ranks while backward and the next forward pass run."""

from foresee.torch.gradients._errors import GradientMisuse
from foresee.torch.gradients._trace import trace_model
from foresee.torch.gradients.ddp_hook import DdpState, ddp_hook
from foresee.torch.gradients.synchronize import synchronize

__all__ = ["DdpState", "GradientMisuse", "ddp_hook", "synchronize", "trace_model"]
