"""Tests the section ``structured``: at most one grammar, and nothing that contradicts it."""

from pathlib import Path

from .written import LEAST, generation, lines, written


def test_one_grammar_may_be_set(tmp_path: Path) -> None:
    path = written(tmp_path, LEAST)
    assert not generation(path).structured.used
    for setting in (
        "json_schema={type: object}",
        "json_schema=a.json",
        "regex=a+",
        "choice=[a, b]",
        "grammar='start: \"a\"'",
        "column=own",
    ):
        assert generation(path, f"structured.{setting}").structured.used, setting


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    def refusal(*overrides: str) -> str:
        return "\n".join(lines(tmp_path, LEAST, *overrides))

    several = refusal("structured.regex=a", "structured.choice=[a]")
    assert "structured: found regex and choice; expected at most one of json_schema, regex, choice, grammar, column" in several
    assert "structured.choice: found []; expected a list of strings, at least one, or null" in refusal("structured.choice=[]")
    assert "structured.choice[0]: found true; expected a list of strings" in refusal("structured.choice=[true]")
    assert "structured.json_schema: found 3; expected a JSON schema as a mapping" in refusal("structured.json_schema=3")
    assert "structured.whitespace: expected nothing, since there is no grammar" in refusal("structured.whitespace=compact")
    assert "structured.unsupported: found warn; expected" in refusal("structured.regex=a", "structured.unsupported=warn").replace('"', "")
    endless = refusal("structured.regex=a", "sampling.ignore_eos=true")
    assert "sampling.ignore_eos: expected false, since a grammar (structured) ends with EOS" in endless


def test_a_schema_on_the_command_line_that_is_no_yaml_is_told_as_such(tmp_path: Path) -> None:
    (bracket,) = lines(tmp_path, LEAST, "structured.json_schema={type: [}")
    assert bracket.startswith("--set structured.json_schema={type: [}: line 1, column 9: ")
    (twice,) = lines(tmp_path, LEAST, "structured.json_schema={a: 1, a: 2}")
    assert twice.endswith("the key 'a' stands here and on line 1; remove one of them")
