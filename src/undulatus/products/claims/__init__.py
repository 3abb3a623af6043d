"""What the paper claims, each judged by what trials measured."""

from undulatus.products.claims.measured import Run, make_run, read_run
from undulatus.products.claims.registry import (
    CLAIMS,
    claims_lines,
    judge_claims,
    tally,
)

__all__ = ["CLAIMS", "Run", "claims_lines", "judge_claims", "make_run", "read_run", "tally"]
