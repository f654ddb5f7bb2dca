"""What trackers share: quiet failure, one tracker made of several, the names of metrics."""

from hexpo.adapters.trackers.wire.fan_out import FanOut
from hexpo.adapters.trackers.wire.names import Split, split_evaluations
from hexpo.adapters.trackers.wire.quiet import Quiet

__all__ = ["FanOut", "Quiet", "Split", "split_evaluations"]
