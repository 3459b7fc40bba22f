"""What five papers claim, table by table, and what this project's records say of each claim.

A row of the page `docs/papers.md` is a :class:`~benchmarks.papers.claims.Claim`: the paper's own
figures, how records of both packages are read, and the command that makes these records. Nothing
here runs anything: :mod:`benchmarks.queue` does.
"""
