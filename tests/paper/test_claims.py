"""Every claim in the registry gets the right verdict; numbers are checked by hand."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from undulatus.paper.claims import CLAIMS, SYMBOLS, claims_lines, judge_claims
from undulatus.paper.runs import make_run
from undulatus.paper.verdicts import FAILS, HOLDS, UNTESTED, WORDS


def with_values(method, **values):
    """Change measures of a method's trials; a value may be a function of the record."""

    def change(record):
        if record["method"] == method:
            for name, value in values.items():
                record[name] = value(record) if callable(value) else value
        return record

    return change


def without(**values):
    """Leave out records that have all these values."""

    def change(record):
        return None if all(record.get(name) == value for name, value in values.items()) else record

    return change


def only(*names):
    def change(record):
        return record if record["method"] in names else None

    return change


def but_for(*names):
    def change(record):
        return {name: value for name, value in record.items() if name not in names}

    return change


def equal_by_regime(record):
    return record | {"accuracy": 0.9}


def slower_by_rows(record):
    return record["predict_cpu_seconds"] * record["n"] / 10_000


@dataclass(frozen=True)
class Case:
    """Changes to records for which a claim holds, so that it fails, or is left untested.

    ``breaks_gpc`` says that the first changes GPC, which has no solver: no solver fails alone.
    """

    fails: Callable
    untested: Callable
    breaks_gpc: bool = False


CASES = {
    "vff-more-accurate": Case(with_values("vff", accuracy=0.5), only("vff", "gpc")),
    "rff-trains-faster": Case(with_values("rff", fit_cpu_seconds=1e9), but_for("fit_cpu_seconds")),
    "rff-nears-gpc": Case(with_values("gpc", accuracy=0.999), only("vff", "rff"), breaks_gpc=True),
    "n-and-d-together": Case(
        with_values("vff", accuracy=lambda r: 0.9 - 1e-4 * r["run"]),
        lambda r: r if r["D"] in (None, 50) else None,
    ),
    "illumination": Case(equal_by_regime, without(regime="low")),
    "coast": Case(with_values("vff", coast_accuracy=0.1), but_for("coast_label_accuracy")),
    "cheaper-than-gpc": Case(with_values("vff", fit_cpu_seconds=1e9), only("vff", "rff")),
    "test-time-flat": Case(
        with_values("rff", predict_cpu_seconds=slower_by_rows),
        lambda r: r if r["n"] == 10_000 else None,
    ),
    "hundredfold-faster": Case(with_values("vff", predict_cpu_seconds=1.0), only("vff", "rff")),
    "vff-over-gpc": Case(
        with_values("vff", accuracy=lambda r: 0.83 + 1e-4 * r["run"]), only("gpc")
    ),
    "best-near-five": Case(
        with_values("vff", accuracy=lambda r: 0.8 + 1e-4 * r["D"]),
        lambda r: r if r["D"] not in (1, 2) else None,
    ),
    "over-fits": Case(with_values("vff", train_accuracy=0.9), but_for("train_accuracy")),
    "rff-below-gpc": Case(with_values("rff", accuracy=0.9), only("vff", "rff")),
    "times-lower": Case(with_values("vff", fit_cpu_seconds=1e5), but_for("predict_cpu_seconds")),
}
"""A case for each claim."""


def finding_on(made_up, claim_id, change=lambda record: record, **options):
    run = make_run(*made_up(CLAIMS[claim_id].experiment, change, **options))
    (finding,) = judge_claims(run, [CLAIMS[claim_id]])
    return finding


def word_on(*args, **options):
    return finding_on(*args, **options).verdicts["batch"].word


def test_every_claim_has_a_case_that_fails_and_one_that_is_untested():
    assert set(CASES) == set(CLAIMS)
    assert set(SYMBOLS) == set(WORDS)


