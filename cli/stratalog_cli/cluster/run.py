"""The process of `stratalog cluster start`: holds the directory, runs the cluster until it is asked to stop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from shlex import quote
from typing import TYPE_CHECKING

from stratalog.model.errors import StratalogError
from stratalog.model.etcd_versions import FIRST_SAFE
from stratalog.settings.load import COMMAND_LINE_VARIABLES
from stratalog.telemetry.printable import printable
from stratalog_cli.cluster.control import ControlServer
from stratalog_cli.cluster.directory import ClusterDirectory
from stratalog_cli.cluster.plan import MetaStoreKind, Plan, Programs
from stratalog_cli.cluster.starter import Starter
from stratalog_cli.terminal.say import say

if TYPE_CHECKING:
    from stratalog_cli.cluster.page import ClusterPage
    from stratalog_cli.cluster.secure_files import SecureFiles


def run_cluster(directory: ClusterDirectory, plan: Plan, programs: Programs) -> None:
    """Until SIGTERM, SIGINT, SIGHUP or `cluster stop`; all parts have ended then. A second signal kills what is left.

    Raises StratalogError when the cluster cannot be started; what had been started has ended.
    """
    asyncio.run(_run(directory, plan, programs))


async def _run(directory: ClusterDirectory, plan: Plan, programs: Programs) -> None:
    try:
        starter = Starter(directory, plan, programs, _environment(), warn)
        if directory.is_untouched:
            starter.require_all_free()  # so that nothing is made where it could not start
        await directory.hold()
        await starter.make_secure_files()
        _stop_by_signal(starter)
        _warn_of_unusual_plan(plan)
        async with ControlServer(directory.path, starter.answer):
            try:
                await _until_stop_requested(starter)
            finally:
                await starter.stop_all()
    finally:
        directory.release()


async def _until_stop_requested(starter: Starter) -> None:
    async with _status_page(starter) as opening:
        try:
            await starter.start_all(say)
        except StratalogError:
            if starter.stopping.is_set():
                return
            raise
        if starter.secure_files is not None:
            _print_client_settings(starter.secure_files)
        say(f"commands  stratalog context add NAME {starter.context_options}")
        await _print_page_address(starter, opening)
        say(f"ready bootstrap={starter.bootstrap}")
        await starter.stopping.wait()


@contextlib.asynccontextmanager
async def _status_page(starter: Starter) -> AsyncIterator[asyncio.Task[str]]:
    """Opened while the parts start; a cluster runs without it as well."""
    async with contextlib.AsyncExitStack() as opened:

        async def open_page() -> str:
            module = await asyncio.to_thread(importlib.import_module, "stratalog_cli.cluster.page")
            page: ClusterPage = module.ClusterPage(starter)
            opened.push_async_callback(page.close)
            plan = starter.plan
            return await page.start(plan.page_address, plan.choices.settings.get("http.allowed.hosts", ""))

        opening = asyncio.create_task(open_page())
        try:
            yield opening
        finally:
            await asyncio.wait([opening])
            if not opening.cancelled():
                opening.exception()  # already reported, or no longer of interest


def _print_client_settings(files: SecureFiles) -> None:
    """The files hold the password, which is not shown."""
    say(f"clients  Java and Kafka's tools: --command-config {quote(printable(str(files.client_file)))}")
    say(f"clients  librdkafka: kcat -F {quote(printable(str(files.librdkafka_file)))} -L")


async def _print_page_address(starter: Starter, opening: asyncio.Task[str]) -> None:
    try:
        url = await opening
    except StratalogError as error:
        warn(f"no UI: {error}; `stratalog cluster status` shows the same")
        return
    starter.page_is_at(url)
    files = starter.secure_files
    login = "" if files is None else f" (log in with the line of {printable(str(files.token_file))})"
    say(f"UI  {url}{login}")


def _stop_by_signal(starter: Starter) -> None:
    def stop() -> None:
        if starter.stopping.is_set():
            starter.hurry.set()
        starter.stopping.set()

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _environment() -> dict[str, str]:
    """The parts' settings may come from the environment, what is an option of the command line may not: they all
    would take the same."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in COMMAND_LINE_VARIABLES and not name.startswith("ETCD_")
    }


def _warn_of_unusual_plan(plan: Plan) -> None:
    if plan.choices.store is MetaStoreKind.ROCKSDB:
        warn(
            f"no etcd of version {FIRST_SAFE} or later on PATH when this cluster was made: one meta service "
            "keeps the metadata in RocksDB, and while it is down no topic can be created and no leader replaced"
        )
    choices = plan.choices
    if choices.is_secure and not choices.parts_have_tls:
        warn(
            "the parts of this cluster speak plain text with each other, as an earlier version made it: stop it, and "
            "`stratalog cluster start --secure` lets all of them speak TLS from then on"
        )
    elif choices.is_secure and choices.store is MetaStoreKind.ETCD and not choices.etcd_has_tls:
        warn(
            "etcd of this cluster speaks plain text and asks for no login, as an earlier version made it, and its "
            "members keep their addresses: whoever can run programs on this machine can change the metadata"
        )
    if sys.platform != "linux":
        warn(
            "on this system, parts keep running when this process is killed: end it by Ctrl-C or `stratalog "
            "cluster stop`"
        )


def warn(text: str) -> None:
    """Prints to standard error, if it is open. Standard output has only a line per part and then `ready`."""
    with contextlib.suppress(OSError):
        say(text, to_stderr=True)
