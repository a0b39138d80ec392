"""The same prediction, evaluation and training on a Ray cluster. Only `--engine ray` imports this package."""

import os

from xmlpreck.config import InputError

# Whatever its nodes have to say Ray prints to stdout, which is for results: skip all of it.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
try:
    import ray  # noqa: F401
except ImportError:
    raise InputError("--engine ray needs Ray: pip install 'xmlpreck[cluster]'") from None
