"""`stratalog context …`: names for clusters, as `kubectl` and `nats` have them: add, use, list, show, remove.

What they are and which one holds is in `stratalog.connect.contexts` and `stratalog_cli.connect.target_address`.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from stratalog.admin_api.client import AdminClient
from stratalog.connect.brokers import check_broker
from stratalog.connect.client_settings import ClientSettings
from stratalog.connect.contexts import (
    CONTEXT_VARIABLE,
    Context,
    Contexts,
    contexts_file,
    read_contexts,
    write_contexts,
)
from stratalog.meta_api.json_shape import NotOfShape
from stratalog.meta_api.problems import from_problem
from stratalog.meta_api.wire import PROBLEM, foreign
from stratalog.model.addresses import parse_address
from stratalog.model.errors import Conflict, InvalidRequest, NotFound, StratalogError, Unavailable, WrongServer
from stratalog.model.tokens import Token, bearer
from stratalog.objects.urls import parse_url
from stratalog.telemetry.logs import without_secrets
from stratalog.telemetry.printable import printable
from stratalog.tls.outgoing import ClientTls, why_no_tls
from stratalog_cli.connect.json_answers import object_of
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_fields, print_json, print_table
from stratalog_cli.connect.target_address import Target
from stratalog_cli.terminal.say import say


def _known_names() -> list[str]:
    """For completion."""
    try:
        return sorted(_read().by_name)
    except StratalogError:
        return []


_NOT_KEPT: Final = "The context is not kept; with --cluster ID it is kept without asking any address"
_ADD_ONE = "add one: stratalog context add NAME --admin HOST:PORT --bootstrap HOST:PORT"
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.", autocompletion=_known_names)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Name clusters, and choose the one that commands go to.",
    )
    group.command("add")(add)
    group.command("use")(use)
    group.command("list")(list_all)
    group.command("show")(show)
    group.command("remove")(remove)
    app.add_typer(group, name="context")


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the context: letters, digits, and . _ -")],
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin", metavar="HOST:PORT[,...]", help="Admin addresses of the nodes; https://HOST:PORT with TLS."
        ),
    ] = None,
    meta: Annotated[
        str | None,
        typer.Option("--meta", metavar="URL[,URL]", help="Address of the meta service: http://HOST:PORT, or https://."),
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", metavar="HOST:PORT[,...]", help="Where Kafka clients connect.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="File with the token. The context keeps the path, not the token."
        ),
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option(
            "--bucket", metavar="URL", help="Object store of the cluster, for commands that read or change it."
        ),
    ] = None,
    client_config: Annotated[
        Path | None,
        typer.Option(
            "--client-config",
            metavar="FILE",
            help="File with the settings by which Kafka clients log in: security.protocol, sasl.jaas.config, … The "
            "context keeps the path.",
        ),
    ] = None,
    certificate_folder: Annotated[
        Path | None,
        typer.Option(
            "--certificate-folder",
            metavar="DIR",
            help="Folder with ca.crt, the authority of what answers at https://, and perhaps tls.crt and tls.key to "
            "show there. The context keeps the path.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="ID",
            help="Id of the cluster; no address is asked then. Default: what --admin or --meta says, if it answers.",
        ),
    ] = None,
    is_replacing: Annotated[bool, typer.Option("--replace", help="Replace the context of this name.")] = False,
) -> None:
    """Name a cluster. The first context that is added becomes the one in use.

    Writes then go only to nodes of this cluster; they are refused if another cluster answers. An address that does not
    answer is kept with a warning; one where something else answers is refused."""
    if admin is None and meta is None and bootstrap is None and bucket is None:
        raise InvalidRequest("a context names at least one of --admin, --meta, --bootstrap and --bucket")
    _check(admin, meta, bootstrap, bucket)
    tokens = None if token_file is None else str(token_file.absolute())
    login = None if client_config is None else str(client_config.absolute())
    certificates = None if certificate_folder is None else str(certificate_folder.absolute())
    context = Context(name, admin, meta, bootstrap, tokens, bucket, cluster, login, certificates)
    file = contexts_file(os.environ)
    known = read_contexts(file)
    known.with_added(context, is_replacing=is_replacing)  # refused before any address is asked
    if cluster is None and (admin or meta):
        context = replace(context, cluster=_cluster_of(context))
    if cluster is None and bootstrap is not None:
        _check_brokers(bootstrap, Target(bootstrap, context).client_settings)
    after = known.with_added(context, is_replacing=is_replacing)
    write_contexts(file, after)
    unknown = ", without the id of its cluster: no address answers now" if admin or meta else ""
    of = f" for cluster {context.cluster}" if context.cluster else unknown
    used = "commands use it now" if after.current == name else f"`stratalog context use {name}` uses it"
    say(f"context {name} is kept{printable(of)}; {used}")


def _check(admin: str | None, meta: str | None, bootstrap: str | None, bucket: str | None) -> None:
    if bucket is not None:
        parse_url(bucket)
        if without_secrets(bucket) != bucket:
            raise InvalidRequest(
                "--bucket has credentials in it, and a context holds no secrets: leave them to the AWS_* environment"
            )
    for address in () if admin is None else admin.split(","):
        AdminClient(address.strip())
    for address in () if bootstrap is None else bootstrap.split(","):
        _broker_at(address)
    if meta is not None:
        from stratalog.meta_api.endpoints import parse_endpoints

        parse_endpoints(meta)


def _broker_at(address: str) -> tuple[str, int]:
    try:
        return parse_address(address.strip())
    except ValueError as error:
        raise InvalidRequest(f"--bootstrap {address.strip()!r:.80}: {error}") from None


def _check_brokers(bootstrap: str, settings: ClientSettings) -> None:
    """Warns of addresses where nothing answers: they may be started later. Raises: WrongServer; InvalidRequest where
    the client is refused."""
    for address in bootstrap.split(","):
        try:
            check_broker(*_broker_at(address), settings)
        except WrongServer as error:
            raise WrongServer(f"--bootstrap {error}. {_NOT_KEPT}") from None
        except InvalidRequest as error:
            raise InvalidRequest(f"--bootstrap {error}. {_NOT_KEPT}") from None
        except Unavailable as error:
            say(f"warning: --bootstrap {printable(str(error))}", to_stderr=True)


def _cluster_of(context: Context) -> str | None:
    """None: nothing answers. Raises: WrongServer, Conflict; InvalidRequest for files that cannot be used."""
    target = Target(context.admin or "", context)
    try:
        return cluster_of(context.admin, context.meta, target.token, target.tls)
    except WrongServer as error:
        raise WrongServer(f"{error}. {_NOT_KEPT}") from None


def use(name: NameArgument) -> None:
    """Use this context for the following commands."""
    file = contexts_file(os.environ)
    write_contexts(file, read_contexts(file).used(name))
    say(f"commands use context {printable(name)} now")
    overruling = os.environ.get(CONTEXT_VARIABLE)
    if overruling and overruling != name:
        say(f"but here {CONTEXT_VARIABLE}={printable(overruling)} is set, and goes before it", to_stderr=True)


def list_all(output: OutputOption = OutputFormat.TABLE) -> None:
    """List contexts; the one in use is marked with *."""
    known = _read()
    chosen = _chosen(known)
    contexts = [known.by_name[name] for name in sorted(known.by_name)]
    if output is OutputFormat.JSON:
        print_json([one.as_json() | {"is_used": one == chosen} for one in contexts])
    elif contexts:
        rows = [
            (
                f"{one.name}{' *' if one == chosen else ''}",
                *(value or "-" for value in _places(one)),
            )
            for one in contexts
        ]
        columns = ("context", "admin", "bootstrap", "meta", "bucket", "token file", "cluster")
        print_table(columns, rows, give_up=("token file", "cluster", "bucket", "meta", "bootstrap"))
    else:
        say(f"no contexts yet; {_ADD_ONE}")


def _places(one: Context) -> tuple[str | None, ...]:
    return one.admin, one.bootstrap, one.meta, one.bucket, one.token_file, one.cluster


def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Name of the context. Default: the one in use.", autocompletion=_known_names
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show one context, and why it is the one in use."""
    known = _read()
    context = known.chosen(os.environ) if name is None else known.named(name)
    if context is None:
        use_one = "`stratalog context list` shows all, `stratalog context use NAME` uses one"
        raise NotFound(f"no context is in use; {use_one if known.by_name else _ADD_ONE}")
    if output is OutputFormat.JSON:
        print_json(context.as_json() | {"is_used": context == _chosen(known)})
        return
    by = f"{CONTEXT_VARIABLE}" if os.environ.get(CONTEXT_VARIABLE) else "`stratalog context use`"
    words = f"yes, by {by}" if context == _chosen(known) else "no"
    titles = {"name": "context", "token_file": "token file", "client_config": "client settings"}
    titles |= {"certificate_folder": "certificates"}
    fields = [(titles.get(key, key), value) for key, value in context.as_json().items()]
    print_fields([*fields, ("in use", words), ("kept in", str(contexts_file(os.environ)))])


