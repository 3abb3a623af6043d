"""Synthetic data with known truth, and enough physics to be as hard as real data."""
