"""``python -m undulatus.cli``: the command ``undulatus``; see :mod:`undulatus.cli`."""

import sys

from undulatus.cli import main

sys.exit(main())
