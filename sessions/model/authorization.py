"""Decides who may do what, and to which session. It is the only place that does.

Three questions, which every transport, every reader and every actor puts to the same functions:

    demand(principal, scope)        may this key do things of this kind at all?          Forbidden
    demand_operator(principal)      may it do what concerns the whole installation?      Forbidden
    may_see(principal, key, user)   is this session theirs?                              the caller says not found

`acting_for` makes a service's principal one of its end users'; it only ever narrows.

A principal sees the sessions of its tenant. A key that acts for a named end user sees that user's only; service and
operator keys see every user's. What may not be seen does not exist: callers answer `session_not_found`, in the same
words for a session of another tenant, another user and one that never was.

An operator's key opens operators' routes, for every tenant; it does not open other tenants' conversations, nor make
itself a key that does. In an emergency `break_glass` opens what `demand_custody` guards, with a reason that both
tenants can read in their audit logs. Pure: `transport.auth.authenticator` checks whether a credential is revoked or has
expired.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sessions.model.api_keys import check_name
from sessions.model.errors import BadInput, Forbidden, Gone, NotFound
from sessions.model.types import Authority, Principal, Scope, SessionKey, TenantId

IMPLIED: Final[dict[Scope, frozenset[Scope]]] = {"read": frozenset({"read", "chat"})}
"""For a scope: all scopes of which one is enough. A scope that is missing here needs just itself."""

REASON_LENGTH_MIN: Final = 8


def allows(principal: Principal, scope: Scope) -> bool:
    """Returns whether the principal's key has `scope`, or one that includes it."""
    enough = IMPLIED.get(scope)
    return scope in principal.scopes if enough is None else not enough.isdisjoint(principal.scopes)


def demand(principal: Principal, scope: Scope) -> None:
    """Raises Forbidden for a key without `scope`. The message names the scope, which the key's holder may know."""
    if not allows(principal, scope):
        raise Forbidden("forbidden", f"This key may not do that: it lacks the scope `{scope}`.")


def demand_operator(principal: Principal) -> None:
    """Raises Forbidden for a principal that may not manage all tenants: replicas, hand-off, drain, metrics, other
    tenants' keys."""
    if principal.role != "operator":
        raise Forbidden("forbidden", "Only operators may do that.")
    demand(principal, "admin")


def operates(principal: Principal) -> bool:
    """Returns whether `demand_operator` lets a principal in. It serves to decide what they are shown, never in place of
    that check."""
    return principal.role == "operator" and allows(principal, "admin")


def demand_administrator(principal: Principal, tenant: str | None = None) -> TenantId:
    """Returns the tenant whose own affairs (keys, policies, audit log) are to be managed: `tenant`, or the principal's
    own if that is None. Raises Forbidden for end users, whatever their key says, and for another tenant's affairs
    unless the principal is an operator."""
    if principal.role == "user":
        raise Forbidden("forbidden", "Only services and operators may do that.")
    demand(principal, "admin")
    return tenant_for(principal, tenant)


def demand_custody(principal: Principal, tenant: str | None, reason: str | None) -> TenantId:
    """Returns the tenant whose users' texts are to be shown, ended, or opened to somebody else. One's own tenant needs
    what `demand_administrator` needs. Another tenant also needs the scope `break_glass` and a reason, which the caller
    (`is_foreign`) writes into both audit logs. Raises Forbidden, BadInput."""
    owner = demand_administrator(principal, tenant)
    if is_foreign(principal, owner):
        demand(principal, "break_glass")
        if reason is None or len(reason.strip()) < REASON_LENGTH_MIN:
            raise BadInput(
                "reason_required",
                f"Another tenant's affairs are opened with a `reason` of at least {REASON_LENGTH_MIN} characters; "
                "both tenants' audit logs show it.",
                param="reason",
            )
    return owner


def is_foreign(principal: Principal, tenant: TenantId) -> bool:
    return tenant != principal.tenant


def demand_reviewer(principal: Principal, tenant: str | None = None) -> TenantId | None:
    """Returns the tenant whose review cases the principal may see; None means those of all tenants, for operators who
    name none. Seeing a case does not allow reading its session: `demand_visible` decides that. Raises Forbidden."""
    if principal.role == "user":
        raise Forbidden("forbidden", "Only services and operators may do that.")
    demand(principal, "review")
    if tenant is None and principal.role == "operator":
        demand_operator(principal)
        return None
    return tenant_for(principal, tenant)


def may_grant(principal: Principal, role: Authority, scopes: Iterable[Scope] = ()) -> bool:
    """Returns whether an administrator may make a key of this role, which must not be above their own. Only those who
    have `break_glass` may grant it; the command line makes the first such key."""
    if "break_glass" in scopes and not allows(principal, "break_glass"):
        return False
    return role != "operator" or principal.role == "operator"


def acting_for(principal: Principal, user: str | None) -> Principal:
    """Returns a service's principal narrowed to one of its tenant's end users, with no more than a user may do; the
    principal itself if `user` is None. Raises Forbidden for a key that is not a service's, BadInput for an invalid
    user's name."""
    if user is None:
        return principal
    if principal.role != "service":
        raise Forbidden("forbidden", "Only a service's key speaks for an end user.")
    if not check_name(user):
        raise BadInput("invalid_request", "The end user is 1 to 128 characters, none of control.", param="user")
    scopes = tuple(scope for scope in principal.scopes if scope not in ("admin", "break_glass"))
    return msgspec.structs.replace(principal, role="user", user=user, scopes=scopes)


def tenant_for(principal: Principal, tenant: str | None) -> TenantId:
    """Returns the tenant whose affairs (keys, usage, policies) are requested: `tenant`, or the principal's own if that
    is None. Raises Forbidden if it is another one and the principal is no operator, BadInput for an invalid name."""
    if tenant is None or tenant == principal.tenant:
        return principal.tenant
    demand_operator(principal)
    if tenant and not check_name(tenant):  # "" is the installation, where there is such a thing
        raise BadInput("invalid_request", "A tenant's name has 1 to 128 characters, none of control.", param="tenant")
    return TenantId(tenant)


def may_see(principal: Principal, key: SessionKey, user: str | None) -> bool:
    """Returns whether `principal` may read and command the session `key`, which belongs to `user`."""
    return owns(principal, key.tenant, user)


def owns(principal: Principal, tenant: TenantId, user: str | None) -> bool:
    """Returns whether a principal may see what belongs to an end user of a tenant, or (None) to the tenant as a
    whole: a session, a file, a vector store."""
    if principal.tenant != tenant:
        return False
    if principal.role == "user":
        return principal.user is not None and principal.user == user
    return True


def demand_visible(principal: Principal, key: SessionKey, user: str | None) -> None:
    """Raises NotFound for a session that the principal may not see, and Forbidden for a key that may read nothing."""
    demand(principal, "read")
    if not may_see(principal, key, user):
        raise not_found(key)


def deleted(key: SessionKey) -> Gone:
    return Gone("session_deleted", f"The session {key.session!r} is deleted.", param="session")


def not_found(key: SessionKey) -> NotFound:
    return NotFound("session_not_found", f"There is no session {key.session!r}.", param="session")
