"""A pipeline's folder: what its `pipeline.toml` says.

name = "orders"
app = "app.py"                 # or spec = "spark-pipeline.yml", the scheduled form

[source]                       # options of format("anabranch")
"kafka.bootstrap.servers" = "localhost:9092"
subscribe = "orders"

[spark]                        # settings of the session, if there are any
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.cli.errors import CliError

FILE_NAME = "pipeline.toml"
BOOTSTRAP_OPTION = "kafka.bootstrap.servers"
GROUP_OPTION = "kafka.group.id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """One pipeline."""

    folder: Path
    name: str
    app: Path | None
    spec: Path | None
    source: dict[str, str]
    spark: dict[str, str]

    @property
    def bootstrap_server(self) -> str | None:
        return self.source.get(BOOTSTRAP_OPTION)

    @property
    def group(self) -> str | None:
        return self.source.get(GROUP_OPTION)


def load_project(folder: Path) -> Project:
    """CliError when the folder has no pipeline, or one that cannot be read."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise CliError(
            f"There is no pipeline in {folder}",
            f"it has no {FILE_NAME}",
            "make one with `anabranch pipeline new NAME --topic TOPIC`",
        )
    try:
        document = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(path, str(error)) from error
    app, spec = document.get("app"), document.get("spec")
    if (app is None) == (spec is None):
        raise _wrong(path, "it must name either `app` or `spec`")
    code = folder / str(app or spec)
    if not code.is_file():
        raise _wrong(path, f"{code} is not there")
    return Project(
        folder=folder,
        name=str(document.get("name") or folder.resolve().name),
        app=code if app else None,
        spec=code if spec else None,
        source=_texts(path, document, "source"),
        spark=_texts(path, document, "spark"),
    )


def _texts(path: Path, document: dict[str, Any], table: str) -> dict[str, str]:
    """A table of options as texts, which is what Spark takes."""
    found = document.get(table, {})
    if not isinstance(found, dict):
        raise _wrong(path, f"`{table}` must be a table")
    texts = {}
    for name, value in found.items():
        if isinstance(value, dict):
            # TOML takes a.b = 1 for a table inside a table.
            raise _wrong(path, f"`{table}.{name}` is a table; write names with dots in quotes")
        texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


def _wrong(path: Path, why: str) -> CliError:
    return CliError(f"Cannot use {path}", why, "correct the file")
