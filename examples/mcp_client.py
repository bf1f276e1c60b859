"""An MCP client that starts `hybridmem mcp`, saves, searches and asks why a memory is not returned. Runs offline.

pip install 'hybridmem[mcp]' && python examples/mcp_client.py
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def call(session: ClientSession, tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """The text that a model reads, and the structured answer."""
    answer = (await session.call_tool(tool, arguments)).model_dump(by_alias=True)
    return answer["content"][0]["text"], answer["structuredContent"] or {}


async def main(folder: str) -> None:
    # What Claude Code, Cursor or VS Code do with their configuration: start the server and talk over its stdio.
    arguments = ["-m", "hybridmem", "mcp", "--memory", str(Path(folder) / "memory.db"), "--namespace", "ana"]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        print("Tools: ", ", ".join(sorted(tool.name for tool in (await session.list_tools()).tools)))

        _, saved = await call(session, "memory_save", text="Ana lives in Porto.", tags=["home"])
        text, _ = await call(session, "memory_save", text="Ana lives in Lisbon.", replaces=saved["id"])
        print("Save:  ", text)

        text, found = await call(session, "memory_search", query="Where does Ana live?")
        print("Search:", text)
        assert [memory["text"] for memory in found["memories"]] == ["Ana lives in Lisbon."]

        text, _ = await call(session, "memory_why_not", query="Where does Ana live?", id=saved["id"])
        print("Why not:", text)


with tempfile.TemporaryDirectory() as place:
    asyncio.run(main(place))
