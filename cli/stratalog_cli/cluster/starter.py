"""Runs a cluster: starts its parts in order, keeps what is known of them, does what commands ask, ends all in order.

Lives in one task per job on the event loop of a process of its own. A part that ends by itself stays down: that is what
a cluster must live through, and whoever looks shall see it. `cluster.json` is rewritten whole at each change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from stratalog.event_loop.task_set import TaskSet
from stratalog.model.addresses import parse_address
from stratalog.model.errors import Conflict, InvalidRequest, StratalogError, Unavailable
from stratalog_cli.cluster.access import PartsAccess, parts_access
from stratalog_cli.cluster.child import Child, End, start_child
from stratalog_cli.cluster.control import Say
from stratalog_cli.cluster.directory import ClusterDirectory
from stratalog_cli.cluster.free_ports import why_not_free
from stratalog_cli.cluster.health import is_well
from stratalog_cli.cluster.plan import Part, Plan, Programs, Role, command_of, variables_of
from stratalog_cli.cluster.retired import retired_nodes

if TYPE_CHECKING:
    from stratalog_cli.cluster.secure_files import SecureFiles

_POLL_S: Final = 0.03
_STILL_S: Final = 10.0
"""How often a start that takes long says so."""
_ALONE_S: Final = 3.0
"""How long a start waits for an etcd member that may have no majority."""
_GRACE_S: Final = 60.0
"""How long a part may take to end in order; a node flushes what it has."""
_TOLD_S: Final = 10.0
"""How long to ask the meta service which nodes have retired; after this time all nodes are started."""
_CERTIFICATES_EVERY_S: Final = 3_600.0
"""How often certificates are looked at, and renewed within a month of their end. The clock of the event loop does
not run while a laptop sleeps, so this is much less than a month."""

Tell = Callable[[str], None]


class Starter:
    """Requires: the directory is held. Raises: InvalidRequest for a file without tokens."""

    def __init__(
        self,
        directory: ClusterDirectory,
        plan: Plan,
        programs: Programs,
        environment: Mapping[str, str],
        warn: Tell,
    ) -> None:
        self._directory = directory
        self._plan = plan
        self._programs = programs
        self._environment = environment
        self._warn = warn
        self._secure_files: SecureFiles | None = None
        if plan.choices.is_secure:
            from stratalog_cli.cluster.secure_files import SecureFiles

            self._secure_files = SecureFiles(directory.path)
        self._access = PartsAccess()
        if self._secure_files is None:
            self._access = parts_access(plan, directory.path)
        self._renewing: asyncio.Task[None] | None = None
        self._children: dict[str, Child] = {}
        self._ends: dict[str, End] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._telling = TaskSet()
        self._retired: dict[str, str] = {}
        """Nodes that have left for good, as far as was asked, and what is said of each."""
        self._page: str | None = None
        self._one_change = asyncio.Lock()
        self._is_ending = False
        self._wait_for_the_end: list[Say] = []
        self.stopping = asyncio.Event()
        self.hurry = asyncio.Event()
        """Set: what still lives is killed."""
        self.is_over = asyncio.Event()
        """All parts have ended."""

    # The whole ----------------------------------------------------------------------------------------------------
    async def make_secure_files(self) -> None:
        """Of a secure cluster, before anything else is done in its directory. Raises: Unavailable, InvalidRequest."""
        if self._secure_files is not None:
            await asyncio.to_thread(self._secure_files.make, self._plan)
            self._access = parts_access(self._plan, self._directory.path)

    async def renew_certificates(self) -> None:
        """Those that end soon. The parts read their files again, and need no restart. Raises nothing: what fails is
        said, and tried again an hour later."""
        if self._secure_files is None:
            return
        try:
            async with self._one_change:
                renewed = await asyncio.to_thread(self._secure_files.make, self._plan)
                if renewed:
                    self._access = parts_access(self._plan, self._directory.path)
                    self._warn(f"renewed certificates in {self._secure_files.folder}: {', '.join(renewed)}")
        except (StratalogError, OSError) as error:
            self._warn(f"certificates cannot be renewed: {error}")

    async def _renew_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_CERTIFICATES_EVERY_S)
            await self.renew_certificates()

    @property
    def secure_files(self) -> SecureFiles | None:
        return self._secure_files

    async def start_all(self, say: Say) -> None:
        """Raises StratalogError; parts that were started then run on, for `stop_all`."""
        async with self._one_change:
            self.require_all_free()
            self._directory.write_options(self._plan)
            self._note()
            for role in (Role.ETCD, Role.META):
                await self._start(self._plan.of(role), say)
            if self._secure_files is not None:
                await self._secure_files.create_admin(self._plan.meta_urls, self._access.token, self._access.tls)
                self._renewing = asyncio.create_task(self._renew_now_and_then())
            await self._find_retired_nodes(say)
            await self._start([part for part in self._plan.of(Role.NODE) if part.name not in self._retired], say)

    def require_all_free(self) -> None:
        """Raises: Unavailable for an address that something else has. Nothing is made."""
        for part in self._plan.parts:
            self._require_free(part)

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def access(self) -> PartsAccess:
        return self._access

    def page_is_at(self, url: str) -> None:
        """The cluster UI is served there from now on."""
        self._page = url
        self._note()

    @property
    def bootstrap(self) -> str:
        """Without nodes that are known to have left for good."""
        return ",".join(part.main_address for part in self._plan.of(Role.NODE) if part.name not in self._retired)

    @property
    def context_options(self) -> str:
        """Without them as well: a command that asks every node would wait for those in vain."""
        return self._plan.context_options(without=self._retired)

    async def _find_retired_nodes(self, say: Say) -> None:
        """A node that has left is refused when it is started: that shall not keep the others down."""
        if not any((self._directory.path / part.name).exists() for part in self._plan.of(Role.NODE)):
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (found := await asyncio.to_thread(retired_nodes, self._plan.of(Role.META), self._access)) is None:
            if self.stopping.is_set() or loop.time() - began > _TOLD_S:
                return
            await asyncio.sleep(_POLL_S)
        self._retired = found
        for part in self._plan.of(Role.NODE):
            if part.name in found:
                say(f"{part.name}  {found[part.name]}: skipped")

    async def stop_all(self) -> None:
        """Stops nodes first, so that they can sign off; then the meta service, then etcd."""
        self._is_ending = True
        self.stopping.set()
        if self._renewing is not None:
            self._renewing.cancel()
        async with self._one_change:  # what was under way gives up now
            for role in reversed(Role):
                await self._end(
                    [child for child in self._children.values() if child.part.role is role], self._print_to_all
                )
            await self._telling.ended()
        self.is_over.set()

    def _print_to_all(self, text: str) -> None:
        for say in (self._warn, *self._wait_for_the_end):
            say(text)

    # What commands ask --------------------------------------------------------------------------------------------
    async def answer(self, request: dict[str, Any], say: Say) -> object:
        """Raises StratalogError."""
        match request:
            case {"do": "state"}:
                return self.state()
            case {"do": "stop"}:
                self._wait_for_the_end.append(say)
                self.stopping.set()
                await self.is_over.wait()
            case {"do": "start-part", "part": str(name)}:
                await self._changed(self._start_part(name, say))
            case {"do": "stop-part", "part": str(name)}:
                await self._changed(self._stop_part(name, say))
            case {"do": "add-node"}:
                await self._changed(self._add_node(say))
                return {"bootstrap": self.bootstrap, "context": self.context_options}
            case _:
                raise InvalidRequest(f"unknown request: {request!r:.100} asks: use the same version on both sides")
        return None

    async def _changed(self, change: Coroutine[None, None, None]) -> None:
        """One at a time, and none once the end has begun."""
        with contextlib.closing(change):
            async with self._one_change:
                if self._is_ending:
                    raise Unavailable("the cluster is being stopped: start it again when it is over")
                await change

    async def _start_part(self, name: str, say: Say) -> None:
        part = self._plan.part(name)
        if name in self._children:
            raise Conflict(f"{name} runs already (pid {self._children[name].pid}): stop it first, to start it again")
        self._require_free(part)
        await self._start([part], say)

    async def _stop_part(self, name: str, say: Say) -> None:
        part = self._plan.part(name)
        child = self._children.get(name)
        if child is None:
            say(f"{part.name} does not run")
            return
        await self._end([child], say)

    async def _add_node(self, say: Say) -> None:
        plan, part = self._plan.with_one_more_node()
        self._require_free(part)
        if self._secure_files is not None:
            await asyncio.to_thread(self._secure_files.make, plan)
        self._plan = plan
        await self._start([part], say)

    def state(self) -> dict[str, Any]:
        """What only this process knows: which parts run since when, and how the others ended."""
        alive = {
            name: {"pid": child.pid, "started_ms": child.started_ms, "is_ready": child.is_ready}
            for name, child in self._children.items()
        }
        ends = {
            name: {
                "code": end.code,
                "how": end.words,
                "was_asked": end.was_asked,
                "at_ms": end.at_ms,
                "log_tail": end.log_tail,
            }
            for name, end in self._ends.items()
            if name not in alive
        }
        return {"alive": alive, "ends": ends, "retired": dict(self._retired), "page": self._page}

    # Parts --------------------------------------------------------------------------------------------------------
    async def _start(self, parts: Iterable[Part], say: Say) -> None:
        """All of them at once, a line for each that is ready. Raises Unavailable for one that is not going to be."""
        children = []
        for part in parts:
            command = command_of(part, self._plan, self._directory.path, self._programs)
            environment = {**self._environment, **variables_of(part, self._plan)}
            child = await start_child(part, command, environment, self._directory)
            self._children[part.name] = child
            self._ends.pop(part.name, None)
            self._watching[part.name] = asyncio.create_task(self._watch(child))
            self._note()
            children.append(child)
        for child in children:
            await self._until_ready(child)
            places = ", ".join(f"{what} {address}" for what, address in child.part.addresses.items())
            say(f"{child.part.name}  {places}, pid {child.pid}")

    async def _until_ready(self, child: Child) -> None:
        part, waited, loop = child.part, 0, asyncio.get_running_loop()
        began = loop.time()
        while not await self._is_ready(child, loop.time() - began):
            if part.name not in self._children:
                end = self._ends[part.name]
                ending = f"ends with: {' | '.join(end.log_tail)}" if end.log_tail else "says nothing of it"
                log = self._directory.log_of(part)
                raise Unavailable(f"{part.name} ended before it was ready ({end.words}); its log {log} {ending}")
            if self.stopping.is_set():
                raise Unavailable(f"the start was ended before {part.name} was ready")
            if loop.time() - began > _STILL_S * (waited + 1):
                waited += 1
                self._warn(f"{part.name} is still starting: {self._directory.log_of(part)} says how far it is")
            await asyncio.sleep(_POLL_S)
        child.is_ready = True

    async def _is_ready(self, child: Child, since_s: float) -> bool:
        if child.part.role is not Role.ETCD:
            return child.has_printed(b"stratalog ready:")
        if not child.runs:
            return False
        members = self._plan.of(Role.ETCD)
        has_majority = 2 * sum(member.name in self._children for member in members) > len(members)
        if not has_majority and since_s > _ALONE_S:
            self._warn(f"{child.part.name} runs, and waits for a majority: start the other members")
            return True
        return await asyncio.to_thread(is_well, child.part, self._access)

    async def _watch(self, child: Child) -> None:
        end = await child.ended()
        part = child.part
        self._ends[part.name] = end
        del self._children[part.name], self._watching[part.name]
        self._note()
        if child.is_ready and not end.was_asked:
            self._telling.start(self._tell_that_it_ended(part, end))

    async def _tell_that_it_ended(self, part: Part, end: End) -> None:
        metas = [meta for meta in self._plan.of(Role.META) if meta.name in self._children]
        if part.role is Role.NODE:
            found = await asyncio.to_thread(retired_nodes, metas, self._access)
            self._retired = self._retired if found is None else found
        if part.name in self._retired:
            self._warn(f"{part.name} ended ({end.words}): it {self._retired[part.name]}")
            return
        self._warn(
            f"{part.name} ended ({end.words}); `stratalog cluster start --data {self._directory.path} --part "
            f"{part.name}` starts it again"
        )

    async def _end(self, children: list[Child], say: Say) -> None:
        watching = [self._watching[child.part.name] for child in children]
        if not watching:
            return
        for child in children:
            child.ask_to_end()
        await self._until_ended(watching)
        for child in children:
            if child.runs:
                say(f"{child.part.name} is killed: it did not end in time")
                child.kill()
        await asyncio.gather(*watching)
        for child in children:
            say(f"{child.part.name} ended ({self._ends[child.part.name].words})")

    async def _until_ended(self, watching: list[asyncio.Task[None]]) -> None:
        """Waits until all parts have ended, `_GRACE_S` have passed, or the user hurries the stop."""
        ended = asyncio.ensure_future(asyncio.wait(watching, timeout=_GRACE_S))
        hurry = asyncio.create_task(self.hurry.wait())
        try:
            await asyncio.wait({ended, hurry}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            hurry.cancel()

    def _note(self) -> None:
        pids = {name: child.pid for name, child in self._children.items()}
        self._directory.write(self._plan, pids, self._page if pids else None)

    def _require_free(self, part: Part) -> None:
        """Raises Unavailable if another process listens on an address of the part."""
        for what, address in part.addresses.items():
            host, port = parse_address(address)
            if (why := why_not_free(host, port)) is not None:
                step = "end that"
                if not self._directory.exists:
                    step += ", or choose a block of 100 free ports with --port-base"
                raise Unavailable(f"{address} for {what} of {part.name} cannot be listened on ({why}); {step}")
