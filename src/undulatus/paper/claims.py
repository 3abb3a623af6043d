"""The paper's claims, each with a verdict from the trials of a run.

Each solver has its own verdicts: ``batch`` is the paper's algorithm, ``stochastic`` ours. They
were not always tried at the same sizes, so verdicts are not merged. When a difference counts is
said in :mod:`undulatus.paper.verdicts`, when a claim holds in the docstring of its function.

To add a claim, add an entry to ``CLAIMS`` in :mod:`undulatus.paper.landmark_claims` or
:mod:`undulatus.paper.sounder_claims`, and a case that breaks it to ``CASES`` in
``tests/paper/test_claims.py``. Tests run over every entry.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from undulatus.paper import landmark_claims, sounder_claims
from undulatus.paper.runs import SOLVERS, Run
from undulatus.paper.verdicts import FAILS, HOLDS, UNTESTED, WORDS, Claim, Verdict

CLAIMS: dict[str, Claim] = {
    claim.id: claim for claim in (*landmark_claims.CLAIMS, *sounder_claims.CLAIMS)
}
"""Every claim, by its id."""

SYMBOLS = {HOLDS: "✓", FAILS: "✗", UNTESTED: "?"}


@dataclass(frozen=True)
class Finding:
    """A claim and its verdicts by solver, the paper's first.

    ``built_in`` says why the claim holds by construction on the run's data; empty if it does not.
    """

    claim: Claim
    verdicts: dict[str, Verdict]
    built_in: str = ""


def judge_claims(run: Run, claims: Iterable[Claim] = CLAIMS.values()) -> list[Finding]:
    """Return the finding on each claim about the run's experiment."""
    return [
        Finding(
            claim,
            {solver: claim.verdict_on(run.by(solver)) for solver in run.solvers or SOLVERS[:1]},
            claim.built_in if run.facts.synthetic else "",
        )
        for claim in claims
        if claim.experiment == run.experiment
    ]


def tally(findings: Sequence[Finding]) -> dict[str, dict[str, int]]:
    """Return how many claims got each verdict, by solver."""
    solvers = findings[0].verdicts if findings else ()
    return {
        solver: {word: sum(f.verdicts[solver].word == word for f in findings) for word in WORDS}
        for solver in solvers
    }


def claims_lines(findings: Sequence[Finding], width: int = 99) -> list[str]:
    """Return the findings as lines of text; the last lines count the verdicts."""
    lines = []
    for finding in findings:
        lines += textwrap.wrap(finding.claim.statement, width, subsequent_indent="  ")
        for solver, verdict in finding.verdicts.items():
            lines.append(f"  {SYMBOLS[verdict.word]} {verdict.word} ({solver})")
            for text in (verdict.why, *verdict.numbers, verdict.sizes):
                lines += _indented(text, 6, width)
        if finding.built_in:
            lines += _indented(f"Built into the simulator: {finding.built_in}.", 4, width)
    for solver, counts in tally(findings).items():
        words = ", ".join(f"{word} {number}" for word, number in counts.items())
        lines.append(f"{len(findings)} claims, {solver}: {words}.")
    return lines


def _indented(text: str, by: int, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * by,
        subsequent_indent=" " * (by + 2),
        break_on_hyphens=False,
    )
