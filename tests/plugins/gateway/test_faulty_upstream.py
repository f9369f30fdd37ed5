"""The stand-in for an upstream itself: what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest
from redhost_gateway.faulty_upstream import FaultyUpstream


@pytest.mark.parametrize("turns", range(6))
def test_a_server_that_ends_closes_also_what_has_only_begun(turns) -> None:
    """Its loop ends after so many turns: a connection is accepted, answered or neither by then."""

    async def serve() -> socket.socket:
        async with FaultyUpstream().listening() as port:
            client = socket.create_connection(("127.0.0.1", port))
            for _ in range(turns):
                await asyncio.sleep(0)
        return client

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(serve()).close()
        gc.collect()
    assert [str(w.message) for w in found] == []