@pytest.mark.parametrize("claim_id", CLAIMS)
class TestEveryClaim:
    def test_holds_on_records_that_follow_the_paper(self, made_up, claim_id):
        verdict = finding_on(made_up, claim_id).verdicts["batch"]
        assert verdict.word == HOLDS
        assert verdict.numbers
        assert verdict.sizes
        assert not verdict.why

    def test_fails_on_records_that_contradict_it(self, made_up, claim_id):
        verdict = finding_on(made_up, claim_id, CASES[claim_id].fails).verdicts["batch"]
        assert verdict.word == FAILS
        assert any(line.endswith("(fails)") for line in verdict.numbers)

    def test_is_untested_with_a_reason_where_records_are_missing(self, made_up, claim_id):
        verdict = finding_on(made_up, claim_id, CASES[claim_id].untested).verdicts["batch"]
        assert verdict.word == UNTESTED
        assert verdict.why.endswith(".")

    def test_is_untested_where_no_trial_was_done(self, made_up, claim_id):
        for change in (lambda record: record | {"status": "failed"}, lambda record: None):
            assert word_on(made_up, claim_id, change) == UNTESTED

    def test_needs_only_one_run(self, made_up, claim_id):
        assert word_on(made_up, claim_id, runs=1) == HOLDS

    def test_has_a_verdict_for_each_solver(self, made_up, claim_id):
        def change(record):
            return CASES[claim_id].fails(record) if record["solver"] == "stochastic" else record

        both = ("batch", "stochastic")
        verdicts = finding_on(made_up, claim_id, change, solvers=both).verdicts
        assert tuple(verdicts) == both
        assert verdicts["batch"].word == HOLDS
        if not CASES[claim_id].breaks_gpc:
            assert verdicts["stochastic"].word == FAILS

    def test_is_a_sentence(self, made_up, claim_id):
        claim = CLAIMS[claim_id]
        assert claim.id == claim_id
        assert claim.statement.endswith(".")


def test_differences_are_paired_and_have_the_standard_error_of_their_mean(made_up):
    leads = [0.01, 0.02, 0.06]

    def change(record):
        if record["method"] == "vff":
            record["accuracy"] = 0.8 + leads[record["run"]]
        if record["method"] == "rff":
            record["accuracy"] = 0.8
        return record

    verdict = finding_on(made_up, "vff-more-accurate", change).verdicts["batch"]
    # Mean 3 points; deviations -2, -1, 3: variance 14 / 2, over 3 runs: error sqrt(7 / 3) = 1.53.
    assert verdict.numbers[0] == "high +3.00 ± 1.53 points (fails)"
    assert verdict.sizes == "n = 10,000 to 300,000; D = 10 to 200; 3 runs"
    assert verdict.word == FAILS


def test_a_claim_about_every_regime_fails_if_it_does_in_one(made_up):
    def change(record):
        if record["regime"] == "night" and record["method"] == "vff":
            record["accuracy"] = 0.1
        return record

    verdict = finding_on(made_up, "vff-more-accurate", change).verdicts["batch"]
    assert verdict.word == FAILS
    assert verdict.why == "Holds in 3 of 4."
    assert [line.endswith("(fails)") for line in verdict.numbers] == [False] * 3 + [True]


def test_settings_tried_with_only_one_method_do_not_count(made_up):
    def change(record):
        if record["method"] == "rff" and record["n"] != 10_000:
            return None
        return record

    verdict = finding_on(made_up, "vff-more-accurate", change).verdicts["batch"]
    assert verdict.sizes == "n = 10,000; D = 10 to 200; 3 runs"


def test_times_at_sizes_not_tried_are_marked_as_extrapolated(made_up):
    def change(record):
        return record if record["n"] <= (10_000 if record["method"] == "gpc" else 50_000) else None

    verdict = finding_on(made_up, "cheaper-than-gpc", change).verdicts["batch"]
    # 1e-6 and 1e-5 times n D at 300,000 and 200; 1e-8 n^3 at 15,000.
    assert verdict.numbers[0] == (
        "high: RFF-GPC 60 s (n = 300,000, extrapolated as n^1.0 from 10,000 and 50,000; D = 200), "
        "VFF-GPC 600 s (n = 300,000, extrapolated as n^1.0 from 10,000 and 50,000; D = 200); "
        "GPC 34,000 s (n = 15,000, extrapolated as n^3.0 from 5,000 and 10,000)"
    )
    verdict = finding_on(made_up, "hundredfold-faster", change).verdicts["batch"]
    # 1e-8 n^2 at 15,000 over 1e-4 + 1e-7 D^2 at 200: 2.25 / 0.0041 = 549.
    assert verdict.numbers[0] == (
        "high: 550 times for RFF-GPC (D = 200), 550 times for VFF-GPC (D = 200); "
        "GPC at n = 15,000, extrapolated as n^2.0 from 5,000 and 10,000"
    )


