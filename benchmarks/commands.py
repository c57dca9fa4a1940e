"""The program and the options of each run that the table of README.md is made of."""

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
