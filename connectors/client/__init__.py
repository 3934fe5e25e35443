"""A typed client of the query service, sync and async.

>>> from connectors.client import Client
>>> with Client("http://127.0.0.1:8080", scope={"tenant": "acme"}) as client:  # doctest: +SKIP
...     answer = client.recall("where does she live?", agent="helper", user="ana")

Answers are the service's own models (:mod:`connectors.query.models`). Calls that may be sent
twice without harm, which are all of them, are sent again on 429, 503 and lost connections, after
the time that the service asks for. Errors are :mod:`connectors.client.errors`.
"""

from connectors.client.asynchronous import AsyncClient
from connectors.client.errors import (
    ClientError,
    Denied,
    Invalid,
    NotFound,
    ServiceError,
    TooManyCalls,
    Unauthorized,
    Unreachable,
)
from connectors.client.retries import Retries
from connectors.client.synchronous import Client

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "Denied",
    "Invalid",
    "NotFound",
    "Retries",
    "ServiceError",
    "TooManyCalls",
    "Unauthorized",
    "Unreachable",
]
