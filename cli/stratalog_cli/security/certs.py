"""`stratalog certs …`: an authority for your own machines, and certificates of it: create, issue, renew, show.

Everything is local: no cluster is asked. The parts of a cluster are named as docs/security-spec.md, section 2, says.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from stratalog.admin_api.wording import human_duration
from stratalog.model.errors import InvalidRequest
from stratalog.settings.units import DAY_MS, parse_duration_ms
from stratalog.telemetry.printable import printable
from stratalog.tls.authority import (
    Authority,
    Holder,
    client_holder,
    hosts_of,
    is_issued_by,
    is_key_of,
    load_certificate,
    meta_holder,
    node_holder,
    operator_holder,
    uris_of,
)
from stratalog.tls.subjects import name_text
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_json, print_table
from stratalog_cli.security.certificate_folder import (
    AUTHORITY_CERTIFICATE,
    AUTHORITY_KEY,
    CERTIFICATE,
    KEY,
    named,
    read_authority,
    read_file,
    write_authority,
    write_holder,
)
from stratalog_cli.terminal.say import say

_FINDINGS: Final = 1
_SOON: Final = timedelta(days=30)
"""Before its end a certificate is shown as one that is to be renewed."""
_LONGEST_MS: Final = 36_500 * DAY_MS

AuthorityOption = Annotated[
    Path, typer.Option("--authority", metavar="DIR", help="Directory of the authority, as create-authority made it.")
]
ValidOption = Annotated[str, typer.Option("--valid", metavar="TIME", help="How long it is valid: 365d, 12h.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Create an authority for your own machines, and certificates for nodes and clients.",
    )
    group.command("create-authority")(create_authority)
    group.command("issue")(issue)
    group.command("renew")(renew)
    group.command("show")(show)
    app.add_typer(group, name="certs")


def create_authority(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory for ca.crt and ca.key; made if missing.")],
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="ID",
            help="Id of the cluster whose parts it names, as `stratalog status` shows it. Default: a new one.",
        ),
    ] = None,
    valid: ValidOption = "3650d",
) -> None:
    """Create the authority of a cluster: a key that can name every part of it. Keep ca.key off the machines that serve.

    One that is there is never replaced."""
    authority = Authority.create(cluster or str(uuid.uuid4()), _time(valid), _now())
    write_authority(folder, authority)
    say(
        f"authority of cluster {authority.cluster_id} is in {printable(str(folder))}, valid until "
        f"{authority.expires:%Y-%m-%d}\n"
        f"whoever has {AUTHORITY_KEY} can be any part of this cluster; {AUTHORITY_CERTIFICATE} is for everyone"
    )


def issue(
    authority: AuthorityOption,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory for tls.crt, tls.key and ca.crt; made if missing.")
    ],
    node: Annotated[int | None, typer.Option("--node", metavar="ID", min=0, help="For the node with this id.")] = None,
    meta: Annotated[bool, typer.Option("--meta", help="For the meta service.")] = False,
    operator: Annotated[bool, typer.Option("--operator", help="For the Kubernetes operator.")] = False,
    client: Annotated[str | None, typer.Option("--client", metavar="NAME", help="For a Kafka client.")] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="Name or address under which others reach it; may be repeated."),
    ] = None,
    valid: ValidOption = "365d",
    is_replacing: Annotated[bool, typer.Option("--replace", help="Replace the certificate and key in DIR.")] = False,
) -> None:
    """Issue a certificate with a new key: for a node, the meta service, the operator, or a client."""
    holder = _holder(node, meta, operator, client, hosts or ())
    by = read_authority(authority)
    issued = by.issue(holder, _time(valid), _now())
    write_holder(out, issued, by, is_replacing=is_replacing)
    certificate = load_certificate(issued.certificate)
    say(
        f"certificate of {printable(holder.name)} is in {printable(str(out))}, valid until "
        f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    )
    if holder.hosts:
        say(f"a server uses it by ssl.certificate.folder={printable(str(out.absolute()))}")
    if not holder.part:
        say(f"where ssl.client.auth=required, it logs in as User:{printable(name_text(certificate.subject))}")


def _holder(node: int | None, meta: bool, operator: bool, client: str | None, hosts: Sequence[str]) -> Holder:
    if sum((node is not None, meta, operator, client is not None)) != 1:
        raise InvalidRequest("say whom it is for: one of --node ID, --meta, --operator and --client NAME")
    if client is not None:
        if hosts:
            raise InvalidRequest("--host is for servers: a client is known by its name alone")
        return client_holder(client)
    if not hosts and not operator:
        raise InvalidRequest("a server needs the names and addresses by which others reach it: give --host HOST")
    if node is not None:
        return node_holder(node, hosts)
    return meta_holder(hosts) if meta else operator_holder(hosts)


def renew(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Directories, as `certs issue` made them.")],
    authority: AuthorityOption,
    within: Annotated[
        str, typer.Option("--within", metavar="TIME", help="Only those that expire within this time.")
    ] = "30d",
    valid: ValidOption = "365d",
) -> None:
    """Renew certificates that expire soon, with the same names and new keys. Running processes take them into use.

    Made for cron: those that are valid for longer stay as they are."""
    by, now, span = read_authority(authority), _now(), _time(valid)
    latest = now + _time(within, "--within")
    for folder in folders:
        text = read_file(folder / CERTIFICATE)
        with named(folder / CERTIFICATE):
            known = load_certificate(text)
        place = printable(str(folder))
        if known.not_valid_after_utc > latest:
            say(f"{place}  valid until {known.not_valid_after_utc:%Y-%m-%d}: left as it is")
            continue
        with named(folder / CERTIFICATE):
            issued = by.renew(text, span, now)
        write_holder(folder, issued, by, is_replacing=True, is_renewal=True)
        say(f"{place}  renewed: valid until {load_certificate(issued.certificate).not_valid_after_utc:%Y-%m-%d}")


# Showing ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ShownCertificate:
    file: str
    subject: str
    names: list[str]
    issuer: str
    begins: str
    expires: str
    expires_in_s: int
    is_authority: bool
    troubles: list[str]

    @property
    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def show(
    places: Annotated[list[Path], typer.Argument(metavar="PATH", help="Directories with certificates, or PEM files.")],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show certificates: subjects, names, issuers, ends, and what is wrong with them.

    Exit code 1 if one cannot be used."""
    now = _now()
    found = [_shown(file, now) for place in places for file in _files(place)]
    if output is OutputFormat.JSON:
        print_json([one.as_json for one in found])
    else:
        _print(found)
    if any(one.troubles for one in found):
        raise typer.Exit(_FINDINGS)


