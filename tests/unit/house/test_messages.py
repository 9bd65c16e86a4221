# SPDX-License-Identifier: Apache-2.0
"""Every argument and command-line option that a message names exists."""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import pathlib
import re
from collections.abc import Callable, Iterator

import pytest
from support.house import ROOT, files, shown

import foresee
import foresee.predict
import foresee.torch as ft
from foresee import cli, network
from foresee._schema import toml
from foresee.planning import simulation

ARGUMENT = re.compile(r"(?<![\w./{}\-%&?$<\[])([a-z_][a-z0-9_]*)=(?![=>])")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
RUST_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)

# Names in messages that are no arguments of this package, with their meaning.
OTHER_ARGUMENTS = {
    "account_name": "a storage option of Azure",
    "base_url": "a storage option of Google Cloud Storage",
    "endpoint": "a storage option of S3, Azure and the Hugging Face hub",
    "region": "a storage option of S3",
    "skip_signature": "a storage option of every bucket",
    "use_azure_cli": "a storage option of Azure",
    "debug": "of torch.utils.checkpoint",
    "use_reentrant": "of torch.utils.checkpoint",
    "differentiable": "of torch's optimizers",
    "set_to_none": "of torch's zero_grad",
    "num_samples": "of torch's samplers",
    "sparse": "of torch.nn.Embedding",
    "max_norm": "of torch.nn.Embedding",
    "draw": "a field of a state, which is shown",
    "slow": "a part of the value of --throttle",
    "gfs": "a part of the value of --tier",
    "lfs": "a part of the value of --tier",
    "key": "the form of a schedule's settings",
}
OTHER_OPTIONS = {
    "--format": "of `aws configure export-credentials`",
    "--profile": "of `aws configure export-credentials`",
    "--no-deps": "of pip",
    "--direct": "of fio",
    "--output-format": "of fio",
    "--rw": "of fio",
    "--partition": "of sbatch",
    "--time": "of sbatch",
}
# Texts that are code for another program, not messages.
NO_MESSAGES = ("stagger/slurm", "storage/bench/loop")


@functools.cache
def sources() -> list[pathlib.Path]:
    """Return the package's Python files."""
    return [path for path in files(".py") if shown(path).startswith("python/foresee/")]


@functools.cache
def rust_messages() -> list[tuple[str, str]]:
    """Return place and text of every string of a crate that the wheel contains, except in tests."""
    found = []
    for path in files(".rs"):
        place = shown(path)
        if not place.startswith("crates/") or "/src/" not in place:
            continue
        if re.search(r"/(tests|process_tests|conformance|foresee-test\w+)[/.]", place):
            continue
        text = re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", path.read_text(encoding="utf-8"))[0]
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
        found += [(place, literal) for literal in RUST_TEXT.findall(code) if " " in literal]
    return found


@functools.cache
def python_messages() -> list[tuple[str, str]]:
    """Return place and text of every string of the package except docstrings."""
    found = []
    for path in sources():
        place = shown(path)
        if any(part in place for part in NO_MESSAGES):
            continue
        documents, texts = set(), []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Expr):
                documents.add(id(node.value))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node)
        found += [(place, str(node.value)) for node in texts if id(node) not in documents]
    return found


def parameters(value: object, seen: set[int]) -> Iterator[str]:
    """Return the parameter names of a callable, and of a class's methods."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if inspect.isclass(value):
        for name, member in inspect.getmembers(value):
            if callable(member) and (not name.startswith("_") or name == "__init__"):
                yield from parameters(member, seen)
    if callable(value):
        try:
            yield from inspect.signature(value).parameters
        except (TypeError, ValueError):
            return


def public_arguments() -> set[str]:
    """Return the arguments of everything that a public module exports."""
    seen: set[int] = set()
    return {
        name
        for module in (foresee, ft, foresee.predict, simulation, network)
        for public in module.__all__
        for name in parameters(getattr(module, public), seen)
    }


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Return every option of a command and its subcommands."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from options(below)


@pytest.mark.parametrize("messages", [rust_messages, python_messages])
def test_every_argument_and_option_that_a_message_names_exists(
    messages: Callable[[], list[tuple[str, str]]],
) -> None:
    arguments = public_arguments() | set(OTHER_ARGUMENTS)
    known_options = set(options(cli._parser())) | set(OTHER_OPTIONS)
    found = messages()
    assert sum("=" in text for _, text in found) > 20
    unknown = [
        f"{place}: {name}= in {text[:80]!r}"
        for place, text in found
        for name in ARGUMENT.findall(text)
        if name not in arguments
    ]
    unknown += [
        f"{place}: {name} in {text[:80]!r}"
        for place, text in found
        for name in OPTION.findall(text)
        if name not in known_options
    ]
    assert unknown == []


def test_every_entry_in_the_tables_of_other_names_is_used() -> None:
    texts = [text for messages in (rust_messages, python_messages) for _, text in messages()]
    for names, pattern in ((OTHER_ARGUMENTS, ARGUMENT), (OTHER_OPTIONS, OPTION)):
        used = {name for text in texts for name in pattern.findall(text)}
        assert set(names) - used == set()


def test_an_unknown_name_is_found() -> None:
    assert ARGUMENT.findall("set allow_all=True; a==b, x=> y, --k=v, s3://b?c=d") == ["allow_all"]
    assert OPTION.findall("use --no-such or a--b") == ["--no-such"]
    assert "allow_all" not in public_arguments()
    assert {"exclude", "allow_empty", "cache", "storage_options", "max_size"} - public_arguments() == {
        "max_size"
    }


EXTRAS = {
    "PIL": "pictures",
    "botocore": "aws",
    "cloudpickle": "workers",
    "torch": "torch",
    "pyarrow": "ledger",
    "darshan": "darshan",
    "matplotlib": "plot",
}


OPTIONAL_IMPORT = re.compile(rf"^ *(import|from) ({'|'.join(EXTRAS)})\b", re.MULTILINE)


def optional_imports(path: pathlib.Path) -> Iterator[tuple[str, bool]]:
    """Return packages of an extra that a module imports, and whether a failed import is handled."""
    text = path.read_text(encoding="utf-8")
    if not OPTIONAL_IMPORT.search(text):
        return
    tree = ast.parse(text)
    handled = {
        id(below)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for below in ast.walk(ast.Module(node.body, []))
    }
    typing = {
        id(below)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for below in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        )
        for name in names:
            package = name.partition(".")[0]
            if package in EXTRAS:
                yield package, id(node) in handled


def test_a_missing_package_is_reported_with_its_extra() -> None:
    project = toml.load(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    # Tables need the packages of ledgers, under the name that users of tables look for.
    assert set(project) == {*EXTRAS.values(), "tables"}
    assert project["tables"] == project["ledger"]
    bare = []
    for path in sources():
        place = shown(path)
        # These modules only run where the package exists: `foresee.torch` imports torch first, and the starter of PyDarshan's
        # process has checked for it.
        if ("/torch/" in place and not place.endswith("torch/__init__.py")) or place.endswith(
            "_pydarshan.py"
        ):
            continue
        bare += [f"{place}: {package}" for package, is_handled in optional_imports(path) if not is_handled]
    assert bare == []
    named = {extra for _, text in python_messages() for extra in re.findall(r"foresee\[(\w+)\]", text)}
    assert named == set(project)
