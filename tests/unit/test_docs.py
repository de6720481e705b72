"""What the documents promise: that they show what is there.

``tests/spark/test_snippets.py`` runs their snippets.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import runpy
import shlex
import sys
import textwrap
import warnings
from functools import cache
from typing import is_typeddict

import pytest

from pyspark_kafka_rebalance import errors
from pyspark_kafka_rebalance.settings.client_settings import KNOWN_SETTINGS, PRODUCER_SETTINGS
from pyspark_kafka_rebalance.sink.options.sink_option_names import OWN_OPTIONS as OF_THE_SINK
from pyspark_kafka_rebalance.source.options.source_options import _OWN_OPTIONS
from tests.snippets import PAGES, ROOT, Snippet, prose_of, snippets, text_of

PACKAGE = "pyspark_kafka_rebalance"


def test_the_readme_prints_the_quickstart_as_it_is_run() -> None:
    assert text_of("examples/quickstart.py") in [s.text for s in snippets("python", "README.md")]


CLASSES = [
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, Exception)
]


@pytest.mark.parametrize("name", CLASSES)
def test_troubleshooting_says_what_to_do_about_each_error(name: str) -> None:
    assert f"`{name}`" in text_of("docs/troubleshooting.md")


# -- links --------------------------------------------------------------------------------------


def anchors_of(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = sum(1 for known in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", known))
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        target, _, anchor = link.partition("#")
        if ":" in target:
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        name = str(path.resolve().relative_to(ROOT))
        if not path.exists() or (anchor and anchor not in anchors_of(name)):
            missing.append(link)
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_files_and_tests_that_are_named_exist(page: str) -> None:
    """``test_x.py::test_y…`` is how a test's name begins."""
    text = text_of(page)
    everywhere = {path.name: path for path in (ROOT / "tests").rglob("*.py")}
    missing = [
        name
        for folder in ("tests", "examples", "benchmarks", "demos", "measuring", "notebooks", "docs")
        for name in re.findall(rf"`({folder}/[\w/.-]+)`", text)
        if not (ROOT / name).exists()
    ]
    for file, test in re.findall(r"(test_\w+\.py)(?:::(\w+))?", text):
        if file not in everywhere or f"def {test}" not in everywhere[file].read_text("utf-8"):
            missing.append(f"{file}::{test}")
    assert missing == []


# -- Python -------------------------------------------------------------------------------------


def parsed(snippet: Snippet) -> ast.Module:
    """A part of a function is one, too."""
    try:
        return ast.parse(snippet.text)
    except SyntaxError:
        return ast.parse("async def part():\n" + textwrap.indent(snippet.text, "    "))


@cache
def keywords_of(name: str) -> frozenset[str]:
    """What may be given to something that the package exports by name."""
    exported = getattr(importlib.import_module(PACKAGE), name)
    if is_typeddict(exported):
        return frozenset(exported.__annotations__)
    named = set(inspect.signature(exported).parameters)
    if "config" in named:
        settings = f"{name.removeprefix('Async')}Settings"
        public = importlib.import_module(PACKAGE).__all__
        named |= keywords_of(settings if settings in public else "ConsumerSettings")
    return frozenset(named)


#: Of Spark's sinks and file formats.
OF_SINKS = {"path", "asyncProgressTrackingEnabled"}
OPTIONS = {name.lower() for name in (*_OWN_OPTIONS, *OF_THE_SINK, *OF_SINKS)}
OPTIONS |= {f"kafka.{name}".lower() for name in KNOWN_SETTINGS | PRODUCER_SETTINGS}


