"""``python -m undulatus.cli``: the command ``undulatus``; see :mod:`undulatus.cli`."""

from undulatus.cli import main

try:
    main()
finally:
    # If an interrupt comes while Python runs code from a string, as dataclasses do, `python -m`
    # ends by SIGINT, whatever became of the interrupt; it forgets it with the next string.
    exec("")