def test_nothing_is_extrapolated_from_one_size_or_over_a_hundredfold(made_up):
    for sizes in ((10_000,), (10, 20)):
        word = word_on(
            made_up,
            "cheaper-than-gpc",
            lambda r, sizes=sizes: (
                r | {"n": sizes[r["n"] % 3 % len(sizes)]} if r["method"] == "gpc" else r
            ),
        )
        assert word == UNTESTED


def test_too_few_waves_leave_open_whether_rff_reaches_gpc(made_up):
    def change(record):
        if record["method"] == "rff":
            record["accuracy"] -= 0.02
        return record if record["D"] in (None, 10, 50) else None

    verdict = finding_on(made_up, "rff-nears-gpc", change).verdicts["batch"]
    assert verdict.word == UNTESTED
    assert "fewer frequencies than the paper's 200" in verdict.why
    assert len(verdict.numbers) == 4


def test_a_lead_over_gpc_on_fewer_rows_proves_nothing_but_a_missing_lead_does(made_up):
    def few(record):
        return None if record["method"] == "gpc" and record["n"] > 1_000 else record

    assert word_on(made_up, "vff-over-gpc", few) == UNTESTED
    worse = with_values("vff", accuracy=0.8)
    assert word_on(made_up, "vff-over-gpc", lambda r: few(worse(r))) == FAILS


def test_methods_are_compared_with_gpc_on_as_many_rows_if_both_were_tried(made_up):
    facts, records = made_up("iavisa", lambda r: r if r["D"] or r["n"] <= 5_000 else None)
    fewer = [
        r | {"id": f"{r['id']} of 5,000", "n": 5_000, "accuracy": r["accuracy"] - 0.001}
        for r in records
        if r["D"]
    ]
    run = make_run(facts, [*records, *fewer])
    vff, rff = judge_claims(run, [CLAIMS["vff-over-gpc"], CLAIMS["rff-below-gpc"]])
    # Means over runs 0, 1, 2: 0.849 + 0.0005 and 0.81 - 20 / 5,000 + 0.001.
    assert vff.verdicts["batch"].word == HOLDS
    assert vff.verdicts["batch"].numbers == (
        "VFF-GPC 84.9 % (D = 5, n = 5,000), GPC 80.7 % (n = 5,000): +4.25 ± 0.03 points",
    )
    assert rff.verdicts["batch"].word == HOLDS
    assert "(D = 150, n = 5,000)" in rff.verdicts["batch"].numbers[0]


def test_common_sizes_below_five_thousand_rows_do_not_count(made_up):
    facts, records = made_up("iavisa", lambda r: r if r["D"] or r["n"] <= 1_000 else None)
    fewer = [r | {"id": f"{r['id']} of 1,000", "n": 1_000} for r in records if r["D"]]
    run = make_run(facts, [*records, *fewer])
    (finding,) = judge_claims(run, [CLAIMS["vff-over-gpc"]])
    assert finding.verdicts["batch"].word == UNTESTED
    assert "n = 19,939" in finding.verdicts["batch"].numbers[0]


@pytest.mark.parametrize("claim", ["vff-over-gpc", "best-near-five"])
@pytest.mark.parametrize("n", [4_000, 5_000])
def test_fewer_than_five_thousand_spectra_give_no_verdict(made_up, claim, n):
    def change(record):
        kept = record if record["D"] or record["n"] > 10_000 else None
        return kept and kept | {"n": n}

    assert word_on(made_up, claim, change) == (HOLDS if n == 5_000 else UNTESTED)


def test_few_waves_do_not_show_that_rff_stays_below_gpc(made_up):
    def few(record):
        return record if (record["D"] or 1) <= 50 else None

    assert word_on(made_up, "rff-below-gpc", few) == UNTESTED
    ahead = with_values("rff", accuracy=0.9)
    assert word_on(made_up, "rff-below-gpc", lambda r: few(ahead(r))) == FAILS


