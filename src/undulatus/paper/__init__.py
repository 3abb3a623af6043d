"""The paper's experiments, run again, and what became of each of its claims.

The paper's two experiments, trial by trial: prepared once, run in parallel, resumed.
"""
