"""CUDA sources of np_ozaki; installed as the package `np_ozaki._kernels`."""
