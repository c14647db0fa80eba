"""The documentation: links lead somewhere, commands are commands, and the tutorial's are carried out."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from documents import PLANNING, ROOT, TUTORIAL, commands, trains, write_files
from in_process import run_testbed

from testbed.cli import app

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "examples/README.md", ROOT / "results/README.md"])


def anchors(page: Path) -> set[str]:
    """What a link may name in a page: its headings, as GitHub and others write them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_whole(command: str) -> bool:
    """Whether it can be typed as it is, without a name put in for a word like TOPOLOGY."""
    return not re.search(r"\b[A-Z]{3,}\b|\.\.\.|\||\[", command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_every_page_is_reached_from_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert {page.name for page in ROOT.glob("docs/*.md")} - {"index.md"} <= set(
        re.findall(r"\]\((\w[\w-]*\.md)", index)
    )


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_have_the_options_that_pages_give_them(page: Path) -> None:
    root: Any = typer.main.get_command(app)
    for line in filter(is_whole, commands(page)):
        words, command = shlex.split(line.partition("  >")[0])[1:], root
        while hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        command.make_context(str(command.name), words)


def carried_out(page: Path, directory: Path) -> int:
    """The page's commands that need no guest, as it has them; how many these are."""
    lines = [line for line in commands(page) if not trains(line)]
    for line in lines:
        ended = run_testbed(*shlex.split(line)[1:], directory=directory, COLUMNS="80")
        assert ended.returncode == 0, (line, ended.stderr)
        said = {one.rstrip() for one in ended.stdout.splitlines()}
        assert [one for one in shown_behind(page, line) if "..." not in one and one not in said] == [], line
    return len(lines)


def shown_behind(page: Path, command: str) -> list[str]:
    """What a page shows of a command's output: the block of text behind a block that has this command alone."""
    text = page.read_text(encoding="utf-8")
    shown = re.search(rf"```sh\n{re.escape(command)}\n```\n\n```\n(.*?)\n```", text, re.DOTALL)
    return [] if shown is None else shown[1].splitlines()


def test_planning_works_as_far_as_it_needs_no_root(tmp_path: Path) -> None:
    assert write_files(PLANNING, tmp_path) == 2
    assert carried_out(PLANNING, tmp_path) == 5
    assert (tmp_path / "knee.svg").is_file()


def test_the_tutorial_works_as_far_as_it_needs_no_root(tmp_path: Path) -> None:
    assert write_files(TUTORIAL, tmp_path) == 2
    assert carried_out(TUTORIAL, tmp_path) >= 7
    assert (tmp_path / "timelines.svg").is_file()
    assert (tmp_path / "sweep/plot-links.0.delay.svg").is_file()


def test_every_shipped_study_is_in_the_documentation() -> None:
    page = (ROOT / "docs/studies.md").read_text(encoding="utf-8")
    for study in ROOT.glob("studies/*.yaml"):
        assert f"`{study.stem}`" in page, study.stem


def test_the_site_has_every_page_and_no_dead_link(tmp_path: Path) -> None:
    for name in ("docs", "zensical.toml"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    built = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(built, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ROOT.glob("docs/*.md"):
        there = tmp_path / "site" / ("" if page.stem == "index" else page.stem) / "index.html"
        assert "<h1" in there.read_text(encoding="utf-8"), page.name
