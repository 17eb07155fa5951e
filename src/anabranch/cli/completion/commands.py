"""`anabranch completion`: print the script that makes a shell complete."""

import sys

import click

from anabranch.cli.completion.shells import SHELLS, script
from anabranch.cli.options import debug_option, examples


@click.command(
    short_help="Print the script that makes bash, zsh or fish complete.",
    epilog=examples(
        """
source <(anabranch completion bash)
anabranch completion bash > ~/.local/share/bash-completion/completions/anabranch
anabranch completion zsh > ~/.zfunc/_anabranch
anabranch completion fish > ~/.config/fish/completions/anabranch.fish
"""
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
@debug_option
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands, flags and live names.

    Names of topics, groups, members and transactional ids come from the broker that the line names
    with --bootstrap-server and --command-config, or else from ANABRANCH_BOOTSTRAP_SERVER or
    localhost:9092. One that does not answer within a second is left in peace: then there is nothing
    to offer.

    For zsh, the folder must be in `fpath` before `compinit` runs.
    """
    root = click.get_current_context().find_root().command
    sys.stdout.write(script(root, shell))
