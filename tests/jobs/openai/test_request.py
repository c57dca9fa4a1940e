"""Tests which lines of a Batch file are answered and which are refused, with the parameter and the code of each refusal."""

from typing import Any

import pytest
from mlx_bulk.jobs.openai.endpoints import ENDPOINTS
from mlx_bulk.jobs.openai.refusal import RequestRefused, parameter_of
from mlx_bulk.jobs.openai.request import read_request
from mlx_bulk.runner.templates.prompt_templates import Chat, PromptIds, Text

from ..support.batch_files import CHAT, COMPLETIONS, HI, chat, completion, request, response

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
FLAT = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}


def refused(line: Any, strict: bool = True) -> tuple[str, str]:
    """The parameter and the code of a line's refusal."""
    with pytest.raises(RequestRefused) as caught:
        read_request(line, strict)
    assert caught.value.stage == "request"
    return parameter_of(str(caught.value))[0], caught.value.name


@pytest.mark.parametrize(
    ("line", "param", "code"),
    [
        (request("a", "/v1/embeddings", input="x"), "url", "unsupported_endpoint"),
        (request("a", "/bad_url", messages=HI), "url", "unsupported_endpoint"),
        ({"custom_id": "a", "url": CHAT, "method": "GET", "body": {"messages": HI}}, "method", "invalid_value"),
        ({"custom_id": "a", "url": CHAT, "method": "POST"}, "body", "missing_required_parameter"),
        ({**chat("a"), "prority": 1}, "prority", "unknown_parameter"),
        (chat("a", temprature=1), "temprature", "unknown_parameter"),
        (chat("a", temperature=3), "temperature", "invalid_value"),
        (chat("a", temperature="1"), "temperature", "invalid_value"),
        (chat("a", n=0), "n", "invalid_value"),
        (chat("a", max_tokens=0), "max_tokens", "invalid_value"),
        (chat("a", logit_bias={"a": 1}), "logit_bias", "invalid_value"),
        (chat("a", stop=[""]), "stop", "invalid_value"),
        (chat("a", top_logprobs=2), "top_logprobs", "invalid_value"),
        (chat("a", logprobs=True, top_logprobs=21), "top_logprobs", "invalid_value"),
        (request("a", CHAT, max_tokens=4), "messages", "missing_required_parameter"),
        (chat("a", []), "messages", "invalid_value"),
        (chat("a", [{"role": "robot", "content": "x"}]), "messages[0].role", "invalid_value"),
        (chat("a", [{"role": "user"}]), "messages[0].content", "missing_required_parameter"),
        (chat("a", [{"role": "user", "content": "x", "colour": 1}]), "messages[0].colour", "unknown_parameter"),
        (
            chat("a", [*HI, {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}]),
            "messages[1].content[0].type",
            "unsupported_value",
        ),
        (chat("a", [{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content[0].image_url", "invalid_value"),
        (
            chat("a", [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]),
            "messages[0].content[0].file_id",
            "unsupported_value",
        ),
        (chat("a", [{"role": "assistant", "content": "x", "audio": {"id": "y"}}]), "messages[0].audio", "unsupported_parameter"),
        (
            chat("a", [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{"}}]}]),
            "messages[0].tool_calls[0].function.arguments",
            "invalid_value",
        ),
        (chat("a", tools=[{"type": "custom", "custom": {"name": "x"}}]), "tools[0].type", "unsupported_value"),
        (chat("a", tools=[ADD, ADD]), "tools", "invalid_value"),
        (chat("a", tools=[ADD], tool_choice={"type": "function", "function": {"name": "sub"}}), "tool_choice", "invalid_value"),
        (chat("a", tool_choice="required"), "tool_choice", "invalid_value"),
        (chat("a", tools=[ADD], tool_choice="any"), "tool_choice", "unsupported_value"),
        (chat("a", response_format={"type": "xml"}), "response_format.type", "unsupported_value"),
        (
            chat("a", response_format={"type": "json_schema", "json_schema": {"name": "x"}}),
            "response_format.json_schema.schema",
            "missing_required_parameter",
        ),
        (chat("a", guided_regex="a", structured_outputs={"regex": "b"}), "guided_regex", "invalid_value"),
        (chat("a", structured_outputs={"regex": "b", "choice": ["c"]}), "structured_outputs", "invalid_value"),
        (chat("a", continue_final_message=True), "continue_final_message", "invalid_value"),
        (chat("a", add_generation_prompt=False), "add_generation_prompt", "unsupported_value"),
        (completion("a", best_of=3, n=2), "best_of", "unsupported_value"),
        (completion("a", suffix="x"), "suffix", "unsupported_parameter"),
        (completion("a", prompt=[]), "prompt", "invalid_value"),
        (completion("a", logprobs=True), "logprobs", "invalid_value"),
        (response("a", previous_response_id="r"), "previous_response_id", "unsupported_parameter"),
        (response("a", background=True), "background", "unsupported_parameter"),
        (response("a", tools=[{"type": "web_search"}]), "tools[0].type", "unsupported_value"),
        (response("a", truncation="auto"), "truncation", "unsupported_value"),
        (response("a", include=["file_search_call.results"]), "include", "unsupported_value"),
        (response("a", text={"colour": 1}), "text.colour", "unknown_parameter"),
        (response("a", [{"type": "item_reference", "id": "x"}]), "input[0].type", "unsupported_value"),
        (
            response("a", [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]),
            "input[0].content[0].type",
            "unsupported_value",
        ),
    ],
)
def test_a_line_is_refused_with_its_parameter(line: Any, param: str, code: str):
    assert refused(line) == (param, code)


@pytest.mark.parametrize("url", ENDPOINTS)
def test_every_field_that_is_refused_names_itself_and_its_harmless_values_pass(url: str):
    body: dict[str, Any] = {"messages": HI} if url == CHAT else {"prompt": "x"} if url == COMPLETIONS else {"input": "x"}
    for name, rule in ENDPOINTS[url].refused.items():
        assert refused(request("a", url, **body, **{name: ["something"]})) == (name, "unsupported_parameter")
        for harmless in (*rule.harmless, None):
            assert read_request(request("a", url, **body, **{name: harmless}), strict=True).sampling == {}
    for name in ENDPOINTS[url].ignored:
        outer, _, inner = name.partition(".")
        value: Any = {inner: "low"} if inner else "x"
        assert read_request(request("a", url, **body, **{outer: value}), strict=True).sampling == {}


def test_an_unknown_field_names_the_nearest_and_may_be_ignored():
    with pytest.raises(RequestRefused, match="did you mean temperature"):
        read_request(chat("a", temprature=1), strict=True)
    line = {**chat("a", [{"role": "user", "content": "x", "colour": 1}], temprature=1), "note": 1}
    assert read_request(line, strict=False).sampling == {}


def test_sampling_goes_by_the_config_s_names():
    line = chat("a", max_tokens=9, max_completion_tokens=7, top_k=-1, top_p=0, seed=-1, stop="x", include_stop_str_in_output=True, n=2)
    asked = read_request(line, strict=True)
    assert asked.sampling == {"max_tokens": 7, "top_k": 0, "top_p": 1e-9, "stop": ["x"], "include_stop": True}
    assert (asked.n, asked.seed) == (2, (1 << 63) - 1)


def test_prompts_of_completions():
    prompts = [read_request(completion("a", prompt), True).prompts for prompt in ("x", [5, 6], ["x", "y"], [[5], [6, 7]])]
    assert prompts == [(Text("x"),), (PromptIds((5, 6)),), (Text("x"), Text("y")), (PromptIds((5,)), PromptIds((6, 7)))]


def test_messages_of_a_response():
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be "}, {"type": "input_text", "text": "brief."}]},
        {"type": "message", "role": "user", "content": "6 + 7?"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "I add."}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 6}'},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "13"},
    ]
    (prompt,) = read_request(response("a", items, instructions="Add."), True).prompts
    assert isinstance(prompt, Chat)
    calls = [
        {"type": "function", "function": {"name": "add", "arguments": arguments}, "id": name}
        for name, arguments in (("c1", {"a": 6}), ("c2", {}))
    ]
    assert prompt.messages == [
        {"role": "system", "content": "Add."},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "6 + 7?"},
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "I add."},
        {"role": "tool", "content": "13", "tool_call_id": "c1"},
    ]


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        (None, "auto", ()),
        ("none", "none", ()),
        ("required", "required", ()),
        ({"type": "function", "function": {"name": "add"}}, "required", ("add",)),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "add"}}]}},
            "auto",
            ("add",),
        ),
    ],
)
def test_tool_choices(choice: Any, mode: str, names: tuple[str, ...]):
    use = read_request(chat("a", tools=[ADD], tool_choice=choice), True).tools
    assert use is not None
    assert (use.tools, use.choice.mode, use.choice.names) == ([ADD], mode, names)


