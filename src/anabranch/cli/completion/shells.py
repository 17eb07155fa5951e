"""How shells ask for completions, and bash's way of its own.

zsh and fish are click's. Bash cuts words at `:` and `=`, so that click's script would see
`--bootstrap-server localhost`, `:` and `9092`, and would ask no broker. Here bash hands over the
line as it is typed, and gets back only what stands behind the last place where it would cut.
"""

import os
from typing import Any, ClassVar, Final

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

COMPLETE_VARIABLE: Final = "_ANABRANCH_COMPLETE"
PROGRAM: Final = "anabranch"
SHELLS: Final = ("bash", "zsh", "fish")

_WORD_BREAKS: Final = ":="
_BASH_SCRIPT: Final = """\
# Needs bash 4.4 or newer.
%(complete_func)s() {
    local IFS=$'\\n' type value completion response

    response=$(env COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)

    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            open) compopt -o nospace; COMPREPLY+=("$value") ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class WholeLineBash(BashComplete):
    """Bash with the line as it is typed."""

    name: ClassVar[str] = "bash"
    source_template: ClassVar[str] = _BASH_SCRIPT
    _cut: str = ""  # what bash keeps of the word under the cursor

    def source(self) -> str:
        # Not click's own, which runs a bash to see how old it is.
        return self.source_template % self.source_vars()

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        typed = line.encode()[: int(os.environ["COMP_POINT"])].decode("utf-8", "replace")
        words = split_arg_string(typed)[1:]
        incomplete = words.pop() if words and not typed[-1:].isspace() else ""
        kept = max(incomplete.rfind(sign) for sign in _WORD_BREAKS) + 1
        self._cut = incomplete[:kept]
        return words, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        value = str(item.value)
        kind = "open" if item.type == "plain" and value.endswith("=") else item.type
        return f"{kind},{value.removeprefix(self._cut)}"


add_completion_class(WholeLineBash)


def script(root: Any, shell: str) -> str:
    """What a shell has to run to complete this program's arguments."""
    complete = get_completion_class(shell)
    assert complete is not None, f"click knows {shell}"
    return complete(root, {}, PROGRAM, COMPLETE_VARIABLE).source()
