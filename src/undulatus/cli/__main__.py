"""``python -m undulatus.cli``: the same as the command ``undulatus``."""

import sys

from undulatus.cli import main

sys.exit(main())
