"""The paper's two experiments, run again, and a verdict on each of its claims."""
