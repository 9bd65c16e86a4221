# SPDX-License-Identifier: Apache-2.0
"""Duration of a training step whose gradients cross a network.

``model`` has the closed forms and the timeline of one step; its names are exported here. ``trace`` reads and writes
``model.json``, the sizes and times of one model's gradients. ``foresee network`` prints both.
"""

from foresee.network.model import *  # noqa: F403 - all names of __all__
from foresee.network.model import __all__ as __all__
