"""Every fault of the tables is tried as a user would meet it; none may be lost.

The end of a run says how many were tried, survived and lost (``tests/conftest.py``).
"""

from collections import Counter

import pytest
from tests.faults import files, learning, mapping

FAULTS = (*learning.FAULTS, *mapping.FAULTS, *files.FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_ends_as_promised(fault, shop, record_property):
    record_property("fault", fault.name)
    fault.outcome(shop, lambda: fault.make(shop))


def test_every_fault_has_a_name_of_its_own():
    assert [name for name, n in Counter(fault.name for fault in FAULTS).items() if n > 1] == []
