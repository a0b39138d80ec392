"""A Ray cluster for the time of one command: joined or started, its nodes, and errors in one line."""

import logging
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from xmlpreck.config import InputError
from xmlpreck.machine import cores

NAMESPACE = "xmlpreck"
CONNECT_SECONDS = 5.0  # for a connection to the cluster's port
ANSWER_SECONDS = 900.0  # for every node's first answer: it starts a process of Python, on a machine that may be busy
PATIENCE_SECONDS = 30.0  # without an answer, before that is said

WAITS = (1, 2, 4, 8, 16)  # seconds between tries to get an actor

# Of a Ray that we start, where the environment does not say otherwise (RAY_<name>).
OWN_RAY = {
    "worker_niceness": 0,  # Ray has 15: beside another busy process, workers then get a thirtieth of a core
    "worker_register_timeout_seconds": 600,  # a process that starts slowly is not a lost one
    "prestart_worker_first_driver": False,  # processes that have nothing to do yet
    "enable_worker_prestart": False,
}

Tell = Callable[[str], None]


class Node(NamedTuple):
    """A node of the cluster; memory is what Ray gives to tasks and actors there."""

    id: str
    name: str
    n_cpus: int
    memory: int  # bytes
    object_store: int  # bytes


class Session:
    """A cluster that this process is connected to."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.job = str(ray.get_runtime_context().get_job_id())  # tells the actors of two commands apart

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive and have a core, by name."""
        found = [_node(about) for about in ray.nodes() if about["Alive"]]
        nodes = sorted((node for node in found if node.n_cpus), key=lambda node: node.name)
        if not nodes:
            raise InputError("no node of the cluster has a CPU for tasks: add one with ray start --address")
        return nodes

    def check_versions(self) -> None:
        """Refuse nodes with another version of xmlpreck or Python: they may give other bits, or fail."""
        ask = _version_question()
        here, nodes = ask(), self.nodes()
        answers = [ray.remote(ask).options(num_cpus=0, **on_node(node)).remote() for node in nodes]
        deadline = time.monotonic() + ANSWER_SECONDS
        ready: list[Any] = []
        while len(ready) < len(answers) and time.monotonic() < deadline:
            ready, waiting = ray.wait(answers, num_returns=len(answers), timeout=PATIENCE_SECONDS)
            if waiting:
                advice = "see ray status; where other work runs, start Ray with RAY_worker_niceness=0"
                self.tell(f"still waiting for {len(waiting)} of {len(answers)} nodes to start Python ({advice})")
        for node, answer in zip(nodes, answers, strict=True):
            if answer not in ready:
                raise InputError(f"node {node.name} has not answered for {ANSWER_SECONDS:.0f} s: see ray status")
            try:
                there = result_of(answer)
            except (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
                self.tell(f"node {node.name} has gone: the others go on without it")
                continue
            if there != here:
                raise InputError(f"node {node.name} has {there}, but here is {here}: install the same on all nodes")


def _version_question() -> Callable[[], str]:
    def versions() -> str:  # a local function travels as code, and so answers where there is no xmlpreck, too
        try:
            from xmlpreck import __version__
        except ImportError:
            __version__ = "not installed"
        return f"xmlpreck {__version__}, Python {'.'.join(platform.python_version_tuple()[:2])}"

    return versions


def _node(about: dict[str, Any]) -> Node:
    has = about["Resources"]
    return Node(
        about["NodeID"],
        _name(about["NodeManagerHostname"], about["NodeID"]),
        int(has.get("CPU", 0)),
        int(has.get("memory", 0)),
        int(has.get("object_store_memory", 0)),
    )


def _name(host: str, node_id: str) -> str:
    """Name a node by host and id, as in `ray list nodes`: hosts may have the same name."""
    return f"{host} ({node_id[:8]})"


def on_node(node: Node, soft: bool = False) -> dict[str, Any]:
    """Return the options of a task or actor that runs on a node, or if `soft` elsewhere when that node is gone."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=soft)}


def hire(create: Callable[[], Any]) -> Any:
    """Create an actor. Ray may refuse while a node is leaving: then try again."""
    for seconds in WAITS:
        try:
            return create()
        except ray.exceptions.RaySystemError:
            time.sleep(seconds)
    return create()


def this_node() -> str:
    """Return the name of the node that this runs on, as in Session.nodes."""
    return _name(platform.node(), str(ray.get_runtime_context().get_node_id()))


def need_path(path: str) -> None:
    """Refuse a path that does not exist on the node that this runs on."""
    if not Path(path).exists():
        what = "is not there: put it on a shared filesystem or an object store"
        raise InputError(f"node {this_node()}: {path}: {what}")


def in_short(error: BaseException) -> str:
    """Return the text of an error on one line."""
    return " ".join(str(error).split())[:200].rstrip(".")


def result_of(answer: Any) -> Any:
    """Return the result of a task; raise a user's error as it was raised on the node."""
    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise error.cause from None
        raise


@contextmanager
def connect(address: str | None, tell: Tell) -> Iterator[Session]:
    """Join the cluster at `address` or RAY_ADDRESS; without one, start Ray on this machine until the end.

    An address (auto, host:port, ray://host:port) never starts anything: where no cluster is, that is an error.
    """
    flag, given = ("--address", address) if address else ("RAY_ADDRESS", os.environ.get("RAY_ADDRESS"))
    if not given or given == "local":
        n_cpus, why = cores()
        tell(f"Ray starts on this machine, with {n_cpus} cores{f' ({why})' if why else ''}, until this command ends")
        settings = {name: value for name, value in OWN_RAY.items() if f"RAY_{name}" not in os.environ}
        trouble, advice = "Ray does not start on this machine", "ray start may tell why"
        dashboard = _init("local", trouble, advice, num_cpus=n_cpus, _system_config=settings)
    else:
        advice = f"start one with ray start --head, or leave {flag} out"
        dashboard = _init(given, f"no Ray cluster at {given}", advice)
    if dashboard:
        tell(f"dashboard: http://{dashboard}")
    try:
        session = Session(tell)
        session.check_versions()
        yield session
    finally:
        ray.shutdown()  # disconnects; what `local` started, it stops


def _init(address: str, trouble: str, advice: str, **more: Any) -> str:
    """Connect; return the address of the dashboard, or an empty text."""
    on_terminate = signal.getsignal(signal.SIGTERM)
    try:
        _need_listener(address)
        context = ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **more)
    except (Exception, SystemExit) as error:  # Ray raises of every kind, and leaves the process when nobody answers
        raise InputError(f"{trouble} ({in_short(error)}): {advice}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_terminate)  # Ray's own would end training without a checkpoint
    return context.dashboard_url or ""


def _need_listener(address: str) -> None:
    """Fail at once if nothing listens at an address: Ray would try for two minutes, with warnings."""
    parsed = urlsplit(address if "://" in address else f"//{address}")
    if parsed.hostname is not None and parsed.port is not None:
        socket.create_connection((parsed.hostname, parsed.port), CONNECT_SECONDS).close()