def remove(name: NameArgument) -> None:
    """Forget a context. The cluster is not touched."""
    file = contexts_file(os.environ)
    write_contexts(file, read_contexts(file).without(name))
    say(f"context {printable(name)} is removed; its cluster was not touched")


def _read() -> Contexts:
    return read_contexts(contexts_file(os.environ))


def _chosen(known: Contexts) -> Context | None:
    try:
        return known.chosen(os.environ)
    except NotFound:
        return None


_TIMEOUT_S: Final = 5.0
_PATH: Final = "/v1/cluster"


def cluster_of(admin: str | None, meta: str | None, token: Token | None, tls: ClientTls | None = None) -> str | None:
    """The cluster id of a new context's addresses, from the first node and the first instance of the meta service that
    answer. None if none answers, with the reasons on standard error: they may be started later.

    Raises: WrongServer if another server than Stratalog answers, as at a mistyped address; Conflict if the addresses
    belong to two clusters."""
    nodes = [] if admin is None else [address.strip() for address in admin.split(",")]
    instances = [] if meta is None else [url.strip().rstrip("/") for url in meta.split(",")]
    of_node = _first(
        nodes,
        lambda address: AdminClient(address, timeout_s=_TIMEOUT_S, token=token, tls=tls).status().cluster_id,
    )
    of_meta = _first(instances, lambda url: _cluster_at(url, token, tls))
    if of_node is not None and of_meta is not None and of_node != of_meta:
        raise Conflict(
            f"--admin {admin} is of cluster {of_node}, --meta {meta} of cluster {of_meta}: name the addresses of one"
        )
    return of_node or of_meta


