"""Hosts on one machine: namespaces with a network card each, and a switch between them that delays, loses and parts.

The switch is a process (this file) that copies frames from card to card, as not every kernel has `tc netem`. All of
it goes with its processes: nothing is left behind, and no address outside the namespaces is used. Needs root on Linux.
"""

import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

NAMESPACES = ("--net", "--mount", "--uts", "--pid")
TUNSETIFF, TAP_WITHOUT_HEADER = 0x400454CA, 0x1002
FRAME_BYTES = 1 << 16


class Host:
    """A network, a process table, a name and temporary folders of its own; the files are those of this machine."""

    def __init__(self, number, scratch):
        self.name, self.address, self.card = (
            f"host{number}",
            f"10.77.0.{number + 1}",
            f"card{os.getpid() % 10**6}-{number}",
        )
        self.wire = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self.wire, TUNSETIFF, struct.pack("16sH", self.card.encode(), TAP_WITHOUT_HEADER))
        command = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", "sleep", "infinity"]
        self.keeper = subprocess.Popen(command)
        children = Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children")
        while not (found := children.read_text().split()):
            time.sleep(0.01)
        self.first = found[0]
        subprocess.run(["ip", "link", "set", self.card, "netns", self.first], check=True)
        (scratch / "ray").mkdir(exist_ok=True)
        lines = (
            f"hostname {self.name}",
            "ip link set lo up",
            f"ip address add {self.address}/24 dev {self.card}",
            f"ip link set {self.card} up",
            "mount -t tmpfs none /dev/shm",
            f"mount -t tmpfs none {scratch / 'ray'}",
        )
        subprocess.run(self.words("sh", "-ec", "\n".join(lines)), check=True)

    def words(self, *command):
        """The words of a command that runs on this host."""
        return ["nsenter", "--target", self.first, "--net", "--mount", "--uts", "--pid", "--", *command]

    def die(self):
        """End all processes at once, and the network with them, without a word to the others."""
        self.keeper.kill()
        self.keeper.wait()


class Switch:
    """The process between the hosts, and the orders it gets."""

    def __init__(self, hosts):
        wires = [host.wire for host in hosts]
        words = [sys.executable, __file__, *map(str, wires)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=wires, text=True)

    def set(self, delay=0.0, loss=0.0, parted=-1):
        """Hold each frame `delay` seconds, lose a share of them, and let nothing pass to or from host `parted`."""
        print(delay, loss, parted, file=self.process.stdin, flush=True)


@contextmanager
def network(n_hosts, scratch):
    """Yield hosts and the switch between them."""
    hosts = []
    try:
        for number in range(n_hosts):
            hosts.append(Host(number, scratch))
        switch = Switch(hosts)
        try:
            yield hosts, switch
        finally:
            switch.process.kill()
            switch.process.wait()
    finally:
        for host in hosts:
            host.die()
            os.close(host.wire)


def carry(wires):
    """Copy frames from each wire to all others until stdin ends."""
    rng, delay, loss, parted, number = Random(0), 0.0, 0.0, -1, 0
    held = []  # (time, number, wire to write to, frame)
    while True:
        wait = max(held[0][0] - time.monotonic(), 0) if held else None
        for ready in select.select([sys.stdin, *wires], [], [], wait)[0]:
            if ready is sys.stdin:
                if not (line := sys.stdin.readline()):
                    return
                delay, loss, parted = (float(word) for word in line.split())
                continue
            with suppress(OSError):  # the card's host has died
                frame, source = os.read(ready, FRAME_BYTES), wires.index(ready)
                for target, wire in enumerate(wires):
                    if target != source and parted not in (source, target) and rng.random() >= loss:
                        number += 1
                        heapq.heappush(held, (time.monotonic() + delay, number, wire, frame))
        while held and held[0][0] <= time.monotonic():
            with suppress(OSError):
                os.write(held[0][2], held[0][3])
            heapq.heappop(held)


if __name__ == "__main__":
    carry([int(word) for word in sys.argv[1:]])
