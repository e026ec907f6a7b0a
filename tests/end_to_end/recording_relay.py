"""Records what crosses a broker: python recording_relay.py CERTIFICATE KEY HOST PORT FOLDER

It listens on HOST with the broker's own certificate, and passes connections on to the broker on loopback, at the same port.
"""

import asyncio
import contextlib
import ssl
import sys
from pathlib import Path


def main(certificate: str, key: str, host: str, port: str, folder: str) -> None:
    """Pass TLS connections on to the broker on loopback, and record what they carry: a file a connection and direction."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    count = iter(range(10**9))

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, file: Path) -> None:
        with file.open("ab", buffering=0) as record, contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                record.write(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(count)
        try:
            theirs, ours = await asyncio.open_connection("127.0.0.1", int(port), ssl=client)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            pass_on(reader, ours, Path(folder) / f"{number}-up"),
            pass_on(theirs, writer, Path(folder) / f"{number}-down"),
        )

    async def serve() -> None:
        async with await asyncio.start_server(connect, host, int(port), ssl=server) as served:
            await served.serve_forever()

    asyncio.run(serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
