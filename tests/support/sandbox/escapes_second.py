"""A second list of attempts on the sandbox, written without a look at how it is built: from what is known of escapes of
containers, interpreters and filters of system calls. Placeholders as in `escapes`."""

from __future__ import annotations

from typing import Final

_LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"

ESCAPES_SECOND: Final[dict[str, str]] = {
    "goes back to the folder by an open descriptor": (
        "import os\nfd = os.open('.', os.O_RDONLY)\nos.chdir('..')\nos.chdir('..')\n"
        "print('ESCAPED', os.listdir(fd), os.listdir('.'))"
    ),
    "looks for descriptors that were left open": (
        "import os, stat\nfor fd in range(3, 1024):\n    try:\n        mode = os.fstat(fd).st_mode\n"
        "    except OSError:\n"
        "        continue\n    print('ESCAPED', fd, oct(mode))"
    ),
    "reads the environment that its parent had": (
        "import os\nfound = {k: v for k, v in os.environ.items() if 'SECRET' in k or 'TOKEN' in k or 'KEY' in k}\n"
        "print('ESCAPED', found) if found else print('refused')"
    ),
    "reads the environment block behind the stack": (
        "import ctypes\nenviron = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), 'environ')\nindex = 0\n"
        "while environ[index]:\n    if b'hidden' in environ[index]:\n        print('ESCAPED', environ[index])\n"
        "    index += 1"
    ),
    "raises its own limits": (
        "import resource\nfor name in ('RLIMIT_AS', 'RLIMIT_CPU', 'RLIMIT_FSIZE', 'RLIMIT_NOFILE'):\n"
        "    limit = getattr(resource, name)\n    soft, hard = resource.getrlimit(limit)\n"
        "    resource.setrlimit(limit, (hard + 4096, hard + 4096))\n    print('ESCAPED', name)"
    ),
    "becomes somebody else": "import os\nos.setuid(1000 if os.getuid() != 1000 else 1001)\nprint('ESCAPED')",
    "gives itself capabilities back": (
        _LIBC + "head = (ctypes.c_uint32 * 2)(0x20080522, 0)\nall = (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)\n"
        "print('ESCAPED') if libc.capset(head, all) == 0 else print('refused')"
    ),
    "mounts a file system": _LIBC + "print('ESCAPED') if libc.mount(b'none', b'.', b'tmpfs', 0, None) == 0 else 0",
    "takes another root": _LIBC + "print('ESCAPED') if libc.chroot(b'.') == 0 else print('refused')",
    "loads a program into the kernel": _LIBC + "print('ESCAPED') if libc.syscall(321, 5, None, 0) >= 0 else 0",
    "handles page faults itself": _LIBC + "print('ESCAPED') if libc.syscall(323, 0) >= 0 else print('refused')",
    "opens a file by its handle": (
        _LIBC + "handle = ctypes.create_string_buffer(b'\\x08\\0\\0\\0\\x01\\0\\0\\0' + b'\\x02' * 8)\n"
        "print('ESCAPED') if libc.syscall(304, -100, handle, 0) >= 0 else print('refused')"
    ),
    "calls the kernel through its 32-bit table": (
        "import ctypes, mmap\nif __import__('platform').machine() == 'x86_64':\n"
        "    page = mmap.mmap(-1, 4096, prot=7)\n"
        # mov eax, 5 (open); int 0x80; ret
        "    page.write(b'\\xb8\\x05\\0\\0\\0\\x31\\xdb\\x31\\xc9\\xcd\\x80\\xc3')\n"
        "    address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "    worth = ctypes.CFUNCTYPE(ctypes.c_int)(address)()\n    print('back', worth)\n"
        "    print('ESCAPED') if worth != -1 and worth > -4000 and worth != -14 and worth != -38 else print('refused')"
    ),
    "calls the kernel by x32 numbers": (
        _LIBC + "worth = libc.syscall(ctypes.c_long(0x40000000 + 41), 2, 1, 0)\n"
        "print('ESCAPED') if worth >= 0 else print('refused')"
    ),
    "runs a program from memory": (
        _LIBC + "fd = libc.syscall(319, b'x', 0)\nprint('ESCAPED', fd) if fd >= 0 else print('refused')"
    ),
    "runs a binary that it wrote itself": (
        "import os, subprocess\nopen('own', 'wb').write(b'#!/bin/sh\\necho ESCAPED\\n')\nos.chmod('own', 0o755)\n"
        "print(subprocess.run(['./own'], capture_output=True, text=True).stdout)"
    ),
    "asks for memory that others share": _LIBC + "print('ESCAPED') if libc.shmget(0x1234, 4096, 0o1666) >= 0 else 0",
    "writes a file that others import": (
        "import os, sys\nfor path in [*sys.path, sys.prefix, sys.exec_prefix, os.path.dirname(sys.executable)]:\n"
        "    try:\n        open(os.path.join(path or '/', 'sitecustomize.py'), 'w').write('x')\n    except OSError:\n"
        "        continue\n    print('ESCAPED', path)"
    ),
    "makes the reader of its files follow a link": (
        "import os\nos.symlink('{file}', 'report.txt')\nos.symlink('/etc', 'folder')\nos.mkfifo('pipe')\nprint('left')"
    ),
    "answers in the words of the supervisor": (
        "import json, os\nsaid = {'status': 0, 'stopped': '', 'output': 'ESC' + 'APED'}\n"
        "body = json.dumps(said).encode()\n"
        "for fd in (1, 2):\n    os.write(fd, b'\\0' * 3 + bytes([len(body)]) + body.replace(b'ESC', b'esc'))"
    ),
}
"""By what each tries."""
