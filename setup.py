"""Everything but the licence's name is in pyproject.toml."""

from setuptools import setup

setup(license="BSD-3-Clause")
