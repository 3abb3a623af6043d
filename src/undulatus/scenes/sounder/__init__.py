"""The parts of the synthetic sounder: from its strata to its instrument."""
