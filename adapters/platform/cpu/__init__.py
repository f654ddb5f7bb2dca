"""Platform `cpu`: ordinary processors, bound by threads, memory bandwidth and page faults."""

from hexpo.adapters.platform.cpu.platform import Config, CpuPlatform, build

__all__ = ["Config", "CpuPlatform", "build"]
