"""How fast a schedule would be: the real loop, played in virtual time by a fleet with speeds."""

from hexpo.infrastructure.forecast.fitting import Speeds, speeds_of
from hexpo.infrastructure.forecast.machine import Machine, Offer, fastest, offer, sweep
from hexpo.infrastructure.forecast.measuring import Forecast
from hexpo.infrastructure.forecast.world import Choice, Costs, Workload, forecast

__all__ = [
    "Choice",
    "Costs",
    "Forecast",
    "Machine",
    "Offer",
    "Speeds",
    "Workload",
    "fastest",
    "forecast",
    "offer",
    "speeds_of",
    "sweep",
]
