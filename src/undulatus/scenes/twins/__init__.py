"""Synthetic data whose truth is known, with physics enough to be as hard as the real ones."""
