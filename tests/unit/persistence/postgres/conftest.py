"""The PostgreSQL server that all tests share, and a schema for each test."""

from __future__ import annotations

import itertools

import pytest

from testbed.postgres_server import PostgresServer
from tests.support.stores.journals import postgres

_schemas = itertools.count()


@pytest.fixture
def server() -> PostgresServer:
    return postgres()


@pytest.fixture
def schema() -> str:
    return f"test_{next(_schemas)}"
