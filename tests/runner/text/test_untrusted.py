"""Tests that data and models are not trusted: a sandbox for templates, no code, no pickle."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.configs.errors import BulkError, ConfigError
from mlx_bulk.configs.schema import ModelConfig, PromptConfig
from mlx_bulk.runner.core.errors import DataError, ModelError, RowError
from mlx_bulk.runner.data.scan import scan
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.templates.prompt_templates import Chat, Text, compile_prompt, compile_template
from mlx_bulk.runner.text import tokenizer as tokenizers
from mlx_bulk.runner.text.chat_template_check import has_powers, try_template
from mlx_bulk.runner.text.tokenizer import Tokenizer

from ...checkpoints import DEMO, loaded, write_adapter, write_checkpoint

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''|attr('__class__') }}",
    "{{ cycler.__init__.__globals__.os.popen('touch MARK').read() }}",
    "{{ lipsum.__globals__['os'].system('touch MARK') }}",
    "{{ joiner.__init__.__globals__.os.system('touch MARK') }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ ['{0.__class__}']|map('format', 1)|list }}",
    "{{ (1).__class__.__base__ }}",
    "{{ range.__class__ }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ q.__class__ }}",
    "{{ messages.append(1) }}",
    "{{ messages.__class__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.name }}",
    "{% extends '/etc/passwd' %}",
    "{{ get_flashed_messages.__globals__ }}",
    "{{ (q.x for q in []).gi_frame.f_globals }}",
    "{{ ''.join.__self__.__class__ }}",
    "{% set x = namespace() %}{% set x.__class__ = 1 %}{{ x.__init__.__globals__ }}",
]
HARMLESS = {"", "{0.__class__}", "1"}


@pytest.fixture(scope="module")
def hf() -> Any:
    return tokenizers.load_tokenizer(DEMO, None, {}, trust_remote_code=False)._hf  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("template", ESCAPES)
def test_templates_stay_in_their_sandbox(template: str, hf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    chat = [{"role": "user", "content": "hi"}]
    renders = (
        lambda: compile_template(template, "prompt.text", [])({"q": "a", "messages": [1]}),
        lambda: Tokenizer(hf, template).chat_text(chat, ""),
        lambda: Tokenizer(hf, f"{template}{{% generation %}}{{% endgeneration %}}").encode_turns(chat).prompt.text,
    )
    for render in renders:
        with suppress(BulkError, RowError):
            assert render() in HARMLESS
    assert list(tmp_path.iterdir()) == []


BOMBS = [
    "{{ 10**10**10 }}",
    "{{ 'a' * 10**12 }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ ''.__class__.__mro__ }}",
    "{% for %}",
    "{{",
    "{# never closed",
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_rows_are_never_templates(bomb: str, hf: Any):
    row = {"q": bomb, "messages": [{"role": "user", "content": bomb}]}
    assert compile_prompt(PromptConfig(text="{{ q }}"), row)(row) == Text(bomb)
    chat = compile_prompt(PromptConfig(user="{{ q }}", system="{{ q }}", prefill="{{ q }}"), row)(row)
    assert isinstance(chat, Chat)
    assert [message["content"] for message in chat.messages] == [bomb, bomb]
    assert chat.prefill == bomb
    chat = compile_prompt(PromptConfig(messages="messages"), row)(row)
    assert isinstance(chat, Chat)
    assert bomb in Tokenizer(hf).chat_text(chat.messages, "")


def test_a_template_that_grows_too_large_costs_only_its_row():
    greedy = compile_template("{{ 'a' * n }}", "prompt.text", ["n"])
    assert greedy({"n": 3}) == "aaa"
    for n in (10**9, 10**15, 10**30):
        with pytest.raises(RowError, match="the template may not do this: its text or list grows beyond"):
            greedy({"n": n})
    with pytest.raises(RowError, match="Range too big"):
        compile_template("{% for i in range(n) %}{% endfor %}", "prompt.text", ["n"])({"n": 10**10})


# ------------------------------------------------------------------------------------------------------ chat templates


@pytest.mark.parametrize("template", ["{{ 10**10**10 }}", "{% for m in messages %}{% if 0 %}{{ 2 ** m }}{% endif %}{% endfor %}"])
def test_a_chat_template_that_would_make_the_process_deaf_is_refused_before_it_runs(template: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"prompt.chat_template: the template raises numbers to powers \(\*\*\)"):
        tokenizers.load_tokenizer(DEMO, template, {}, trust_remote_code=False)
    folder = shutil.copytree(DEMO, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template + "{% generation %}{% endgeneration %}")
    with pytest.raises(ModelError, match=r"the chat template that comes with the model raises numbers to powers"):
        tokenizers.load_tokenizer(folder, None, {}, trust_remote_code=False)
    tokenizers.load_tokenizer(folder, "{{ messages[0].content }}", {}, trust_remote_code=False)  # another in its place


def test_a_chat_template_that_does_not_end_is_refused(hf: Any):
    slow = "{% for a in range(3000) %}{% for b in range(3000) %}{% endfor %}{% endfor %}"  # a second or so
    with pytest.raises(ConfigError, match=r"is not done with one short message after 0\.05 seconds; write it without"):
        try_template(hf, slow, seconds=0.05)


def test_powers_are_found_anywhere_and_nothing_else_is():
    assert has_powers("{% macro f(x) %}{{ (x|int) ** 2 }}{% endmacro %}")
    assert has_powers("{% if a %}{%- set b = [1, {'x': 2**3}] -%}{% endif %}")
    assert not has_powers("** {{ '**' }} {# 2**3 #} {% raw %}{{ 2**3 }}{% endraw %}")
    assert not has_powers("{% for %}")
    assert not has_powers((DEMO / "chat_template.jinja").read_text())


# ------------------------------------------------------------------------------------------------------- code, pickles


def with_code(folder: Path, **files: dict[str, Any]) -> Path:
    """A checkpoint whose JSON files ask for its own code; that code leaves a mark when it runs."""
    for name, values in files.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
    code = f"from pathlib import Path\nPath({str(folder / 'RUN')!r}).touch()\nraise SystemExit('was run')\n"
    for name in ("tokenization_own", "configuration_own", "modeling_own", "own"):
        (folder / f"{name}.py").write_text(code)
    return folder


def test_a_tokenizer_s_own_code_is_not_run(tmp_path: Path):
    own = {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", "tokenization_own.Own"]}, "tokenizer_class": "Own"}
    folder = with_code(write_checkpoint(tmp_path / "model"), tokenizer_config=own)
    with pytest.raises(ModelError, match=r"it needs code that comes with it; set model\.trust_remote_code if you trust it"):
        tokenizers.load_tokenizer(folder, None, {}, trust_remote_code=False)
    assert not (folder / "RUN").exists()


def test_a_model_s_own_code_is_not_run(tmp_path: Path):
    mapped = {"AutoConfig": "configuration_own.Own", "AutoModelForCausalLM": "modeling_own.Own"}
    folder = with_code(write_checkpoint(tmp_path / "mapped"), config={"auto_map": mapped})
    tokenizers.load_tokenizer(folder, None, {}, trust_remote_code=False)
    loaded(folder)  # mlx-lm has the architecture
    unknown = with_code(write_checkpoint(tmp_path / "unknown"), config={"auto_map": mapped, "model_type": "own_kind"})
    with pytest.raises(ModelError, match="mlx-lm has no model type 'own_kind'"):
        loaded(unknown)
    filed = with_code(write_checkpoint(tmp_path / "filed"), config={"model_file": "own.py"})
    with pytest.raises(ModelError, match=r"it needs code that comes with it \(own.py\); set model.trust_remote_code if you trust it"):
        loaded(filed)
    assert [folder for folder in (folder, unknown, filed) if (folder / "RUN").exists()] == []


def test_pickles_are_not_read(tmp_path: Path):
    import pickle

    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "RUN",)

    bomb = pickle.dumps(Bomb())
    folder = write_checkpoint(tmp_path / "model")
    adapter = write_adapter(folder, tmp_path / "adapter", "lora")
    left = {folder: ["pytorch_model.bin", "consolidated.00.pth", "vocab.pkl"], adapter: ["adapter_model.bin", "adapters.npz"]}
    for place, names in left.items():
        for name in names:
            (place / name).write_bytes(bomb)
    tokenizers.load_tokenizer(folder, None, {}, trust_remote_code=False)
    loaded(folder, adapter=str(adapter))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="only safetensors are read"):
        find_checkpoint(ModelConfig(path=str(folder)))
    (adapter / "adapters.safetensors").rename(adapter / "adapters.bin")
    with pytest.raises(ModelError, match=r"adapters\.safetensors"):
        find_checkpoint(ModelConfig(path=str(DEMO), adapter=str(adapter)))
    assert not (tmp_path / "RUN").exists()


@pytest.mark.parametrize("name", ["data.py", "set.py", "rows.pkl", "train.pickle"])
def test_datasets_bring_no_code_and_no_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / name).write_text(f"from pathlib import Path\nPath({str(tmp_path / 'RUN')!r}).touch()\n")
    with pytest.raises(DataError, match="cannot be loaded"):
        scan(DataConfig(path=f"hf:{folder}"), tmp_path)
    assert not (tmp_path / "RUN").exists()
