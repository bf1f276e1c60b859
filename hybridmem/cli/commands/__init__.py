"""The commands of `hybridmem`; `COMMANDS` lists them all."""

from hybridmem.cli.commands.base import Command
from hybridmem.cli.commands.content import CONTENT
from hybridmem.cli.commands.measure import MEASURE
from hybridmem.cli.commands.upkeep import UPKEEP

__all__ = ["COMMANDS", "Command"]

COMMANDS = (*CONTENT, *MEASURE, *UPKEEP)
