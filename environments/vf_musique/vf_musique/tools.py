"""The tool server: flatline's own tool, with its own schema and its own words.

One server answers the rollouts of a worker; which problem a call is about is in the rollout's
state. The schema is shown as flatline writes it: a model sees the prompt that it was trained on.
"""

from functools import lru_cache
from typing import Any, cast

import verifiers.v1 as vf
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent, Tool
from pydantic import Field

from flatline.tasks.base import ToolCall
from flatline.tasks.musique import RETRIEVE, Musique
from vf_musique.problems import from_data


class MusiqueState(vf.State):
    """What a call needs to know about its rollout."""

    problem: dict[str, Any] = Field(default_factory=dict)
    """The problem, as data."""
    retriever: str = "bm25"
    """How documents are searched."""


class MusiqueToolset(vf.Toolset[vf.SharedToolsetConfig, MusiqueState]):
    """`retrieve_documents`."""

    TOOL_PREFIX = None

    def register(self, mcp: MCPServer) -> None:
        # The server's handlers call these two: so the schema is flatline's, and a call with wrong
        # arguments gets flatline's answer, instead of what a function's signature would give.
        server = cast(Any, mcp)
        server.list_tools = self._with_state(self.list_tools)
        server.call_tool = self._with_state(self.call_tool)

    async def list_tools(self) -> list[Tool]:
        function = RETRIEVE.schema()["function"]
        return [
            Tool(
                name=function["name"],
                description=function["description"],
                input_schema=function["parameters"],
            )
        ]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context | None = None
    ) -> CallToolResult:
        episode = task_with(self.state.retriever).episode(from_data(self.state.problem))
        found = episode.observe(ToolCall(name=name, arguments=arguments))
        return CallToolResult(content=[TextContent(type="text", text=found.text)])


@lru_cache
def task_with(retriever: str) -> Musique:
    """The task; its indexes are kept from call to call."""
    return Musique(retriever=retriever)


if __name__ == "__main__":
    MusiqueToolset.run()
