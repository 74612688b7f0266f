"""Which system calls code in a sandbox is refused, as the program that the kernel filters by (seccomp BPF).

A second wall behind that of the sandbox's own kind: what code of a model has no use for and kernels have had holes in.
A list of what is refused and not of what is allowed, for an interpreter and its packages need hundreds; what this list
lets through, the sandbox bounds. Pure.
"""

from __future__ import annotations

import struct
from typing import Final

NUMBERS: Final[dict[str, tuple[int, dict[str, int], dict[str, int]]]] = {
    "x86_64": (
        0xC000003E,
        {
            "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "ptrace": 101, "bpf": 321,
            "process_vm_readv": 310, "process_vm_writev": 311, "process_madvise": 440, "kcmp": 312, "mount": 165,
            "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "open_tree": 428,
            "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
            "add_key": 248, "request_key": 249, "keyctl": 250, "userfaultfd": 323, "perf_event_open": 298,
            "memfd_create": 319, "memfd_secret": 447, "mq_open": 240, "shmget": 29, "semget": 64, "msgget": 68,
            "fanotify_init": 300, "inotify_init": 253, "inotify_init1": 294, "name_to_handle_at": 303,
            "open_by_handle_at": 304, "personality": 135, "modify_ldt": 154, "mbind": 237, "set_mempolicy": 238,
            "migrate_pages": 256, "move_pages": 279, "swapon": 167, "swapoff": 168, "reboot": 169, "acct": 163,
            "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
            "iopl": 172, "ioperm": 173, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
            "clock_adjtime": 305, "sethostname": 170, "setdomainname": 171, "syslog": 103, "quotactl": 179,
            "quotactl_fd": 443, "nfsservctl": 180, "lookup_dcookie": 212, "uselib": 134, "vhangup": 153,
            "pidfd_open": 434, "pidfd_getfd": 438, "pidfd_send_signal": 424, "sched_setaffinity": 203,
            "sched_setscheduler": 144, "sched_setattr": 314, "ioprio_set": 251, "setpriority": 141, "mlock": 149,
            "mlock2": 325, "mlockall": 151, "vmsplice": 278, "tee": 276, "mknod": 133, "mknodat": 259, "link": 86,
            "linkat": 265, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "setsid": 112, "setpgid": 109,
            "clone3": 435, "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446,
            "seccomp": 317, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "sysfs": 139, "ustat": 136,
            "timer_create": 222, "signalfd4": 289, "signalfd": 282,
        },
        {
            "socket": 41, "connect": 42, "bind": 49, "listen": 50, "accept": 43, "accept4": 288, "sendto": 44,
            "sendmsg": 46, "sendmmsg": 307, "recvmsg": 47,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "ptrace": 117, "bpf": 280,
            "process_vm_readv": 270, "process_vm_writev": 271, "process_madvise": 440, "kcmp": 272, "mount": 40,
            "umount2": 39, "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268, "open_tree": 428,
            "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
            "add_key": 217, "request_key": 218, "keyctl": 219, "userfaultfd": 282, "perf_event_open": 241,
            "memfd_create": 279, "memfd_secret": 447, "mq_open": 180, "shmget": 194, "semget": 190, "msgget": 186,
            "fanotify_init": 262, "inotify_init1": 26, "name_to_handle_at": 264, "open_by_handle_at": 265,
            "personality": 92, "mbind": 235, "set_mempolicy": 237, "migrate_pages": 238, "move_pages": 239,
            "swapon": 224, "swapoff": 225, "reboot": 142, "acct": 89, "kexec_load": 104, "kexec_file_load": 294,
            "init_module": 105, "finit_module": 273, "delete_module": 106, "settimeofday": 170, "clock_settime": 112,
            "adjtimex": 171, "clock_adjtime": 266, "sethostname": 161, "setdomainname": 162, "syslog": 116,
            "quotactl": 60, "quotactl_fd": 443, "lookup_dcookie": 18, "vhangup": 58, "pidfd_open": 434,
            "pidfd_getfd": 438, "pidfd_send_signal": 424, "sched_setaffinity": 122, "sched_setscheduler": 119,
            "sched_setattr": 274, "ioprio_set": 30, "setpriority": 140, "mlock": 228, "mlock2": 284, "mlockall": 230,
            "vmsplice": 75, "tee": 77, "mknodat": 33, "linkat": 37, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7,
            "setsid": 157, "setpgid": 154, "clone3": 435, "landlock_create_ruleset": 444, "landlock_add_rule": 445,
            "landlock_restrict_self": 446, "seccomp": 277, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240,
            "timer_create": 107, "signalfd4": 74,
        },
        {
            "socket": 198, "connect": 203, "bind": 200, "listen": 201, "accept": 202, "accept4": 242, "sendto": 206,
            "sendmsg": 211, "sendmmsg": 269, "recvmsg": 212,
        },
    ),
}  # fmt: skip
"""For each machine: the kernel's number of its architecture, the calls always refused, and those refused without a
network."""

CLONE: Final = {"x86_64": 56, "aarch64": 220}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE, _ABSENT = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026  # EPERM, ENOSYS
_X32: Final = 0x40000000  # calls of another table
_NAMESPACES: Final = 0x7E020000  # flags of clone that make namespaces
_NUMBER_AT, _AUDIT_AT, _FIRST_ARGUMENT_AT = 0, 4, 16


def filter_program(machine: str, *, network: bool) -> bytes:
    """Returns the seccomp filter for a kind of machine (`x86_64`, ...). Calls that only a network needs are refused
    unless `network`. Raises KeyError for a machine that is not in `NUMBERS`."""
    audit, never, offline = NUMBERS[machine]
    refused = dict(never) | ({} if network else offline)
    absent = refused.pop("clone3")  # programs then use clone, whose flags a filter can see
    rules = [(_LOAD, 0, 0, _AUDIT_AT), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER_AT)]
    rules += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    rules += [(_EQUAL, 0, 1, absent), (_RETURN, 0, 0, _ABSENT)]
    for number in refused.values():
        rules += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    rules += [(_EQUAL, 0, 3, CLONE[machine]), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
    rules += [(_ANY_BIT, 0, 1, _NAMESPACES), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *rule) for rule in rules)
