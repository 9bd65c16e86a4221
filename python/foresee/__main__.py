# SPDX-License-Identifier: Apache-2.0
"""``python -m foresee``: the command line."""

import sys

from foresee.cli import main

if __name__ == "__main__":
    sys.exit(main())
