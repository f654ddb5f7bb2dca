"""How fast a schedule would be: the real loop, played in virtual time by a fleet with speeds."""

from hexpo.infrastructure.forecast.measuring import Forecast
from hexpo.infrastructure.forecast.world import Choice, Costs, Workload, forecast

__all__ = ["Choice", "Costs", "Forecast", "Workload", "forecast"]
