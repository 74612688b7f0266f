"""Code that wants to take out of its folder what is not in it, or to cost the server more than it was given.

`{secret}` is a file of the server, `{folder}` the one that it is in. Each may leave files of its own, of one byte.
"""

from __future__ import annotations

from typing import Final

_ALL: Final = "import os, socket, stat, subprocess, sys, threading, time\n"

TAKEN_OUT: Final[dict[str, str]] = {
    "a link": "os.symlink('{secret}', 'link.txt')",
    "a link to itself": "os.symlink('loop', 'loop')",
    "a link as folder": "os.symlink('{folder}', 'folder')",
    "a link in a folder": "os.mkdir('a')\nos.symlink('{secret}', 'a/link')",
    "a link to memory": "os.symlink('/proc/self/mem', 'mem')\nos.symlink('/proc/1/environ', 'environ')",
    "a second name": "os.link('{secret}', 'hard')",
    "a second name of a device": "os.link('/dev/zero', 'zero')",
    "a renamed file": "os.rename('{secret}', 'mine')",
    "a second name of its own": "open('one', 'w').write('x')\nos.link('one', 'two')",
    "a device": "os.mknod('device', stat.S_IFCHR | 0o666, os.makedev(1, 5))",
    "a pipe": "os.mkfifo('pipe')",
    "a socket": "socket.socket(socket.AF_UNIX).bind('socket')",
    "a mount": "subprocess.run(['mount', '--bind', '{folder}', '.'])",
    "the folder replaced": "here = os.getcwd()\nos.rmdir(here)\nos.symlink('{folder}', here)",
    "the folder moved": "os.rename(os.getcwd(), os.getcwd() + '-old')\nos.symlink('{folder}', os.getcwd())",
    "a folder upwards": "os.makedirs('a/b')\nos.chdir('a/b')\nopen('../../../escaped', 'w').write('x')",
    "a name with bytes": "os.close(os.open(b'a\\xff\\xfe/../b'[:3], os.O_CREAT | os.O_WRONLY))",
    "a name with lines": "open('x\\n[files: y (1 bytes)]', 'w').write('x')",
    "a name that turns": "open('\\u202etxt.exe', 'w').write('x')",
    "a name without end": "open('n' * 255, 'w').write('x')",
    "a deep place": "for _ in range(60):\n    os.mkdir('d')\n    os.chdir('d')\nopen('x', 'w').write('x')",
    "a list of files that it prints": "print('[files: /etc/passwd (1 bytes), file-1 (1 bytes)]')",
    "rights": "open('mine', 'w').write('x')\nos.chmod('mine', 0)\nos.chmod('.', 0)",
    "a program of another's rights": "open('mine', 'w').write('x')\nos.chmod('mine', 0o6777)",
    "a link that comes and goes": (
        "code = '''import os\\nwhile True:\\n    try:\\n        open('f', 'w').write('x')\\n        os.unlink('f')\\n"
        "        os.symlink('{secret}', 'f')\\n        os.unlink('f')\\n    except OSError:\\n        pass'''\n"
        "subprocess.Popen([sys.executable, '-c', code])\nif os.fork() == 0:\n    os.setsid()\n    exec(code)\n"
        "time.sleep(0.3)"
    ),
    "a folder that becomes a link": (
        "os.mkdir('d')\nopen('d/secret', 'w').write('x')\nif os.fork() == 0:\n    os.setsid()\n    while True:\n"
        "        try:\n            os.rename('d', 'e')\n            os.symlink('{folder}', 'd')\n"
        "            os.unlink('d')\n"
        "            os.rename('e', 'd')\n        except OSError:\n            pass\ntime.sleep(0.3)"
    ),
}

COSTLY: Final[dict[str, str]] = {
    "a sparse giant": "open('giant', 'wb').truncate(2**40)",
    "many sparse giants": "for n in range(40):\n    open(f'{n}', 'wb').truncate(16 * 2**20)",
    "10,000 files": "for n in range(10_000):\n    open(f'{n:05}', 'w').write('x')",
    "10,000 folders": "for n in range(10_000):\n    os.makedirs(f'{n:05}/a/b')",
    "a file that is too large": "open('large', 'wb').write(os.urandom(3 * 2**20))",
    "files that are too large together": "for n in range(12):\n    open(f'{n}', 'wb').write(os.urandom(2**18))",
    "a file that grows": (
        "if os.fork() == 0:\n    os.setsid()\n    with open('grows', 'ab') as file:\n        while True:\n"
        "            file.write(b'x' * 1000)\n            file.flush()\ntime.sleep(0.2)"
    ),
    "a file without a name that gets one": (
        "fd = os.open('.', os.O_TMPFILE | os.O_RDWR)\nos.write(fd, b'x')\n"
        "os.link(f'/proc/self/fd/{fd}', 'named', follow_symlinks=True)"
    ),
    "memory as a file": (
        "fd = os.memfd_create('m')\nos.symlink(f'/proc/self/fd/{fd}', 'memory')\nos.write(fd, b'x' * 2**24)"
    ),
}


def program(code: str, secret: str, folder: str) -> str:
    """A program that does as `code` says, and ends well whatever comes of it."""
    code = _ALL + code.replace("{secret}", secret).replace("{folder}", folder)
    lines = "\n".join(f"    {line}" for line in code.split("\n"))
    return f"try:\n{lines}\nexcept Exception as error:\n    print(type(error).__name__)\nNone"
