"""What the paper claims, held against trials: a table of claims with verdicts.

Claims are judged for each solver on its own. A claim's own word is that of the paper's algorithm
(``batch``) where it could be tested with it, and otherwise that of ours (``stochastic``).
What counts as a difference is said in :mod:`undulatus.products.contrasts`, what counts as
agreement in the docstring of each claim's function.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from undulatus.products import cost_claims, landmark_claims, sounder_claims
from undulatus.products.measured import SOLVERS, Run
from undulatus.products.verdicts import FAILS, HOLDS, UNTESTED, Claim, Verdict

CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in (*landmark_claims.CLAIMS, *cost_claims.CLAIMS, *sounder_claims.CLAIMS)
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

    @property
    def solver(self) -> str:
        """The solver whose word counts: the paper's where the claim could be tested with it."""
        tested = (name for name, found in self.verdicts.items() if found.word != UNTESTED)
        return next(tested, next(iter(self.verdicts)))

    @property
    def word(self) -> str:
        """What is said of the claim."""
        return self.verdicts[self.solver].word


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


def claims_lines(findings: Sequence[Finding], width: int = 99) -> list[str]:
    """Return the table of claims as lines of text."""
    lines = []
    for finding in findings:
        head = f"{SYMBOLS[finding.word]} {finding.word}: {finding.claim.statement}"
        lines += textwrap.wrap(head, width, subsequent_indent="  ")
        for solver, verdict in finding.verdicts.items():
            if len(finding.verdicts) > 1:
                lines.append(f"    {solver}: {verdict.word}")
            for said in (verdict.why, *verdict.numbers, verdict.sizes):
                lines += _indented(said, 6, width)
        if finding.built_in:
            lines += _indented(f"Built in, not found: {finding.built_in}.", 4, width)
    counts = [f"{word} {sum(f.word == word for f in findings)}" for word in SYMBOLS]
    return [*lines, f"{len(findings)} claims: {', '.join(counts)}."]


def _indented(said: str, by: int, width: int) -> list[str]:
    return textwrap.wrap(
        said,
        width,
        initial_indent=" " * by,
        subsequent_indent=" " * (by + 2),
        break_on_hyphens=False,
    )
