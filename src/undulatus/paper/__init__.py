"""The paper's two experiments, run again, and a verdict on each of its claims.

In the order in which data pass through them: ``scales`` says which trials to run, ``problems``
prepares their data, ``experiments`` runs them (``pool`` in ``worker`` processes, each trial by
``fitting``) and ``best_maps`` maps held-out days; ``trials`` keeps their records and ``runs``
reads them back as a table; ``claims`` tests the paper's claims on it, and ``report`` writes a page
with ``figures``.
"""
