"""Our classifiers and their peers on the same data in the same run."""
