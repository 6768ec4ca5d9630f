"""The bucket of the cluster that a command is about: its own `--bucket`, the environment, or the context's."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from stratalog.connect.contexts import contexts_file, read_contexts
from stratalog.model.errors import InvalidRequest


def bucket_of_context() -> str:
    """Raises: InvalidRequest where nothing names one, NotFound for a context that is not there."""
    context = read_contexts(contexts_file(os.environ)).chosen(os.environ)
    if context is not None and context.bucket is not None:
        return context.bucket
    where = "" if context is None else f"; context {context.name} names none"
    raise InvalidRequest(
        f"nothing names the object store{where}: give --bucket URL, set STRATALOG_BUCKET, or add it to a context: "
        "`stratalog context add NAME --bucket URL`"
    )


BucketOption = Annotated[
    str,
    typer.Option(
        "--bucket",
        envvar="STRATALOG_BUCKET",
        metavar="URL",
        help="The cluster's object store. Default: the context's.",
        default_factory=bucket_of_context,
        show_default=False,
    ),
]
