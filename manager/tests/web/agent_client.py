"""Asks a server of the Model Context Protocol, as an agent does, for the flow with most latency and its path.

The arguments are the server's address, or the command that is one on its standard streams.
"""

import asyncio
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


def connect(server: list[str]):
    if server[0].startswith("http://"):
        return streamable_http_client(server[0])
    return stdio_client(StdioServerParameters(command=server[0], args=server[1:]))


async def ask(server: list[str]) -> None:
    async with connect(server) as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]

        async def answer(name, **arguments):
            result = await session.call_tool(name, arguments)
            return json.loads(result.content[0].text)["answer"]

        flow = (await answer("top", by="latency", number=1))["flows"][0]["flow"]
        hops = (await answer("flow", flow=[flow]))[0]["hops"]
        refused = await session.call_tool("flow", {"flow": ["nonsense"]})
        print(json.dumps({"tools": tools, "path": [hop["switch"] for hop in hops], "refused": refused.is_error}))


asyncio.run(ask(sys.argv[1:]))
