"""Processes on this machine: fresh interpreters, called over a socket pair."""

from hexpo.adapters.cluster.local.cluster import Config, LocalCluster, build

__all__ = ["Config", "LocalCluster", "build"]