def test_accuracies_are_over_the_folds_that_both_methods_were_tried_on(made_up):
    def change(record):
        if record["method"] == "gpc":
            return record if record["run"] == 0 else None
        return record

    verdict = finding_on(made_up, "vff-over-gpc", change).verdicts["batch"]
    # On fold 0: 0.85, and 0.81 - 20 / 19,938.
    assert verdict.numbers == (
        "VFF-GPC 85.0 % (D = 5, n = 19,939), GPC 80.9 % (n = 19,939): +4.10 points",
    )


def test_folds_of_sizes_that_differ_by_one_are_one_size(made_up):
    verdict = finding_on(made_up, "vff-over-gpc").verdicts["batch"]
    # Means over runs 0, 1, 2: 0.85 + 0.0005 and 0.81 - 20 / n + 0.001.
    assert verdict.numbers == (
        "VFF-GPC 85.0 % (D = 5, n = 19,939), GPC 81.0 % (n = 19,939): +4.05 ± 0.03 points",
    )
    assert verdict.sizes == "3 folds"


def test_claims_built_into_a_simulator_are_marked_and_not_on_real_data(made_up):
    assert finding_on(made_up, "coast").built_in
    assert not finding_on(made_up, "vff-more-accurate").built_in
    real = {"source": "SEVIRI", "synthetic": False}
    assert not finding_on(made_up, "coast", data=real).built_in


def test_lines_have_every_claim_with_its_verdicts_and_numbers(made_up):
    breaks = CASES["vff-more-accurate"].fails
    run = make_run(*made_up("landmarks", breaks, solvers=("batch", "stochastic")))
    findings = judge_claims(run)
    lines = claims_lines(findings, width=80)
    assert all(len(line) <= 80 for line in lines)
    assert lines[:2] == ["VFF-GPC is more accurate than RFF-GPC.", "  ✗ does not hold (batch)"]
    text = " ".join(" ".join(line.split()) for line in lines)
    for finding in findings:
        assert finding.claim.statement in text
        for verdict in finding.verdicts.values():
            assert all(" ".join(number.split()) in text for number in verdict.numbers)
    for line, solver in zip(lines[-2:], ("batch", "stochastic"), strict=True):
        words = [finding.verdicts[solver].word for finding in findings]
        counts = ", ".join(f"{word} {words.count(word)}" for word in WORDS)
        assert line == f"{len(findings)} claims, {solver}: {counts}."
        # vff is right in half of all rows: rff is ahead, and growing n and D gains nothing.
        failed = {f.claim.id for f in findings if f.verdicts[solver].word == FAILS}
        assert failed >= {"vff-more-accurate", "n-and-d-together"}


def test_two_sizes_cannot_show_a_stall(made_up):
    def two(record):
        return record if record["D"] in (None, 10, 200) else None

    verdict = finding_on(made_up, "n-and-d-together", two).verdicts["batch"]
    assert verdict.word == UNTESTED
    assert "cannot show that accuracy stalls" in verdict.why


def test_times_that_scatter_give_no_verdict(made_up):
    places = {10_000: 0, 50_000: 1, 300_000: 2, 10: 0, 50: 1, 200: 2}

    def noisy(record):
        if record["D"]:
            odd = (places[record["n"]] + places[record["D"]]) % 2
            record["predict_cpu_seconds"] *= 4.0 ** (1 - 2 * odd)
        return record if record["regime"] == "high" else None

    verdict = finding_on(made_up, "test-time-flat", noisy, runs=1).verdicts["batch"]
    assert verdict.word == UNTESTED
    assert verdict.why == "Times scatter too much for so few sizes and trials."
    assert len(verdict.numbers) == 2


def test_fixed_costs_of_small_trials_do_not_flatter_extrapolated_times(made_up):
    def change(record):
        if record["method"] == "gpc":
            return record if record["n"] <= 10_000 else None
        return record | {"fit_cpu_seconds": 5.0} if record["n"] <= 50_000 else None

    verdict = finding_on(made_up, "cheaper-than-gpc", change).verdicts["batch"]
    assert "RFF-GPC 30 s (n = 300,000, extrapolated as n^1.0" in verdict.numbers[0]
