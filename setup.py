"""Package metadata. The configuration of the tools is in pyproject.toml."""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

# fairseq 0.12.2 does not import on Python 3.11 or later; fairseq-fixed is the same code made to.
# Both install the module `fairseq`, so neither may be installed over a fairseq from source:
# FAIRSEQ_SPARSE_WITHOUT_FAIRSEQ=1 leaves them out.
FAIRSEQ = [
    'fairseq-fixed==0.12.3.1; python_version >= "3.11"',
    'fairseq==0.12.2; python_version < "3.11"',
]


def read_version() -> str:
    """Read the version from the source: importing the package would need fairseq."""
    source = Path(__file__).with_name("fairseq_sparse") / "__init__.py"
    match = re.search(r'^__version__ = "([^"]+)"', source.read_text("utf-8"), re.MULTILINE)
    if match is None:
        raise RuntimeError(f'{source}: no line of the form __version__ = "1.2.3"')
    return match.group(1)


def requirements() -> list[str]:
    """Return what the package needs at run time."""
    without_fairseq = os.environ.get("FAIRSEQ_SPARSE_WITHOUT_FAIRSEQ", "0") not in ("", "0")
    fairseq = [] if without_fairseq else FAIRSEQ
    text = [
        "sacremoses",
        "subword-nmt",
        "sacrebleu",
        "tabulate>=0.9",
        "tqdm",
        "PyYAML",
        "Jinja2>=3",
    ]
    return [*fairseq, "torch>=2.6", "numpy", *text]


setup(
    name="fairseq_sparse",
    version=read_version(),
    description="Sparse output layers and sparse attention for fairseq",
    long_description=Path(__file__).with_name("README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    project_urls={
        "Speeding Up Entmax": "https://doi.org/10.18653/v1/2022.findings-naacl.86",
        "Sparse Attention with Linear Units": "https://doi.org/10.18653/v1/2021.emnlp-main.523",
        "Sparse Sequence-to-Sequence Models": "https://doi.org/10.18653/v1/P19-1146",
    },
    license="MIT",
    author="fairseq_sparse authors",
    packages=find_packages(include=["fairseq_sparse", "fairseq_sparse.*"]),
    package_data={
        "fairseq_sparse.report": ["page.*"],
        "fairseq_sparse.tables": ["published.json"],
        "fairseq_sparse.ops.cpu": ["*.c", "*.h"],
        "fairseq_sparse.recipes": ["entries/*.yaml"],
    },
    entry_points={"console_scripts": ["fairseq-sparse = fairseq_sparse.commands.cli:main"]},
    python_requires=">=3.10",
    install_requires=requirements(),
    extras_require={
        "plot": ["matplotlib"],
        "test": [
            "pytest",
            "pytest-xdist",
            "hypothesis",
            "entmax",
            "selenium",
            "jieba",
            "ctranslate2",
        ],
        # PyTorch for CUDA brings triton.
        # nvidia-ml-py reads the energy that training uses.
        "gpu": ["triton>=3.2; sys_platform == 'linux'", "nvidia-ml-py"],
        "ctranslate2": ["ctranslate2"],
        "chinese": ["jieba"],
        "statistics": ["scipy"],
        "dev": ["ruff"],
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
