"""What each command of `hybridmem` does; `COMMANDS` is the whole list."""

from hybridmem.commands.base import Command
from hybridmem.commands.content import CONTENT
from hybridmem.commands.measure import MEASURE
from hybridmem.commands.upkeep import UPKEEP

__all__ = ["COMMANDS", "Command"]

COMMANDS = (*CONTENT, *MEASURE, *UPKEEP)
