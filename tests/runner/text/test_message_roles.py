"""Tests roles that a chat template does not know: misspelt ones, those whose messages it leaves out, and those that it passes on."""

import logging

import pytest
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.text.tokenizer import Tokenizer, load_tokenizer

from ...checkpoints import DEMO

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
KNOWN = "['user', 'system', 'assistant', 'critic']"
NAMED = f"{{% for m in messages %}}{{% if m.role in {KNOWN} %}}{{{{ m.role }}}}: {{{{ m.content }}}}\n{{% endif %}}{{% endfor %}}"
REFUSING = "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('only users') }}{% endif %}{{ m.content }}{% endfor %}"


def of(template: str) -> Tokenizer:
    return load_tokenizer(DEMO, template, {}, trust_remote_code=False)


def text(tokenizer: Tokenizer, *roles: str) -> str:
    return tokenizer.chat_text([{"role": role, "content": f"said by {role}"} for role in roles], "")


@pytest.mark.parametrize("role", ["usr", "User", "users", "asistant", "ASSISTANT", "sytem"])
@pytest.mark.parametrize("template", [CHATML, NAMED])
def test_a_misspelt_role_is_refused(template: str, role: str):
    with pytest.raises(RowError, match=f"message 2 of the chat has the role '{role}', which the chat template does not know; did you mean"):
        text(of(template), "user", role)


def test_a_message_that_would_be_left_out_is_refused():
    for role in ("human", "developer"):
        with pytest.raises(RowError, match=f"message 1 of the chat has the role '{role}', and the chat template leaves such messages out"):
            text(of(NAMED), role)


def test_a_role_that_the_template_names_is_its_own_matter(caplog: pytest.LogCaptureFixture):
    assert "critic: said by critic" in text(of(NAMED), "user", "critic")
    assert not caplog.records


def test_a_role_that_the_template_passes_on_is_told_once(caplog: pytest.LogCaptureFixture):
    tokenizer = of(CHATML)
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        for _ in range(2):
            assert "<|im_start|>human" in text(tokenizer, "human", "assistant")
            assert "<|im_start|>user1" in text(tokenizer, "user1")
    told = [record.getMessage().split(",")[0] for record in caplog.records]
    assert told == ["messages have the role 'human'", "messages have the role 'user1'"]


def test_usual_roles_are_never_told(caplog: pytest.LogCaptureFixture):
    text(of(CHATML), "system", "developer", "user", "assistant", "tool")
    assert not caplog.records


def test_a_template_that_refuses_a_role_says_so_itself():
    with pytest.raises(RowError, match="only users"):
        text(of(REFUSING), "human")


@pytest.mark.parametrize("role", ["tool", "human"])
def test_a_template_that_takes_lists_of_parts_keeps_its_messages(role: str):
    loop = "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    parts = f"{{% for m in messages %}}{{{{ m.role }}}}:{loop}{{% endfor %}}"
    message = {"role": role, "content": [{"type": "text", "text": "said"}]}
    assert of(parts).chat_text([message], "") == f"{role}:said"


def test_capitals_may_be_the_templates_own_matter():
    folding = "{% for m in messages %}{% if m.role|lower == 'user' %}U: {{ m.content }}{% endif %}{% endfor %}"
    assert of(folding).chat_text([{"role": "USER", "content": "hi"}], "") == "U: hi"


def test_turns_that_are_scored_are_looked_at_too():
    with pytest.raises(RowError, match="did you mean assistant"):
        of(CHATML).turns_text([{"role": "user", "content": "a"}, {"role": "asistant", "content": "b"}])
