"""What a CPU offers to products: a compiler for our C++, the vector units that may be used, the BLAS in NumPy's wheel.

Loads neither mlx nor NumPy. Public: all.
"""
