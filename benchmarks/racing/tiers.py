"""Tiers of x86-64 processors: vector units that ours and all peers are held to, and the short table of each in README.md.

``MLX_BULK_CPU`` names the tier. Peers read other variables. llama.cpp reads none: it has the units that it was built for.
"""

import os
from dataclasses import dataclass

from racing.result_table import SHARE, Row

VARIABLE = "MLX_BULK_CPU"
FOR_PEERS = {  # MKL and NumPy's OpenBLAS; torch's own loops; oneDNN
    "avx2": {
        "OPENBLAS_CORETYPE": "Haswell",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    "avx512": {"MKL_ENABLE_INSTRUCTIONS": "AVX512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    "amx": {},
}


@dataclass(slots=True, frozen=True)
class Bars:
    """How many times a peer's speed is asked for: transformers and llama.cpp in float32; of scoring also the share of ``sgemm``."""

    decoding: tuple[str, str]  # (b)
    small: tuple[str, str]  # (a)
    scoring: tuple[str, str, str]  # (c)


BARS = {
    "avx2": Bars(("2.0×", "2.5×"), ("2.0×", "2.5×"), ("1.5×", "1.4×", "85 %")),
    "avx512": Bars(("2.0×", "2.0×"), ("2.0×", "2.5×"), ("1.5×", "1.4×", "85 %")),
    "amx": Bars(("2.2×", "2.1×"), ("2.4×", "3.0×"), ("1.8×", "3.0×", "")),
}


def variables() -> dict[str, str]:
    """Returns the variables that hold peers to the units of ``MLX_BULK_CPU``; none where it is not set."""
    return FOR_PEERS.get(os.environ.get(VARIABLE, ""), {})


def check_llama(built_for: str) -> None:
    """Raises SystemExit where llama.cpp has wider units than the tier. built_for: what it says of itself."""
    if os.environ.get(VARIABLE) == "avx2" and "AVX512 = 1" in built_for:
        build = "CMAKE_ARGS='-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON' pip install --target FOLDER llama-cpp-python"
        raise SystemExit(
            f"llama.cpp is built with AVX-512, and {VARIABLE}=avx2 asks for less. Build it once more: {build} "
            "(--no-binary llama-cpp-python --no-deps), and give FOLDER in PYTHONPATH, or as --llama to all.py"
        )


def rows(tier: str) -> list[Row]:
    """Returns the lines of a tier's table."""
    bars = BARS[tier]
    torch, llama = "transformers float32, sorted", "llama.cpp float32"
    found = [
        Row("(b) 135 M, 32 rows, greedy, logprobs", torch, bars.decoding[0], "135m", "ratio.transformers_sorted"),
        Row("(b)", llama, bars.decoding[1], "135m", "ratio.llama_cpp"),
        Row("(a) 5 M, 32 rows", torch, bars.small[0], "5m", "ratio.transformers_sorted"),
        Row("(a)", llama, bars.small[1], "5m", "ratio.llama_cpp"),
        Row("(c) scoring", torch, bars.scoring[0], "score", "ratio.transformers"),
        Row("(c)", llama, bars.scoring[1], "score", "ratio.llama_cpp"),
        Row("(c)", "sgemm of the run, {sgemm_gflops} GFLOP/s", bars.scoring[2], "score", "peak_share", SHARE),
        Row("(d) answers behind a common prefix", "ourselves without sharing", "", "answers", "ratio"),
        Row("(d)", "(c)'s tokens a second, on the tokens computed", "", "answers", "kept", SHARE),
        Row("(d)", "(c)'s GFLOP a second", "", "answers", "kept_flops", SHARE),
    ]
    if tier != "amx":
        return found
    other = "weights that bfloat16 does not hold"
    return [
        *found,
        Row(f"(b), {other}", torch, bars.decoding[0], "135m-float32", "ratio.transformers_sorted"),
        Row("(b), the same weights", llama, bars.decoding[1], "135m-float32", "ratio.llama_cpp"),
        Row(f"(a), {other}", torch, bars.small[0], "5m-float32", "ratio.transformers_sorted"),
        Row("(a), the same weights", llama, bars.small[1], "5m-float32", "ratio.llama_cpp"),
        Row(f"(c), {other}", torch, bars.scoring[0], "score-float32", "ratio.transformers"),
        Row("(c), the same weights", llama, bars.scoring[1], "score-float32", "ratio.llama_cpp"),
    ]