def test_tools_of_a_response_are_flat():
    use = read_request(response("a", tools=[FLAT], tool_choice={"type": "function", "name": "add"}), True).tools
    assert use is not None
    assert use.tools == [{"type": "function", "function": {key: value for key, value in FLAT.items() if key != "type"}}]
    assert (use.choice.mode, use.choice.names) == ("required", ("add",))


@pytest.mark.parametrize(
    ("field", "kind", "value"),
    [
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "json_object"}}, "json_schema", {"type": "object"}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}}},
            "json_schema",
            {"type": "null"},
        ),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", ["a", "b"]),
        ({"structured_outputs": {"json_object": True}}, "json_schema", {"type": "object"}),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_grammar": "start: /a/"}, "grammar", "start: /a/"),
        ({"guided_json": {"type": "null"}}, "json_schema", {"type": "null"}),
    ],
)
def test_grammars_in_their_fields(field: dict[str, Any], kind: str | None, value: Any):
    held = read_request(chat("a", **field), True).held
    assert held is not None
    assert (held.kind, held.value, held.param.partition(".")[0]) == (kind, value, next(iter(field)))


def test_reasoning_effort_is_told_to_the_template():
    assert read_request(chat("a", reasoning_effort="none"), True).template_args == {"enable_thinking": False, "thinking": False}
    low = read_request(response("a", reasoning={"effort": "low"}), True).template_args
    assert low == {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}
    own = chat("a", reasoning_effort="low", chat_template_kwargs={"thinking": False, "x": 1})
    assert read_request(own, True).template_args == {"enable_thinking": True, "thinking": False, "reasoning_effort": "low", "x": 1}


def test_pictures_stay_parts_of_their_messages() -> None:
    words, picture = {"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}
    (prompt,) = read_request(chat("a", [{"role": "user", "content": [words, picture]}]), True).prompts
    kept = {"type": "image_url", "image_url": {"url": "a.png"}}
    assert prompt == Chat([{"role": "user", "content": [words, kept]}])
    parts = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": "a.png", "detail": "auto"}]
    (answered,) = read_request(response("a", [{"role": "user", "content": parts}]), True).prompts
    assert answered == prompt
