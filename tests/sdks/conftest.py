"""Where the server is, and its model. Everything here runs without Sessile's packages."""

from __future__ import annotations

import os

import pytest

BASE_URL = os.environ["SESSILE_TEST_BASE_URL"]  # with `/v1`
MODEL = os.environ.get("SESSILE_TEST_MODEL", "simulated")
KEY = os.environ.get("SESSILE_TEST_KEY", "none")

os.environ["OPENAI_API_KEY"] = KEY
os.environ["OPENAI_BASE_URL"] = BASE_URL
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"


@pytest.fixture
def base_url() -> str:
    return BASE_URL


@pytest.fixture
def model() -> str:
    return MODEL


@pytest.fixture
def key() -> str:
    return KEY
