"""Which packages the wheel has, and from where: presets lie at the top of the checkout. All else: pyproject.toml."""

from setuptools import find_packages, setup

PRESETS = {"testbed.topologies": "topologies", "testbed.workloads": "workloads", "testbed.studies": "studies"}

setup(
    packages=[*find_packages(include=["testbed", "testbed.*"]), *PRESETS],
    package_dir=PRESETS,
    package_data={
        "testbed": ["py.typed"],
        "testbed.vm": ["*.config", "patches/*/*.patch"],
        "testbed.page": ["assets/*", "assets/vendor/*"],
        **{package: ["*.yaml", "data/*.csv"] for package in PRESETS},
    },
)
