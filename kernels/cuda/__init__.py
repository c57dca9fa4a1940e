"""What CUDA needs beside mlx's operations: attention of padded rows, and a folder for the kernels that mlx compiles.

Public: kernel_cache, attention.
"""
