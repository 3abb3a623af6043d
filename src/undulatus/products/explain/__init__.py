"""What a model looks at: its cosines by channel or feature, as numbers, tables and pictures."""

from undulatus.products.explain.cosines import Explanation, explain, overall_importance
from undulatus.products.explain.figure import draw_explanation
from undulatus.products.explain.table import summary_lines, write_csv

__all__ = [
    "Explanation",
    "draw_explanation",
    "explain",
    "overall_importance",
    "summary_lines",
    "write_csv",
]
