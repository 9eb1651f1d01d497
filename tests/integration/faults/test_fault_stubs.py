"""The stubs that break connections do what they say, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from localstack.postgres import Cluster
from tests.platform import eventually
from tests.stubs.postgres_wire import Splitter, is_commit, is_sync_after_execute
from tests.stubs.tcp_proxy import Cut, TcpProxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Clients:
    """Opens connections through a proxy, and closes them when the test is over."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []

    async def dial(self, proxy: TcpProxy) -> Streams:
        streams = await asyncio.open_connection("127.0.0.1", proxy.port)
        self._writers.append(streams[1])
        return streams

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(
            *(writer.wait_closed() for writer in self._writers), return_exceptions=True
        )


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    clients = Clients()
    yield clients
    await clients.close()


@asynccontextmanager
async def echo_behind_proxy() -> AsyncIterator[TcpProxy]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, TcpProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


async def asked(streams: Streams, data: bytes) -> bytes:
    reader, writer = streams
    writer.write(data)
    async with asyncio.timeout(10):
        return await reader.readexactly(len(data))


async def test_it_passes_bytes_and_the_end_of_a_connection(clients: Clients) -> None:
    async with echo_behind_proxy() as proxy:
        reader, writer = await clients.dial(proxy)
        data = bytes(range(256)) * 4_000
        assert await asked((reader, writer), data) == data
        writer.close()
        await eventually(lambda: proxy.open_connections == 0)
    assert proxy.accepted == 1
    assert proxy.bytes_to_target == len(data)


async def test_it_refuses_and_listens_again_on_the_same_port(clients: Clients) -> None:
    async with echo_behind_proxy() as proxy:
        standing = await clients.dial(proxy)
        assert await asked(standing, b"a") == b"a"
        await proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await clients.dial(proxy)
        assert await asked(standing, b"b") == b"b"
        await proxy.listen()
        assert await asked(await clients.dial(proxy), b"c") == b"c"


async def test_a_reset_is_a_reset_and_no_end(clients: Clients) -> None:
    async with echo_behind_proxy() as proxy:
        streams = await clients.dial(proxy)
        assert await asked(streams, b"a") == b"a"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            await streams[0].read()
        assert await asked(await clients.dial(proxy), b"b") == b"b"


async def test_it_resets_after_so_many_bytes(clients: Clients) -> None:
    async with echo_behind_proxy() as proxy:
        streams = await clients.dial(proxy)
        proxy.reset_after(5)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asked(streams, b"0123456789")
        assert proxy.cut.is_set()


async def test_what_a_black_hole_held_back_is_delivered_when_it_is_over(clients: Clients) -> None:
    async with echo_behind_proxy() as proxy:
        streams = await clients.dial(proxy)
        proxy.hold()
        answer = asyncio.create_task(asked(streams, b"late"))
        fresh = await clients.dial(proxy)
        greeting = asyncio.create_task(asked(fresh, b"new"))
        assert await asyncio.wait({answer, greeting}, timeout=0.05) == (set(), {answer, greeting})
        proxy.release()
        assert (await answer, await greeting) == (b"late", b"new")


async def test_a_half_open_connection_takes_everything_and_never_answers(clients: Clients) -> None:
    async with echo_behind_proxy() as proxy:
        reader, writer = await clients.dial(proxy)
        assert await asked((reader, writer), b"a") == b"a"
        proxy.leave_half_open()
        writer.write(b"anybody there?")
        await writer.drain()
        read = asyncio.create_task(reader.read(1))
        assert await asyncio.wait({read}, timeout=0.05) == (set(), {read})
        read.cancel()
        assert await asked(await clients.dial(proxy), b"b") == b"b"


async def test_it_is_as_slow_as_it_is_told(clients: Clients) -> None:
    async with echo_behind_proxy() as proxy:
        streams = await clients.dial(proxy)
        proxy.bytes_per_second = 1_000
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asked(streams, bytes(100))
        assert loop.time() - began >= 0.2


def test_messages_are_found_wherever_the_bytes_were_cut() -> None:
    startup = b"\x00\x00\x00\x08\x00\x03\x00\x00"
    stream = startup + b"Q\x00\x00\x00\x0cCOMMIT;\x00" + b"E\x00\x00\x00\x04S\x00\x00\x00\x04"
    splitter = Splitter(from_client=True)
    messages = [m for byte in stream for m in splitter.feed(bytes([byte]))]
    assert [m.kind for m in messages] == [b"", b"Q", b"E", b"S"]
    assert b"".join(m.raw for m in messages) == stream
    assert [is_commit(m) for m in messages] == [False, True, False, False]
    matches = is_sync_after_execute()
    assert [matches(m) for m in messages] == [False, False, False, True]


@pytest.mark.parametrize(("cut", "stored"), [(Cut.BEFORE, 0), (Cut.BEFORE_ANSWER, 1)])
async def test_a_commit_is_cut_before_or_after_it_happened(
    postgres: Cluster, database_url: str, cut: Cut, stored: int
) -> None:
    async with TcpProxy("127.0.0.1", postgres.port, postgres=True) as proxy:
        connection = await asyncpg.connect(database_url, host="127.0.0.1", port=proxy.port)
        await connection.execute("CREATE TABLE mark ()")
        proxy.reset_at(is_commit, cut)
        with pytest.raises((asyncpg.PostgresConnectionError, ConnectionError)):
            async with connection.transaction():
                await connection.execute("INSERT INTO mark DEFAULT VALUES")
        assert proxy.cut.is_set()
        again = await asyncpg.connect(database_url, host="127.0.0.1", port=proxy.port)
        assert await again.fetchval("SELECT count(*) FROM mark") == stored
        await again.close()
