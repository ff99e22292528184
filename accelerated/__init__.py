"""The engine on NVIDIA GPUs. Its kernels are not part of this version, and it says so when asked for."""
