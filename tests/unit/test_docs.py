"""What the documents promise: that they show what is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from pyspark_kafka_rebalance import errors

ROOT = Path(__file__).parents[2]


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_the_readme_prints_the_quickstart_as_it_is_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", text_of("README.md"), re.DOTALL)
    assert text_of("examples/quickstart.py") in blocks


CLASSES = [
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, Exception)
]


@pytest.mark.parametrize("name", CLASSES)
def test_troubleshooting_says_what_to_do_about_each_error(name: str) -> None:
    assert f"`{name}`" in text_of("docs/troubleshooting.md")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_of_the_front_pages_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(name))
    missing = [link for link in links if ":" not in link and not (ROOT / link).exists()]
    assert missing == []
