"""The kernel: edits apply where their text stands once, the fastest that is built is taken, a fallback says why."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import run_testbed
from processes import command_line, descendants, wait_until, wait_until_gone

from testbed import source
from testbed.errors import BadInput, MachineLacks, RunFailed
from testbed.plan.plan import Clock
from testbed.progress import Lines
from testbed.vm import guest_machine, kernel, kernel_changes, kernel_source
from testbed.vm.command import choose_machine


def source_tree(root: Path) -> Path:
    for edit in kernel_changes.EDITS:
        path = root / edit.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"before\n{edit.before}after\n")
    return root


def test_every_edit_is_made(tmp_path: Path) -> None:
    kernel_changes.apply_edits(source_tree(tmp_path), kernel_changes.EDITS)
    for file in {edit.file for edit in kernel_changes.EDITS}:
        edited = "".join(f"before\n{edit.after}after\n" for edit in kernel_changes.EDITS if edit.file == file)
        assert (tmp_path / file).read_text() == edited


@pytest.mark.parametrize("times", [0, 2])
def test_an_edit_whose_text_is_not_there_once_is_refused(tmp_path: Path, times: int) -> None:
    tree = source_tree(tmp_path)
    files = [edit.file for edit in kernel_changes.EDITS]
    edit = next(edit for edit in kernel_changes.EDITS if files.count(edit.file) == 1)
    (tree / edit.file).write_text(edit.before * times)
    with pytest.raises(RunFailed, match=rf"{edit.file}.*stands there {times} times"):
        kernel_changes.apply_edits(tree, kernel_changes.EDITS)


PATCH = """What it is for.

--- a/place/file.c
+++ b/place/file.c
@@ -1,3 +1,4 @@
 first
+new
 second
 third
"""


def test_a_patch_is_made_where_its_text_stands(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    file = tmp_path / "place/file.c"
    file.write_text("first\nsecond\nthird\n")
    kernel_changes.apply_patches(tmp_path, {"one.patch": PATCH})
    assert file.read_text() == "first\nnew\nsecond\nthird\n"
    for wrong in ("first\nsecond\nfourth\n", "first\nnew\nsecond\nthird\n"):
        file.write_text(wrong)
        with pytest.raises(kernel_changes.RecipeDoesNotFit, match=r"one\.patch does not apply"):
            kernel_changes.apply_patches(tmp_path, {"one.patch": PATCH})
        assert file.read_text() == wrong


def test_patches_say_why_and_are_part_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    patches = kernel_changes.patches_of("7.2.12-1")
    assert len(patches) == 8
    for text in patches.values():
        title, _, why = text.partition("\n\n")
        assert "---" not in title
        assert len(why.partition("\n--- a/")[0]) > 100
    assert kernel_changes.patches_of("6.12.1-1") == {}
    before = kernel.recipe_hash("7.2.12-1")
    monkeypatch.setattr(kernel, "patches_of", lambda version: {})
    assert kernel.recipe_hash("7.2.12-1") != before


def test_the_key_follows_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [kernel.recipe_hash(version) for version in ("7.2.1-1", "7.3.1-1", "6.12.1-1")]
    assert len(set(before)) == 3, "7.2 has patches, 6.12 edits of its own"
    monkeypatch.setattr(kernel_changes, "EDITS", kernel_changes.EDITS[:-1])
    after = [kernel.recipe_hash(version) for version in ("7.2.1-1", "7.3.1-1", "6.12.1-1")]
    assert not set(before) & set(after)


def test_the_key_of_a_cache_is_of_all_that_a_built_kernel_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not of Debian's version, which only a download would tell, and which changes no result."""
    both, one = kernel.cache_key(), kernel.cache_key("7.2")
    assert dict(both.recipes) == {"7.2": kernel.recipe_hash("7.2.12-1"), "6.12": kernel.recipe_hash("6.12.1-1")}
    assert one.text == f"testbed-kernel-{both.architecture}-{both.libc}-7.2-{both.recipes['7.2']}"
    assert re.fullmatch(r"[a-zA-Z0-9._-]+", both.text), "a key that any cache takes"
    monkeypatch.setattr(kernel_changes, "EDITS", kernel_changes.EDITS[:-1])
    assert kernel.cache_key().text != both.text
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.99"))
    assert kernel.cache_key("7.2").libc == "glibc2.99"
    monkeypatch.undo()
    done = run_testbed("kernel", "key", "--source", "7.2")
    assert (done.returncode, done.stdout) == (0, f"{one.text}\n")
    document = json.loads(run_testbed("kernel", "key", "--json").stdout)
    assert document["key"] == both.text
    assert document["directory"] == str(kernel.cache_directory())


