"""What the paper claims, held against trials: a table of claims with verdicts.

Claims are judged for each solver on its own: ``batch`` is the paper's algorithm, ``stochastic``
ours. They were not always tried at the same sizes, so their verdicts are not merged.
What counts as a difference is said in :mod:`undulatus.paper.verdicts`, what counts as
agreement in the docstring of each claim's function.

What the paper claims, each judged by what trials measured.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from undulatus.paper import landmark_claims, sounder_claims
from undulatus.paper.trials import SOLVERS, Run, make_run, read_run
from undulatus.paper.verdicts import FAILS, HOLDS, UNTESTED, WORDS, Claim, Verdict

CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in (*landmark_claims.CLAIMS, *landmark_claims.COST_CLAIMS, *sounder_claims.CLAIMS)
}
"""Every claim, by its id."""

SYMBOLS = {HOLDS: "✓", FAILS: "✗", UNTESTED: "?"}


@dataclass(frozen=True)
class Finding:
    """A claim and its verdicts, by solver, the paper's first.

    ``built_in`` says why the data cannot but agree, where they are a twin's that was made so.
    """

    claim: Claim
    verdicts: dict[str, Verdict]
    built_in: str = ""


def judge_claims(run: Run, claims: Iterable[Claim] = CLAIMS.values()) -> list[Finding]:
    """Return what the trials of a run say of each claim about its experiment."""
    solvers = run.solvers or SOLVERS[:1]
    findings = []
    for claim in claims:
        if claim.experiment != run.experiment:
            continue
        built_in = claim.built_in if run.synthetic else ""
        if not built_in and claim.id in run.facts.get("built_in", ()):
            built_in = "the twin was made so"
        verdicts = {solver: claim.judge(run.by(solver)) for solver in solvers}
        findings.append(Finding(claim, verdicts, built_in))
    return findings


def tally(findings: Sequence[Finding]) -> dict[str, dict[str, int]]:
    """Return how many claims got each word, by solver."""
    solvers = findings[0].verdicts if findings else ()
    return {
        solver: {word: sum(f.verdicts[solver].word == word for f in findings) for word in WORDS}
        for solver in solvers
    }


def claims_lines(findings: Sequence[Finding], width: int = 99) -> list[str]:
    """Return the table of claims as lines of text, and last how many got each verdict."""
    lines = []
    for finding in findings:
        lines += textwrap.wrap(finding.claim.statement, width, subsequent_indent="  ")
        for solver, verdict in finding.verdicts.items():
            lines.append(f"  {SYMBOLS[verdict.word]} {verdict.word} ({solver})")
            for said in (verdict.why, *verdict.numbers, verdict.sizes):
                lines += _indented(said, 6, width)
        if finding.built_in:
            lines += _indented(f"Built into the twin: {finding.built_in}.", 4, width)
    for solver, counts in tally(findings).items():
        told = ", ".join(f"{word} {number}" for word, number in counts.items())
        lines.append(f"{len(findings)} claims, {solver}: {told}.")
    return lines


def _indented(said: str, by: int, width: int) -> list[str]:
    return textwrap.wrap(
        said,
        width,
        initial_indent=" " * by,
        subsequent_indent=" " * (by + 2),
        break_on_hyphens=False,
    )


__all__ = ["CLAIMS", "Run", "claims_lines", "judge_claims", "make_run", "read_run", "tally"]
