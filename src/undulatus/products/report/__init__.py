"""A run of the paper's experiments as one page, with its figures drawn again."""

from undulatus.products.report.page import write_report

__all__ = ["write_report"]
