"""The parts of the synthetic landmark: place, weather, radiation and the Level-2-like mask."""