def _files(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    names = [CERTIFICATE] if (place / CERTIFICATE).exists() else [AUTHORITY_CERTIFICATE]
    return [place / name for name in names]


def _shown(file: Path, now: datetime) -> ShownCertificate:
    text = read_file(file)
    with named(file):
        one = load_certificate(text)
    return ShownCertificate(
        str(file),
        name_text(one.subject),
        [*hosts_of(one), *uris_of(one)],
        name_text(one.issuer),
        one.not_valid_before_utc.isoformat(),
        one.not_valid_after_utc.isoformat(),
        int((one.not_valid_after_utc - now).total_seconds()),
        one.issuer == one.subject,
        list(_troubles(file, one, now)),
    )


def _troubles(file: Path, one: Any, now: datetime) -> list[str]:
    found = []
    if one.not_valid_after_utc <= now:
        found.append("it has expired")
    elif one.not_valid_before_utc > now:
        found.append(f"it is valid from {one.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on: check the clock")
    if file.name != CERTIFICATE:
        return found
    key, authority = file.with_name(KEY), file.with_name(AUTHORITY_CERTIFICATE)
    if not key.exists():
        found.append(f"its key {KEY} is missing")
    elif not is_key_of(one, read_file(key)):
        found.append(f"{KEY} is not its key")
    if authority.exists() and not is_issued_by(one, read_file(authority)):
        found.append(f"{AUTHORITY_CERTIFICATE} has not issued it")
    return found


def _print(found: Sequence[ShownCertificate]) -> None:
    rows = [(one.file, one.subject, ", ".join(one.names), one.issuer, one.expires[:10], _state(one)) for one in found]
    print_table(("file", "subject", "names", "issuer", "expires", "state"), rows, give_up=("issuer", "file"))


def _state(one: ShownCertificate) -> str:
    if one.troubles:
        return "; ".join(one.troubles)
    left = human_duration(one.expires_in_s)
    return f"renew it: {left} left" if one.expires_in_s < _SOON.total_seconds() else f"valid for {left}"


def _time(text: str, option: str = "--valid") -> timedelta:
    found = parse_duration_ms(text, option)
    if found > _LONGEST_MS:
        raise InvalidRequest(f"{option} {text!r:.80}: expected at most 36500d")
    return timedelta(milliseconds=found)


def _now() -> datetime:
    return datetime.now(UTC)
