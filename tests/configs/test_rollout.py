"""Tests the settings of a rollout job: defaults, contradictions, and a run's identity."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.identity import free, identity
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.rollout import RolloutConfig

LEAST: dict[str, Any] = {
    "job": "rollout",
    "model": {"path": "demo"},
    "data": {"path": "rows.jsonl"},
    "prompt": {"user": "{{ question }}"},
    "output": {"path": "out"},
}
LENGTH = {"fn": "length", "args": {"over": 4}}


def loaded(folder: Path, **sections: Any) -> RolloutConfig:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(LEAST | sections))
    config = load_config(path)
    assert isinstance(config, RolloutConfig)
    return config


def refusal(folder: Path, **sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, **sections)
    return str(caught.value).replace(f"{folder}/job.yaml: ", "")


def test_the_defaults(tmp_path: Path):
    config = loaded(tmp_path)
    assert (config.sampling.n, config.sampling.temperature, config.advantages, config.rounds) == (8, 1.0, "grpo", 1)
    policy = config.policy
    assert (policy.update, policy.stale, policy.truncated, policy.max_staleness) == ("shard", "mark", "keep", None)
    assert (policy.adapter, policy.watch, policy.reference, config.rewards, config.drop_degenerate) == (None, None, None, [], False)


def test_reward_functions_are_named_by_file_module_or_as_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MINE", "/somewhere")
    functions = ["rewards.py:correct", "${MINE}/more.py:brief", "package.module:function", "length"]
    config = loaded(tmp_path, rewards=[{"fn": fn} for fn in functions])
    assert [reward.fn for reward in config.rewards] == ["rewards.py:correct", "/somewhere/more.py:brief", *functions[2:]]
    assert [reward.label for reward in config.rewards] == ["correct", "brief", "function", "length"]
    assert [reward.built_in for reward in config.rewards] == [False, False, False, True]


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"rewards": [{"fn": "lenght"}]}, "one of exact_match, last_number, regex, json_valid, length; did you mean length?"),
        ({"rewards": [{"fn": "a.py"}]}, "rewards[0].fn: found a.py; expected path.py:function, package.module:function, or one of"),
        (
            {"rewards": [LENGTH, {"fm": "length"}]},
            "rewards[1].fm: no such key; expected one of fn, model, weight, name, args",
        ),
        ({"rewards": [{"fn": "length", "wieght": 1}]}, "rewards[0].wieght: no such key; did you mean rewards[0].weight?"),
        ({"rewards": [{"fn": "length", "weight": "x"}]}, 'rewards[0].weight: found "x"; expected a number'),
        ({"rewards": [{"fn": "length", "weight": 1e39}]}, "rewards[0].weight: found 1e+39; expected a number from -1000000 to 1000000"),
        ({"rewards": [{"fn": "length", "memory": 0}]}, "rewards[0].memory: found 0; expected a number of GB above 0, or null"),
        ({"rewards": [{"fn": "length", "on_error": 1}]}, "rewards[0].on_error: found 1; expected null, fail, or a share of groups above 0"),
        ({"rewards": [{"fn": "length", "name": "a b"}]}, "rewards[0].name: found a b; expected letters, digits and underscores"),
        ({"rewards": ["length"]}, 'rewards[0]: found "length"; expected a list of mappings with fn or model, weight, name, args, timeout'),
        (
            {"rewards": [{"weight": 2}]},
            "rewards[0]: found neither of fn and model; expected one of them: a reward function, or a reward model",
        ),
        ({"rewards": [{"fn": "length", "model": "m"}]}, "rewards[0]: found both of fn and model; expected one of them"),
        ({"rewards": [{"model": "m", "timeout": 3}]}, "rewards[0].timeout: expected nothing, since it goes with a reward function"),
        ({"rewards": [{"model": "m", "args": {"x": 1}}]}, "rewards[0].args: expected nothing, since it goes with a reward function"),
        ({"rewards": [{"model": "m", "memory": 1}]}, "rewards[0].memory: expected nothing, since it goes with a reward function"),
        (
            {"rewards": [{"model": {"path": "m", "adapter": "a"}}]},
            "rewards[0].model.adapter: expected null, since a reward model is loaded",
        ),
        ({"rewards": [{"model": {"pth": "m"}}]}, "rewards[0].model.pth: no such key; did you mean rewards[0].model.path?"),
        ({"rewards": [{"model": "${NOT_THERE}/m"}]}, "rewards[0].model: found"),
        ({"rewards": [{"model": "a/m-1"}, {"model": "b/m_1"}]}, "rewards[1].name: found m_1 twice; expected a name of its own for each"),
        ({"select": "best"}, "select: found best; expected all, since there are no rewards to choose by"),
        ({"select": "best", "rewards": [LENGTH], "sampling": {"n": 1}}, "sampling.n: found 1; expected at least 2, since select: best"),
        ({"rewards": [{"fn": "a.py:f"}, {"fn": "b.py:f"}]}, "rewards[1].name: found f twice; expected a name of its own for each"),
        ({"rewards": [{"fn": "${NOT_THERE}/a.py:f"}]}, "rewards[0].fn: found"),
        ({"rewards": [LENGTH], "sampling": {"n": 1}}, "sampling.n: found 1; expected at least 2, since advantages: grpo compares"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature: found 0; expected a number above 0"),
        ({"drop_degenerate": True}, "drop_degenerate: found true; expected false, since there are no rewards"),
        ({"policy": {"truncated": "zero_reward"}}, "policy.truncated: found zero_reward; expected keep or mask"),
        ({"policy": {"stale": "drop"}}, "policy.stale: found drop; expected mark, since policy.max_staleness is null"),
        ({"policy": {"watch": "w", "adapter": "a"}}, "policy.watch: expected null, since policy.adapter is fixed"),
        ({"policy": {"watch": "w"}, "batch": {"deterministic": True}}, "policy.watch: expected null, since batch.deterministic promises"),
        (
            {"model": {"path": "demo", "adapter": "a"}},
            "model.adapter: expected null, since a rollout's adapter is its policy's; set policy",
        ),
        ({"logprobs": {"tokens": False}}, "logprobs.tokens: found false; expected true"),
        (
            {"logprobs": {"kept": True}},
            "logprobs.kept: found true; expected false, since none of top_p, top_k, min_p, typical_p, xtc_probability leaves a token out",
        ),
        ({"rounds": 0}, "rounds: found 0; expected a whole number of at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_named_with_the_fix(tmp_path: Path, sections: dict[str, Any], line: str):
    assert line in refusal(tmp_path, **sections)


@pytest.mark.parametrize(
    "sections",
    [
        {"logprobs": {"kept": True}, "sampling": {"top_p": 0.9}},
        {"logprobs": {"kept": True}, "sampling": {"columns": {"top_k": "k"}}},
        {"rewards": [LENGTH], "sampling": {"n": 1}, "advantages": "none"},
        {"rewards": [LENGTH], "sampling": {"n": 1, "columns": {"n": "samples"}}},
        {"batch": {"deterministic": True}, "policy": {"adapter": "a"}},
        {"policy": {"stale": "drop", "max_staleness": 0}},
    ],
)
def test_what_fits_is_taken(tmp_path: Path, sections: dict[str, Any]):
    config = loaded(tmp_path, **sections).model_dump()
    for name, given in sections.items():
        for key, value in given.items() if isinstance(given, dict) else ():
            assert value == config[name][key] or value.items() <= config[name][key].items()
    assert len(config["rewards"]) == len(sections.get("rewards", []))


def test_identity_holds_rewards_and_policy_but_for_what_is_watched_and_the_rounds(tmp_path: Path):
    config = loaded(tmp_path, rewards=[LENGTH], policy={"watch": str(tmp_path)}, rounds=3)
    of_run, may_change = identity(config), free(config)
    assert {"rewards", "advantages", "drop_degenerate", "policy.update", "policy.max_staleness", "policy.stale"} <= of_run.keys()
    assert {"policy.truncated", "policy.reference", "sampling.n"} <= of_run.keys()
    assert {"rounds", "policy.watch", "policy.adapter"} <= may_change.keys()
