"""Installation.  ``pip install --no-build-isolation -e .`` keeps the torch that is there."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "fairseq_hybrid/__init__.py").read_text())[1]
COMMANDS = ("train", "generate", "interactive", "validate", "eval-lm", "preprocess", "pretrain")
ON_MODELS = ("translate", "score", "export", "convert")

setup(
    name="fairseq_hybrid",
    version=VERSION,
    description="fairseq plugin: train recurrent translation and language models across devices",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.9",
    packages=find_packages(include=["fairseq_hybrid", "fairseq_hybrid.*"]),
    install_requires=[
        # the same fairseq code under two names: 0.12.2 does not import on Python 3.11
        'fairseq-fixed==0.12.3.1; python_version >= "3.11"',
        'fairseq==0.12.2; python_version < "3.11"',
        "torch",  # any build; compat says clearly when it is too old
        "numpy",
        "sacrebleu",
        "sentencepiece",
    ],
    extras_require={
        "export": ["onnx>=1.16", "onnxruntime>=1.18"],
        "plots": ["matplotlib>=3.7"],
        "test": [
            "matplotlib>=3.7",
            "onnx>=1.16",
            "onnxruntime>=1.18",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
        ],
    },
    entry_points={
        "console_scripts": [
            *(f"fairseq-hybrid-{command} = fairseq_hybrid.cli:main" for command in COMMANDS),
            *(
                f"fairseq-hybrid-{command} = fairseq_hybrid.inference.{command}:main"
                for command in ON_MODELS
            ),
            "fairseq-hybrid-corpus = fairseq_hybrid.corpus.__main__:main",
            "fairseq-hybrid-plan = fairseq_hybrid.planning.command:main",
        ]
    },
    zip_safe=False,
)
