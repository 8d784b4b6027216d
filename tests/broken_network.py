"""A TCP connection to a server that a test can break, without either end being told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

LOOK = 0.02  # seconds between looks whether bytes may pass
CHUNK = 1 << 16


class Link:
    """Forwards connections to a server in a thread of its own, until the end of the `with` block.

    passing  False: a black hole. Bytes are kept, as by a network that comes back and in which both
             ends repeat what was not confirmed; nothing is closed
    delay    seconds that all bytes take, in each direction
    cutting  True: new connections are accepted, and closed once something was sent
    """

    def __init__(self, host: str, port: int) -> None:
        self.passing, self.delay, self.cutting = True, 0.0, False
        self._server = host, port
        self._generation = 0
        self._address = ("127.0.0.1", 0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def address(self) -> str:
        """Host and port; the host is a name for which the tests' certificates are."""
        return f"localhost:{self._address[1]}"

    def forget(self) -> None:
        """Let nothing pass any more on the connections that are there: they are half-open."""
        self._generation += 1

    def __enter__(self) -> Link:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._listening = await asyncio.start_server(self._serve, *self._address)
        self._address = self._listening.sockets[0].getsockname()

    async def _close(self) -> None:
        self._listening.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(LOOK)  # connections are closed in the next turn

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        if self.cutting:
            await reader.read(CHUNK)  # otherwise closing would reset the connection
            writer.close()
            return
        # A cancelled task would be reported as an error when the link is closed.
        with contextlib.suppress(asyncio.CancelledError, OSError):
            there, back = await asyncio.open_connection(*self._server)
            writers.append(back)
            generation = self._generation
            await asyncio.gather(
                self._forward(reader, back, generation), self._forward(there, writer, generation)
            )
        for each in writers:
            each.close()

    async def _forward(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, generation: int
    ) -> None:
        """Forward one direction of a connection, its end as well."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            data = b"?"
            while data:
                try:
                    data = await source.read(CHUNK)
                except ConnectionError:
                    data = b""
                waiting.put_nowait((self._loop.time() + self.delay, data))

        reading = asyncio.create_task(read())
        data = b"?"
        while data:
            due, data = await waiting.get()
            while not self.passing or self._loop.time() < due or generation != self._generation:
                await asyncio.sleep(LOOK)
            try:
                target.write(data) if data else target.write_eof()
                await target.drain()
            except (ConnectionError, RuntimeError, OSError):
                break
        reading.cancel()
