"""Numbers over time (`metrics.jsonl`, and the sinks that are told of them), traces, and the statistics of
evaluations. Above `config`, beside `store`: every room may write figures and spans.
"""

from patchwright.metrics.file import Metrics, publish
from patchwright.metrics.statistics import Interval, interval, mean_pass_at_k, pass_at_k

__all__ = ["Interval", "Metrics", "interval", "mean_pass_at_k", "pass_at_k", "publish"]
