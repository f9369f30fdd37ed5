"""A TCP proxy in front of a store, which can slow the network down, or cut it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["Proxy", "proxied"]


class Proxy:
    """Forwards bytes between clients and a server on this machine.

    Attributes:
        delay: Seconds before each piece of an answer is forwarded.
        cut: Whether connections are closed, and new ones refused.
    """

    def __init__(self, port: int) -> None:
        self.target, self.delay, self.cut = port, 0.0, False
        self.port = 0

    async def start(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut:
            writer.close()
            return
        with suppress(OSError):
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target)
            await asyncio.gather(
                self._copy(reader, to_writer, slow=False), self._copy(to_reader, writer, slow=True)
            )

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, slow: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(2**16):
                if self.cut:
                    break
                if slow and self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        writer.close()


@contextmanager
def proxied(port: int) -> Iterator[Proxy]:
    """Yield a proxy in front of a port, which runs in its own thread."""
    loop, proxy, ready = asyncio.new_event_loop(), Proxy(port), threading.Event()

    async def run() -> None:
        async with await proxy.start() as server:
            ready.set()
            await server.serve_forever()

    def work() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()

    task = loop.create_task(run())
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)
