"""``python -m undulatus.cli``."""

import sys

from undulatus.cli import main

sys.exit(main())
