"""The paper's two experiments, trial by trial: prepared once, run in parallel, resumed."""
