"""Servers that the tests of a module share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from served_model import ServedModel, make_endless, served


@pytest.fixture(scope="module")
def server(text_model) -> Iterator[ServedModel]:
    """The model of text_model.py on two ranks."""
    with served(text_model.path, ranks=2) as running:
        yield running


@pytest.fixture(scope="session")
def endless(text_model, tmp_path_factory) -> Path:
    return make_endless(text_model, tmp_path_factory.mktemp("endless"))


@pytest.fixture(scope="session")
def encoder_model(text_model, tmp_path_factory):
    from embedding_models import make_encoder_model

    return make_encoder_model(text_model, tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def tool_model(tmp_path_factory):
    from tool_model import make_tool_model

    return make_tool_model(tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="module")
def tool_server(tool_model) -> Iterator[ServedModel]:
    """The model of tool_model.py on two ranks."""
    with served(tool_model.path, ranks=2) as running:
        yield running
