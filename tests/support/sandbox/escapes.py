"""What code tries to get out of a sandbox: each attempt prints ESCAPED where it got something that it must not have.

`{file}`, `{port}`, `{socket}`, `{abstract}`, `{canary}`, `{server}`, `{neighbour}` stand for what a test plants: a file
with a secret, listening sockets of three kinds, a process that is to live, the server's process, another session's
folder.
"""

from __future__ import annotations

from typing import Final

_LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def _call(number: int, *arguments: str) -> str:
    """A system call that must fail."""
    given = ", ".join((f"ctypes.c_long({number})", *arguments))
    return _LIBC + f"worth = libc.syscall({given})\nprint('ESCAPED', worth) if worth >= 0 else print('refused')"


ESCAPES: Final[dict[str, str]] = {
    # -- files ----------------------------------------------------------------------------------------------------
    "reads a secret of the server": "print('ESCAPED', open('{file}').read())",
    "reads the users of the machine": "print('ESCAPED', open('/etc/passwd').read())",
    "reads the shadow file": "print('ESCAPED', open('/etc/shadow').read())",
    "lists root's home": "import os\nprint('ESCAPED', os.listdir('/root'))",
    "lists the temporary folder": "import os\nprint('ESCAPED', os.listdir('/tmp'))",
    "writes outside": "open('/tmp/escaped', 'w').write('x')\nprint('ESCAPED')",
    "writes into the interpreter": "import os\nopen(os.__file__, 'a').write('x')\nprint('ESCAPED')",
    "follows a link out": "import os\nos.symlink('{file}', 'link')\nprint('ESCAPED', open('link').read())",
    "makes a hard link to a secret": "import os\nos.link('{file}', 'link')\nprint('ESCAPED', open('link').read())",
    "climbs out with dots": "print('ESCAPED', open('../../../../../../..{file}').read())",
    "reads another session's folder": "import os\nprint('ESCAPED', os.listdir('{neighbour}'))",
    "lists its neighbours": "import os\nprint('ESCAPED', os.listdir('..'))",
    "makes a device": "import os\nos.mknod('disk', 0o60666, os.makedev(8, 0))\nprint('ESCAPED')",
    "opens a disk": "print('ESCAPED', open('/dev/vda', 'rb').read(1))",
    "opens the terminal": "print('ESCAPED', open('/dev/tty', 'w').write('x'))",
    "leaves something in shared memory": "open('/dev/shm/escaped', 'w').write('x')\nprint('ESCAPED')",
    # -- processes ------------------------------------------------------------------------------------------------
    "reads the server's environment": "print('ESCAPED', open('/proc/{server}/environ').read())",
    "reads the server's memory": "print('ESCAPED', open('/proc/{server}/mem', 'rb').read(1))",
    "opens the server's descriptors": "import os\nprint('ESCAPED', os.listdir('/proc/{server}/fd'))",
    "kills the server": "import os\nos.kill({server}, 0)\nprint('ESCAPED')",
    "kills a neighbour": "import os\nos.kill({canary}, 9)\nprint('ESCAPED')",
    "kills its supervisor": "import os\nos.kill(os.getppid(), 9)\nprint('ESCAPED')",
    "kills everybody": "import os\nos.kill(-1, 9)",
    "leaves its group of processes": "import os\nos.setsid()\nprint('ESCAPED')",
    "traces the server": _call(101, "16", "{server}", "0", "0"),
    "reads foreign memory": _call(310, "{server}", "0", "0", "0", "0", "0"),
    "takes a descriptor of the server": _LIBC
    + "fd = libc.syscall(434, {server}, 0)\nprint('ESCAPED') if fd >= 0 else 0",
    "runs a shell": "import subprocess\nprint('ESCAPED', subprocess.run(['/bin/sh', '-c', 'id'], capture_output=True))",
    # -- network and sockets --------------------------------------------------------------------------------------
    "connects to a port here": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)\nprint('ESCAPED')",
    "asks a metadata address": "import socket\nsocket.create_connection(('169.254.169.254', 80), 2)\nprint('ESCAPED')",
    "sends a datagram": (
        "import socket\ns = socket.socket(2, 2)\ns.sendto(b'x', ('127.0.0.1', {port}))\nprint('ESCAPED')"
    ),
    "listens": "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()\nprint('ESCAPED')",
    "connects to a Unix socket": "import socket\ns = socket.socket(1)\ns.connect('{socket}')\nprint('ESCAPED')",
    "connects to an abstract socket": (
        "import socket\ns = socket.socket(1)\ns.connect('\\0{abstract}')\nprint('ESCAPED')"
    ),
    "asks the name service": "import socket\nprint('ESCAPED', socket.gethostbyname('example.com'))",
    "speaks netlink": "import socket\nsocket.socket(16, 3, 0)\nprint('ESCAPED')",
    # -- the kernel -----------------------------------------------------------------------------------------------
    "sets up io_uring": _call(425, "8", "ctypes.create_string_buffer(256)"),
    "makes a user namespace": _call(272, "0x10000000"),
    "clones into namespaces": _call(56, "0x10000011", "0", "0", "0", "0"),
    "reads a keyring": _call(250, "0", "-3", "1", "0", "0"),
}
"""By what each tries; written by who built the sandbox."""

EXHAUSTING: Final[dict[str, str]] = {
    "forks without end": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "takes 10 GB": "held = bytearray(10 * 2**30)\nheld[::4096] = b'x' * len(held[::4096])\nprint('ESCAPED')",
    "takes memory bit by bit": "held = []\nwhile True:\n    held.append(bytearray(b'x' * 2**20))",
    "opens descriptors without end": (
        "held = []\ntry:\n    while True:\n        held.append(open('/dev/null'))\nexcept OSError:\n"
        "    print('ESCAPED') if len(held) > 200 else print('refused')"
    ),
    "starts threads without end": (
        "import threading, time\nthreading.stack_size(65536)\nwhile True:\n"
        "    try:\n        threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    except RuntimeError:\n        pass"
    ),
    "fills the disk": "with open('big', 'wb') as big:\n    while True:\n        big.write(b'x' * 2**20)",
    "fills the disk with files without names": (
        "import os\nheld = []\nwhile True:\n    held.append(open('big', 'wb'))\n    os.unlink('big')\n"
        "    for _ in range(8):\n        held[-1].write(b'x' * 2**20)\n    held[-1].flush()"
    ),
    "makes files without end": "number = 0\nwhile True:\n    open(str(number), 'w').close()\n    number += 1",
    "prints without end": "while True:\n    print('x' * 65536)",
    "never ends": "import signal\nfor each in range(1, 32):\n    try:\n        signal.signal(each, signal.SIG_IGN)\n"
    "    except (OSError, ValueError):\n        pass\nwhile True:\n    pass",
    "sleeps for ever": "import time\ntime.sleep(10**6)",
    "leaves a process behind": (
        "import os, time\nif os.fork() == 0:\n    if os.fork() == 0:\n        time.sleep(600)\n"
        "    os._exit(0)\nprint('left')"
    ),
}
"""Attempts to take more than was given: each ends, or is ended, and leaves nothing that runs."""
