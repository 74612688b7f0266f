"""Which system calls code in a sandbox is refused, as the program that the kernel filters by (seccomp BPF).

A second wall behind that of the sandbox's own kind: what code of a model has no use for and kernels have had holes in.
A list of what is refused and not of what is allowed, for an interpreter and its packages need hundreds; what this list
lets through, the sandbox bounds. Pure.
"""

from __future__ import annotations

import struct
from typing import Final

CALLS: Final[dict[str, tuple[int | None, int | None]]] = {
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "ptrace": (101, 117),
    "bpf": (321, 280), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "kcmp": (312, 272), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "userfaultfd": (323, 282),
    "perf_event_open": (298, 241), "memfd_create": (319, 279), "memfd_secret": (447, 447), "mq_open": (240, 180),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "fanotify_init": (300, 262),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "personality": (135, 92), "modify_ldt": (154, None), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "migrate_pages": (256, 238), "move_pages": (279, 239), "swapon": (167, 224),
    "swapoff": (168, 225), "reboot": (169, 142), "acct": (163, 89), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "iopl": (172, None), "ioperm": (173, None), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "syslog": (103, 116), "quotactl": (179, 60), "quotactl_fd": (443, 443), "nfsservctl": (180, None),
    "lookup_dcookie": (212, 18), "uselib": (134, None), "vhangup": (153, 58), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274), "ioprio_set": (251, 30), "setpriority": (141, 140),
    "mlock": (149, 228), "mlock2": (325, 284), "mlockall": (151, 230), "vmsplice": (278, 75), "tee": (276, 77),
    "mknod": (133, None), "mknodat": (259, 33), "link": (86, None), "linkat": (265, 37), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setsid": (112, 157), "setpgid": (109, 154), "clone3": (435, 435),
    "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446),
    "seccomp": (317, 277), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "sysfs": (139, None),
    "ustat": (136, None), "timer_create": (222, 107), "signalfd4": (289, 74), "signalfd": (282, None),
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242), "sendto": (44, 206), "sendmsg": (46, 211), "sendmmsg": (307, 269), "recvmsg": (47, 212),
}  # fmt: skip
"""The numbers of the calls that are refused, on x86-64 and on ARM64; None: there is none."""

MACHINES: Final = {"x86_64": (0, 0xC000003E, 56), "aarch64": (1, 0xC00000B7, 220)}
"""For each machine: its place in `CALLS`, the kernel's number of its architecture, and the number of `clone`."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE, _ABSENT = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026  # EPERM, ENOSYS
_X32: Final = 0x40000000  # calls of another table
_NAMESPACES: Final = 0x7E020000  # flags of clone that make namespaces
_NUMBER_AT, _AUDIT_AT, _FIRST_ARGUMENT_AT = 0, 4, 16


def filter_program(machine: str) -> bytes:
    """Returns the seccomp filter for a kind of machine (`x86_64`, ...). Raises KeyError for one that is not in
    `MACHINES`."""
    place, audit, clone = MACHINES[machine]
    refused = {name: number for name, numbers in CALLS.items() if (number := numbers[place]) is not None}
    absent = refused.pop("clone3")  # programs then use clone, whose flags a filter can see
    rules = [(_LOAD, 0, 0, _AUDIT_AT), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER_AT)]
    rules += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    rules += [(_EQUAL, 0, 1, absent), (_RETURN, 0, 0, _ABSENT)]
    for number in refused.values():
        rules += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    rules += [(_EQUAL, 0, 3, clone), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
    rules += [(_ANY_BIT, 0, 1, _NAMESPACES), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *rule) for rule in rules)
