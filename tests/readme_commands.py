"""Print the shell commands of README.md's section "Two commands", one a line."""

import re
from pathlib import Path

text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
section = text.split("## Two commands", 1)[1].split("\n## ", 1)[0]
commands = re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)
print("\n".join(line for block in commands for line in block.splitlines()))
