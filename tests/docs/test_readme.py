"""Tests that the README is short: two commands, one config, one real recording of a terminal."""

from xml.etree import ElementTree

from .pages import ROOT, blocks
from .recording import COMMANDS, PICTURE

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_quick_start_is_exactly_two_commands():
    install_and_run, install_and_test, _ = [block.text for block in blocks(README) if block.language == "bash"]
    assert install_and_run == "pip install -e '.[cpu]' && mlx-bulk run configs/demo.yaml\n"
    assert install_and_test == "pip install -e '.[cpu,test]' && pytest\n"


def test_the_config_shows_a_model_of_ones_own():
    [job] = [block.text for block in blocks(README) if block.language == "yaml"]
    assert "path: demo" not in job


def test_the_recording_is_of_the_commands_that_make_it():
    picture = ElementTree.parse(PICTURE).getroot()
    text = "".join(picture.itertext())
    for command in COMMANDS:
        assert command in text, "record it again: python -m tests.docs.recording"
    assert "complete" in text


def test_pictures_load_nothing_from_elsewhere():
    for path in (ROOT / "docs" / "images").glob("*.svg"):
        for element in ElementTree.parse(path).iter():
            assert not element.tag.endswith(("image", "script", "foreignObject")), path.name
            assert not any("://" in value for value in element.attrib.values()), path.name
        assert "@import" not in path.read_text(encoding="utf-8")
