"""Processes as Ray actors: of a cluster that runs, or of one of its own on this machine."""

from hexpo.adapters.cluster.ray.cluster import Config, RayCluster, build

__all__ = ["Config", "RayCluster", "build"]
