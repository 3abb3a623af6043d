"""One classifier for each regime of a condition, such as how high the sun stands.

What the condition means is not known here: a named column assigns each row to a regime, and each
regime has its own features and its own fitted classifier.
"""

from undulatus.regimes.classifier import RegimeClassifier
from undulatus.regimes.edges import DAYLIGHT, MEDIAN, Regime

__all__ = ["DAYLIGHT", "MEDIAN", "Regime", "RegimeClassifier"]