@pytest.mark.parametrize("snippet", snippets("python"), ids=str)
def test_python_uses_what_exists(snippet: Snippet) -> None:
    """Names that are imported, options, keyword arguments; also where a snippet is not run."""
    wrong = []
    for node in ast.walk(parsed(snippet)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            wrong += [alias.name for alias in node.names if not hasattr(module, alias.name)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in importlib.import_module(PACKAGE).__all__:
                given = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
                wrong += sorted(given - keywords_of(node.func.id))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "option":
                name = ast.literal_eval(node.args[0])
                wrong += [] if name.lower() in OPTIONS else [name]
        elif isinstance(node, ast.Constant) and str(node.value).startswith("kafka."):
            wrong += [] if str(node.value).lower() in OPTIONS else [str(node.value)]
    assert wrong == []


def test_options_that_the_tables_name_exist() -> None:
    """The first column of README's and docs/options.md's tables of options."""
    wrong = []
    for page, begins in (("README.md", "| option | default"), ("docs/options.md", "| option |")):
        for table in re.split(re.escape(begins), text_of(page))[1:]:
            for row in table.partition("\n\n")[0].splitlines()[2:]:
                first = row.split("|")[1]
                wrong += [
                    name for name in re.findall(r"`([\w.]+)`", first) if name.lower() not in OPTIONS
                ]
    assert wrong == []


# -- commands -----------------------------------------------------------------------------------

MAKEFILE = text_of("Makefile")
TARGETS = dict(re.findall(r"^([a-z-]+):.*\n((?:\t.*\n|.*\\\n)*)", MAKEFILE, re.MULTILINE))
#: Of a shell, of pip and the like.
ELSEWHERE = {"venv", "pip"}


@cache
def help_of(module: str, *subcommands: str) -> str:
    """What the command prints of itself."""
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it is imported already
        patched.setattr(sys, "argv", [module, *subcommands, "--help"])
        patched.setattr(sys.stdout, "write", printed.append)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert not ended.value.code
    return "".join(printed)


def options_in(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]


def wrong_in_module(module: str, words: list[str]) -> list[str]:
    """What a command line has that the module's command does not."""
    if module.partition(".")[0] in ELSEWHERE:
        return []
    if importlib.util.find_spec(module) is None:
        return [module]
    subcommands = []
    for word in words:
        if not re.fullmatch("[a-z]+", word):
            break
        subcommands.append(word)
    given = options_in(words)
    if not given and not subcommands:
        return []
    described = help_of(module, *subcommands)
    return [name for name in given if not re.search(rf"{re.escape(name)}\b", described)]


def wrong_in_make(words: list[str]) -> list[str]:
    wrong = [word for word in words if re.fullmatch("[a-z-]+", word) and word not in TARGETS]
    recipe = "".join(TARGETS.get(word, "") for word in words)
    for arguments in (word.partition("=")[2] for word in words if word.startswith("ARGS=")):
        given = shlex.split(arguments)
        modules = re.findall(r"-m ([\w.]+) .*\$\(ARGS\)", recipe)
        if modules == ["pytest"]:
            chosen = given[given.index("-k") + 1] if "-k" in given else ""
            files = (ROOT / "tests").rglob("test_*.py")
            tests = "\n".join(f"{path.name} {path.read_text('utf-8')}" for path in files)
            wrong += [name for name in re.findall(r"\w+", chosen) if name not in tests]
        elif modules:
            wrong += wrong_in_module(modules[0], given)
    return wrong


def wrong_in(command: str) -> list[str]:
    """What a command line names that does not exist."""
    words = shlex.split(re.sub(r"\s#.*", "", command))
    if words[:1] == ["make"]:
        return wrong_in_make(words[1:])
    if words and re.fullmatch(r"(\S*/)?python3?", words[0]) and words[1:2] == ["-m"]:
        return wrong_in_module(words[2], words[3:])
    if words and re.fullmatch(r"(\S*/)?python3?", words[0]):
        return [word for word in words[1:] if word.endswith(".py") and not (ROOT / word).exists()]
    if words and words[0] == "spark-submit":
        (job,) = (word for word in words if word.endswith(".py"))
        given = options_in(words[words.index(job) + 1 :])
        text = text_of(job)
        return [name for name in given if f'"{name}"' not in text]
    return []


def commands_of(page: str) -> list[str]:
    """Of the blocks, and those that the text names."""
    found = []
    for snippet in snippets("console", page):
        lines = re.sub(r"\\\n\s*", "", snippet.text).splitlines()
        found += [part for line in lines if line[:2] == "$ " for part in line[2:].split(" && ")]
    for snippet in snippets("", page):
        found += [line for line in snippet.text.splitlines() if line.startswith("make ")]
    named = re.sub(r"\s*\n\s*", " ", prose_of(page))
    for command in re.findall(r"`((?:make|python3? -m) [^`]+)`", named):
        found += command.split(" && ")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist_with_the_options_that_they_are_given(page: str) -> None:
    assert {command: wrong for command in commands_of(page) if (wrong := wrong_in(command))} == {}


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert wrong_in("make no-such-target") == ["no-such-target"]
    assert wrong_in('make demo ARGS="--peers 3 --keep"') == ["--peers"]
    name = "_".join(("no", "such", "test"))  # which is then not in this file either
    assert wrong_in(f'make test-unit ARGS="-k {name}"') == [name]
    assert wrong_in(f"python -m {PACKAGE}.no_such_module") == [f"{PACKAGE}.no_such_module"]
    assert wrong_in(f"python -m {PACKAGE} doctor --topic t --topics u") == ["--topics"]
    assert wrong_in(f"python -m {PACKAGE}.producer offsets list --grop g") == ["--grop"]
