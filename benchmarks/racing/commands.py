"""The program and the options of each run that the tables of README.md are made of."""

FLOAT32 = ["mlx_lm_fast", "transformers_sorted", "llama_cpp", "sgemm"]
COMMANDS: dict[str, list[str]] = {
    "135m-greedy-32": ["generate_speed.py"],
    "135m-greedy-64": ["generate_speed.py", "--rows", "64", "--peers", *FLOAT32],
    "135m-sampled-32": ["generate_speed.py", "--sampled", "--peers", *FLOAT32],
    "5m-greedy-32": ["generate_speed.py", "--shape", "5m"],
    "5m-greedy-64": ["generate_speed.py", "--shape", "5m", "--rows", "64", "--peers", *FLOAT32],
    "5m-sampled-32": ["generate_speed.py", "--shape", "5m", "--sampled", "--peers", *FLOAT32],
    "score": ["score_speed.py"],
    "answers": ["prefix_speed.py", "--work", "answers"],
    "samples": ["prefix_speed.py", "--work", "samples"],
    "skew": ["skew.py"],
    "outside": ["outside.py"],
    "million": ["million.py"],
    "million-score": ["million.py", "--job", "score"],
}
# Of a tier's table: some fifteen minutes on two cores.
TIER_PEERS = ["--peers", "transformers_sorted", "llama_cpp", "sgemm"]
TIER_COMMANDS: dict[str, list[str]] = {
    "135m": ["generate_speed.py", *TIER_PEERS],
    "5m": ["generate_speed.py", "--shape", "5m", "--rounds", "7", *TIER_PEERS],
    "score": ["score_speed.py", "--texts", "16", "--rounds", "14", "--peers", "sgemm", "transformers", "llama_cpp"],
    "answers": ["prefix_speed.py", "--work", "answers", "--count", "24"],
}
# In tiles weights that bfloat16 does not hold take twice the products, so that tier has a table of both.
OTHER_NUMBERS = {f"{name}-float32": [*TIER_COMMANDS[name], "--numbers", "float32"] for name in ("135m", "5m", "score")}


def of_tier(tier: str) -> dict[str, list[str]]:
    """Returns the runs of a tier's table."""
    return TIER_COMMANDS | (OTHER_NUMBERS if tier == "amx" else {})