def _first(places: Iterable[str], ask: Callable[[str], str]) -> str | None:
    for place in places:
        try:
            return ask(place)
        except WrongServer:
            raise
        except StratalogError as error:
            say(f"warning: {printable(str(error))}", to_stderr=True)
    return None


def _cluster_at(url: str, token: Token | None, tls: ClientTls | None) -> str:
    """What an instance of the meta service says. Raises: WrongServer, or what the service says."""
    where = f"GET {url}{_PATH}"
    request = urllib.request.Request(url + _PATH)
    if token is not None:
        request.add_unredirected_header("Authorization", bearer(token()))
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if tls is not None and url.startswith("https://"):
        handlers.append(urllib.request.HTTPSHandler(context=tls()))
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            body = answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            raise _problem(refused.code, refused.read(), where) from None
    except http.client.BadStatusLine:
        raise WrongServer(foreign(where, "it speaks no HTTP")) from None
    except (OSError, http.client.HTTPException) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        words = why_no_tls(error) or getattr(why, "strerror", None) or why
        raise Unavailable(f"no meta service answers at {url} ({words})") from None
    found = object_of(body).get("cluster_id")
    if not isinstance(found, str):
        raise WrongServer(foreign(where, "its answer is another"))
    return found


def _problem(status: int, body: bytes, where: str) -> StratalogError:
    try:
        return from_problem(PROBLEM.read(body))
    except NotOfShape:
        how = f"it answers {status}, and not as a meta service does"
        return Unavailable(f"{where}: {how}") if status >= 500 else WrongServer(foreign(where, how))
