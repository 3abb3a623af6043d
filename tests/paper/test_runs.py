"""A run is read back as it was written, also after a crash."""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from undulatus.errors import InputError
from undulatus.paper.runs import SETTING, make_run, means, read_facts, read_run


def write(out, facts, records, end=""):
    facts.write(out)
    (out / "trials.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records) + end)


def test_a_run_is_read_as_it_was_written(made_up, tmp_path):
    facts, records = made_up("landmarks")
    write(tmp_path, facts, records)
    run = read_run(tmp_path)
    assert run.facts == facts
    assert len(run.trials) == len(records)
    assert run.solvers == ("batch",)
    assert set(run.by("batch")["solver"]) == {"batch", "exact"}


def test_a_line_cut_short_is_not_a_trial(made_up, tmp_path):
    facts, records = made_up("landmarks")
    write(tmp_path, facts, records, end='{"id": "high-vff')
    assert len(read_run(tmp_path).trials) == len(records)


def test_a_folder_without_a_run_says_so(tmp_path):
    with pytest.raises(InputError, match=r"holds no run: it has no run.json"):
        read_run(tmp_path)


def test_facts_of_a_run_that_has_not_prepared_its_data_can_be_read(made_up, tmp_path):
    facts = replace(made_up("landmarks")[0], seconds=None)
    facts.write(tmp_path)
    written = json.loads((tmp_path / "run.json").read_text())
    del written["built_in"]
    (tmp_path / "run.json").write_text(json.dumps(written))
    assert read_facts(tmp_path) == facts


@pytest.mark.parametrize("text", ["{", "[]", '{"experiment": "landmarks"}', '{"what": 1}'])
def test_a_file_that_does_not_describe_a_run_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=r"run\.json does not describe a run"):
        read_run(tmp_path)


def test_a_run_before_its_first_trial_is_empty(made_up, tmp_path):
    made_up("iavisa")[0].write(tmp_path)
    run = read_run(tmp_path)
    assert run.trials.empty
    assert run.solvers == ()
    assert means(run.done).empty


def test_the_last_record_of_a_trial_counts(made_up):
    facts, records = made_up("landmarks")
    again = records[0] | {"accuracy": 0.123}
    run = make_run(facts, [*records, again])
    assert len(run.trials) == len(records)
    assert (run.trials["accuracy"] == 0.123).sum() == 1


def test_means_are_over_the_runs_of_each_setting(made_up):
    facts, records = made_up("landmarks")
    table = means(make_run(facts, records).done)
    assert not table.duplicated(SETTING).any()
    row = table.set_index(SETTING).loc[("mid", "vff", "batch", 50_000, 200)]
    # 0.94 + 0.0002 run - 0.004 - 0.001, over runs 0, 1 and 2.
    assert_allclose(row["accuracy"], 0.9352, rtol=1e-12)
    assert_allclose(row["accuracy_error"], 0.0002 / np.sqrt(3.0), rtol=1e-10)
    assert row["runs"] == 3
    assert list(table["regime"].unique()) == ["high", "mid", "low", "night"]


def test_sizes_of_landmarks_are_never_joined(made_up):
    facts, records = made_up("landmarks", lambda r: r | {"n": 1000 + r["run"]})
    assert set(make_run(facts, records).trials["n"]) == {1000, 1001, 1002}


def test_trials_that_were_not_done_are_separate(made_up):
    def lost(record):
        return record | {"status": "over time budget"} if record["n"] == 15_000 else record

    run = make_run(*made_up("landmarks", lost))
    assert len(run.not_done) == 12
    assert set(run.not_done["n"]) == {15_000}
    assert len(run.done) + len(run.not_done) == len(run.trials)
