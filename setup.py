"""Installation; pyproject.toml says what.

``pip install --no-build-isolation -e .`` keeps the torch that is there.
"""

from setuptools import setup

setup()