def test_without_source_the_command_that_adds_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernel_source, "_INSTALLED_ARCHIVE", tmp_path / "nothing.tar.xz")
    with pytest.raises(MachineLacks, match=r"apt-get install .*linux-source"):
        kernel.build(Lines(quiet=True), series="6.12")
    with pytest.raises(MachineLacks, match="testbed kernel build"):
        kernel.require()


def test_a_kernel_that_is_there_is_not_built_again(
    time_travel_kernel: kernel.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if time_travel_kernel.series == kernel_source.INSTALLED:
        pytest.skip("this machine has the fallback: whether there is a better kernel is asked every time")
    monkeypatch.setattr(kernel_source, "fetch", lambda *_, **__: pytest.fail("it was fetched again"))
    assert kernel.build(Lines(quiet=True), series=time_travel_kernel.series) == (time_travel_kernel, False)


def pretend_built(version: str) -> kernel.Kernel:
    directory = kernel.cache_directory() / f"{version}-{kernel.recipe_hash(version)}"
    directory.mkdir(parents=True)
    (directory / "linux").write_text(f"the kernel of {version}")
    digest = hashlib.sha256((directory / "linux").read_bytes()).hexdigest()
    document = {"key": directory.name, "source_version": version, "sha256": digest}
    (directory / "build.json").write_text(json.dumps(document))
    return kernel.Kernel(directory / "linux", directory.name, version, digest)


def one_byte_changed(built: kernel.Kernel) -> None:
    content = bytearray(built.path.read_bytes())
    content[len(content) // 2] ^= 1
    built.path.write_bytes(content)


def test_a_kernel_with_one_byte_changed_is_not_booted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(kernel.SERIES_VARIABLE, raising=False)
    built = pretend_built("7.2.12-1~bpo13+1")
    assert kernel.require() == built
    one_byte_changed(built)
    with pytest.raises(MachineLacks, match=r"linux: is not the kernel that .* testbed kernel build --source 7\.2"):
        kernel.require()
    with pytest.raises(MachineLacks, match="is not the kernel"):
        choose_machine(Clock("virtual"))
    built.path.unlink()
    with pytest.raises(MachineLacks, match="cannot be read"):
        kernel.require()


def test_a_kernel_without_a_recorded_hash_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(kernel.SERIES_VARIABLE, raising=False)
    built = pretend_built("7.2.12-1~bpo13+1")
    record = built.path.with_name("build.json")
    record.write_text(json.dumps({"key": built.key, "source_version": built.source_version}))
    with pytest.raises(MachineLacks, match="no hash beside it"):
        kernel.require()


def test_building_mends_a_kernel_that_was_changed_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(kernel.SERIES_VARIABLE, raising=False)
    monkeypatch.setattr(kernel, "_require_means", lambda: None)
    built = pretend_built("7.2.12-1~bpo13+1")
    one_byte_changed(built)

    def no_source(scratch: Path, reporter: Lines, *, any_series: bool) -> kernel_source.Source:
        raise kernel_source.NoSource("the mirror is on strike")

    monkeypatch.setattr(kernel_source, "fetch", no_source)
    with pytest.raises(MachineLacks, match="on strike"):
        kernel.build(Lines(quiet=False), series="7.2")
    assert "it is removed, and built again" in capsys.readouterr().err
    assert not built.path.exists()


def test_the_fastest_kernel_is_preferred_and_another_can_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(kernel.SERIES_VARIABLE, raising=False)
    fallback = pretend_built("6.12.117-1~deb12u1")
    assert kernel.find() == fallback
    other = pretend_built("7.3.1-1~bpo13+1")
    assert kernel.find() == other
    tested = pretend_built("7.2.12-1~bpo13+1")
    assert kernel.find() == tested
    assert kernel.find("6.12") == fallback
    monkeypatch.setenv(kernel.SERIES_VARIABLE, "6.12")
    assert kernel.find() == fallback
    monkeypatch.setenv(kernel.SERIES_VARIABLE, "6.6")
    with pytest.raises(MachineLacks, match=r"Linux 6\.6 .*testbed kernel build --source 6\.6"):
        kernel.require()
    monkeypatch.setenv(kernel.SERIES_VARIABLE, "fast")
    with pytest.raises(BadInput, match=r"TESTBED_KERNEL: got 'fast', expected"):
        kernel.find()


def test_the_manifest_will_name_series_and_seccomp() -> None:
    old, new = (kernel.Kernel(Path("linux"), "k", version, "0") for version in ("6.12.117-1", "7.2.12-1~bpo13+1"))
    assert guest_machine.time_travel(old, 1).identity()["vm"] == {
        "kernel": old.as_json(),
        "kernel_seed": 1,
        "seccomp": False,
    }
    assert guest_machine.time_travel(new, 1).identity()["vm"] == {
        "kernel": new.as_json(),
        "kernel_seed": 1,
        "seccomp": True,
    }
    assert [old.as_json()["series"], new.as_json()["series"]] == ["6.12", "7.2"]


def test_a_cpu_with_amx_is_told_from_others() -> None:
    assert guest_machine.cpu_has_amx("processor\t: 0\nflags\t\t: fpu amx_bf16 amx_tile amx_int8\nbugs\t\t: none\n")
    assert not guest_machine.cpu_has_amx("processor\t: 0\nflags\t\t: fpu avx512f\nbugs\t\t: amx_tile\n")
    assert not guest_machine.cpu_has_amx("processor\t: 0\n")


def test_lines_that_a_version_no_longer_has_may_be_dropped_and_no_others() -> None:
    whole = kernel.configuration()
    gone = "CONFIG_PREEMPT_NONE=y"
    assert kernel.lost_lines(whole, "6.12.1") == kernel.lost_lines(whole, "7.2.1") == []
    assert kernel.lost_lines(whole.replace(gone, ""), "6.12.1") == [gone]
    assert kernel.lost_lines(whole.replace(gone, ""), "7.2.1") == []
    assert kernel.lost_lines(whole.replace("CONFIG_VETH=y", ""), "7.2.1") == ["CONFIG_VETH=y"]


def test_without_a_backport_the_fallback_is_built_and_the_reason_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive = tmp_path / "source.tar.xz"
    monkeypatch.setattr(kernel_source, "installed", lambda: kernel_source.Source(archive, "6.12.1-1"))
    monkeypatch.setattr(kernel, "_require_means", lambda: None)

    def no_source(scratch: Path, reporter: Lines, *, any_series: bool) -> kernel_source.Source:
        raise kernel_source.NoSource("the mirror is on strike")

    monkeypatch.setattr(kernel_source, "fetch", no_source)
    fallback = pretend_built("6.12.1-1")
    assert kernel.build(Lines(quiet=False)) == (fallback, False)
    said = capsys.readouterr().err
    assert "the mirror is on strike" in said
    assert "linux-source-6.12 is used" in said
    with pytest.raises(MachineLacks, match="on strike"):
        kernel.build(Lines(quiet=True), series="7.2")


def test_a_series_that_the_recipe_does_not_fit_is_left_for_the_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tree = source_tree(tmp_path / "source" / "linux")
    (tree / kernel_changes.EDITS[0].file).write_text("rewritten\n")
    archive = tmp_path / "source.tar.xz"
    subprocess.run(["tar", "-cJf", archive, "-C", tmp_path / "source", "linux"], check=True, timeout=60)
    monkeypatch.setattr(kernel, "_require_means", lambda: None)
    monkeypatch.setattr(kernel_source, "fetch", lambda *_, **__: kernel_source.Source(archive, "7.9.1-1"))
    monkeypatch.setattr(kernel_source, "installed", lambda: kernel_source.Source(archive, "6.12.1-1"))
    fallback = pretend_built("6.12.1-1")
    assert kernel.build(Lines(quiet=False)) == (fallback, False)
    assert "stands there 0 times" in capsys.readouterr().err


def test_kill_9_of_a_build_ends_its_compilers(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("all: one two\none two:\n\t@sleep 300\n\t@true\n")
    code = (
        "from pathlib import Path; from testbed.vm.build_step import run_program\n"
        "run_program(['make', '-j2'], Path.cwd(), deadline_s=100)"
    )
    ours = {**os.environ, "PYTHONPATH": str(source.PACKAGE.parent)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=ours) as build:
        try:
            wait_until(
                lambda: [*map(command_line, descendants(build.pid))].count("sleep 300 ") == 2, "make does nothing"
            )
            processes = descendants(build.pid)
        finally:
            build.kill()
    wait_until_gone(processes)


def test_what_a_killed_build_left_is_removed_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(kernel.SERIES_VARIABLE, raising=False)
    left = kernel.cache_directory() / "building-abc"
    (left / "tree").mkdir(parents=True)
    (left / "tree" / "vmlinux").write_bytes(bytes(2_000_000))
    fallback = pretend_built("6.12.1-1")
    monkeypatch.setattr(kernel_source, "installed", lambda: kernel_source.Source(tmp_path / "archive", "6.12.1-1"))
    assert kernel.build(Lines(quiet=False), series="6.12") == (fallback, False)
    assert not left.exists()
    said = capsys.readouterr().err
    assert str(left) in said
    assert "MB that a killed build left" in said


def test_kill_9_of_a_build_leaves_no_tree(tmp_path: Path) -> None:
    code = (
        "import time; from pathlib import Path; from testbed.vm import kernel\n"
        "kernel.cache_directory().mkdir(parents=True)\n"
        "with kernel._scratch() as scratch: (scratch / 'tree').mkdir(); time.sleep(300)"
    )
    ours = {**os.environ, "PYTHONPATH": str(source.PACKAGE.parent), "XDG_CACHE_HOME": str(tmp_path)}
    cache = tmp_path / "testbed" / "kernel"
    with subprocess.Popen([sys.executable, "-c", code], env=ours) as build:
        try:
            wait_until(lambda: any(cache.glob("building-*/tree")), "nothing is built")
        finally:
            build.kill()
    wait_until(lambda: not any(cache.iterdir()), "the tree stays")


def test_a_second_build_waits_for_the_first_but_not_for_ever(tmp_path: Path) -> None:
    with kernel._locked(tmp_path), pytest.raises(RunFailed, match="another build"), kernel._locked(tmp_path, 0.3):
        pass
    with kernel._locked(tmp_path, 0.0):
        pass


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"key": 3, "source_version": null, "sha256": ""}', '{"key": "a", "source_version": "a"}']
)
def test_a_damaged_description_is_as_if_nothing_had_been_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there = kernel.cache_directory() / "7.2.1-1-x"
    there.mkdir(parents=True)
    (there / "build.json").write_text(text)
    assert kernel.find() is None
    with pytest.raises(MachineLacks, match="testbed kernel build"):
        kernel.require()


@pytest.mark.parametrize("text", ["", "{}", None])
def test_an_installed_source_whose_kernel_is_damaged_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    """It comes as far as what a build needs, and no further here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = kernel_source.Source(tmp_path / "source.tar.xz", "6.12.1-1")
    monkeypatch.setattr(kernel_source, "installed", lambda: source)
    monkeypatch.setattr(kernel, "_TOOLS", ("no-such-tool",))
    there = kernel._directory(source.version)
    there.mkdir(parents=True)
    if text is not None:
        (there / "build.json").write_text(text)
    with pytest.raises(MachineLacks, match="no-such-tool"):
        kernel.build(Lines(quiet=True), series="6.12")
