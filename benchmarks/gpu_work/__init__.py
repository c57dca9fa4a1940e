"""The stages of ``gpu.py``: works and peers on Metal and CUDA, the limits of the device, and the comparison with float32."""
