"""The Vagrantfile: both providers get the same machine, by one provisioning script. No machine is made here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TELL = r"""
require 'json'

# writes down what the file asks for, call by call, with the block that a call stands in
class Asked
  def initialize(path, calls)
    @path, @calls = path, calls
  end

  def method_missing(name, *words, **options)
    here = @path + [name, *words]
    @calls << [here, options]
    inner = Asked.new(here, @calls)
    yield inner if block_given?
    inner
  end

  def respond_to_missing?(*)
    true
  end
end

module Vagrant
  def self.configure(version)
    calls = []
    yield Asked.new([], calls)
    puts JSON.generate([version, calls])
  end
end

load ARGV[0]
"""


def asked(tmp_path: Path, **environment: str) -> list[tuple[list[str], dict[str, Any]]]:
    """Every call in the file: the names that lead to it, then its words; and its options."""
    ruby = shutil.which("ruby")
    if ruby is None:
        pytest.skip("no ruby here: apt-get install ruby")
    (tmp_path / "tell.rb").write_text(TELL)
    done = subprocess.run(
        [ruby, "-w", tmp_path / "tell.rb", ROOT / "Vagrantfile"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    version, calls = json.loads(done.stdout)
    assert version == "2"
    return [(path, options) for path, options in calls]


def test_both_providers_share_one_provisioning_script_and_are_the_same_machine(tmp_path: Path) -> None:
    calls = asked(tmp_path, TESTBED_CPUS="3", TESTBED_MEMORY_MB="5000")
    scripts = [(path, options) for path, options in calls if "provision" in path]
    assert scripts == [(["vm", "provision", "shell"], {"path": "scripts/provision.sh"})], "for any provider"
    assert os.access(ROOT / "scripts/provision.sh", os.X_OK)
    providers: dict[str, list[list[Any]]] = {}
    for path, _ in calls:
        if path[:2] == ["vm", "provider"] and len(path) > 3:
            providers.setdefault(path[2], []).append(path[3:])
    assert providers == {name: [["cpus=", 3], ["memory=", 5000]] for name in ("libvirt", "virtualbox")}


def test_the_machines_are_debians_and_the_hosts_environment_stays_outside(tmp_path: Path) -> None:
    calls = asked(tmp_path)
    boxes = {path[2]: path[-1] for path, _ in calls if "box=" in path}
    assert boxes == {"trixie": "debian/trixie64", "bookworm": "debian/bookworm64"}
    (folder,) = [options for path, options in calls if "synced_folder" in path]
    assert folder["type"] == "rsync"
    assert ".venv/" in folder["rsync__exclude"]
    assert "--delete" not in folder["rsync__args"]
