"""Platform `cuda`: NVIDIA graphics processors through torch's CUDA build."""

from hexpo.adapters.platform.cuda.platform import Config, CudaPlatform, build

__all__ = ["Config", "CudaPlatform", "build"]
