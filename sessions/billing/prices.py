"""Prices of tokens: a list, read from TOML, that says exactly which of its prices applied when.

    currency = "USD"

    [[prices]]
    model = "SmolLM2-135M-Instruct"     # as clients name it; "*" is every model without a price of its own
    effective = 2026-12-01              # from the beginning of this day (UTC) on; absent: always
    input = 0.15                        # per million tokens
    cached = 0.05                       # input whose KV was there; absent: as input
    output = 0.60

Money is a whole number of millionths of a millionth of the currency ("picos"): a price per million tokens with six
decimals is a whole number of them per token, so nothing is ever rounded and sums are exact. A list's version is the
hash of what it says, not of how it is written.

A list that is malformed is refused as a whole, with what is wrong in it; a `PriceBook` then keeps the one that it had.
A response of a model without a price has no cost and no version of the list, which is not the same as a price of zero.
Pure; does not know files.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec

from sessions.model.types import Json, UnixMs, Usage
from sessions.setting_files import parse_toml

PICOS: Final = 10**12
TOKENS: Final = 10**6  # prices are per so many tokens
DECIMALS_MAX: Final = 6
PRICE_MAX: Final = 10**6
PRICES_MAX: Final = 10_000
EVERY_MODEL: Final = "*"

_FIELDS: Final = ("model", "effective", "input", "cached", "output")


class BadPrices(Exception):
    """Raised for a price list that cannot be used; the text says why."""


class Price(msgspec.Struct, frozen=True):
    """The prices of a model from some time on, in picos per token."""

    since: UnixMs
    input: int
    cached: int
    output: int

    def public(self) -> dict[str, Json]:
        """Returns the prices per million tokens, as the API shows them."""
        per_million = {"input": self.input, "cached_input": self.cached, "output": self.output}
        return {name: picos * TOKENS / PICOS for name, picos in per_million.items()}

    def cost(self, usage: Usage) -> int:
        """Returns the cost of usage in picos. Cached output costs as much as cached input."""
        cached = usage.cached_tokens + usage.cached_output_tokens
        fresh, written = usage.input_tokens - usage.cached_tokens, usage.output_tokens - usage.cached_output_tokens
        return fresh * self.input + cached * self.cached + written * self.output


class Cost(msgspec.Struct, frozen=True):
    """The cost of a response in picos of a currency, with the version of the price list."""

    picos: int
    currency: str
    version: str

    def public(self) -> dict[str, Json]:
        return {"amount": amount(self.picos), "currency": self.currency, "price_version": self.version}


def amount(picos: int) -> str:
    """Returns an amount as a decimal of the currency, without exponent and trailing zeros: exact, without floats."""
    whole, part = divmod(abs(picos), PICOS)
    digits = f"{part:012}".rstrip("0")
    return f"{'-' if picos < 0 else ''}{whole}{'.' if digits else ''}{digits}"


def sum_public(costs: Iterable[Mapping[str, Any]]) -> dict[str, Json] | None:
    """Adds up costs in the form that the API shows; returns None if there are none. All must be of one request, and so
    of one currency."""
    shown = list(costs)
    if not shown:
        return None
    picos = sum(int(Decimal(cost["amount"]).scaleb(12)) for cost in shown)
    return Cost(picos, shown[-1]["currency"], shown[-1]["price_version"]).public()


class PriceList(msgspec.Struct, frozen=True):
    currency: str
    version: str
    prices: dict[str, tuple[Price, ...]]  # by model, the latest first

    def cost(self, model: str, usage: Usage, at: UnixMs) -> Cost | None:
        """Returns the cost of a response; None if the list has no price for the model at that time."""
        price = self.price(model, at)
        return None if price is None else Cost(price.cost(usage), self.currency, self.version)

    def price(self, model: str, at: UnixMs) -> Price | None:
        """Returns the price of a model at a time; None if there is none."""
        for name in (model, EVERY_MODEL):
            for price in self.prices.get(name, ()):
                if price.since <= at:
                    return price
        return None


class PriceBook:
    """The price list in force. If a new list is malformed, the old one stays."""

    def __init__(self, current: PriceList | None = None) -> None:
        self.current = current

    def cost(self, model: str, usage: Usage, at: UnixMs) -> Cost | None:
        return self.current.cost(model, usage, at) if self.current is not None else None

    def public(self, model: str, at: UnixMs) -> dict[str, Json] | None:
        """Returns the price of a model as `/v1/models` shows it; None if the list has none for it at that time."""
        price = self.current.price(model, at) if self.current is not None else None
        if self.current is None or price is None:
            return None
        return {**price.public(), "currency": self.current.currency, "price_version": self.current.version}


def read_prices(text: str) -> PriceList:
    """Parses a price list. Raises BadPrices."""
    try:
        document = parse_toml(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise BadPrices(f"it is not TOML: {error}") from error
    if unknown := set(document) - {"currency", "prices"}:
        raise BadPrices(f"unknown field {sorted(unknown)[0]!r}; a list has `currency` and `[[prices]]`")
    currency = document.get("currency")
    if not (isinstance(currency, str) and len(currency) == 3 and currency.isascii() and currency.isupper()):
        raise BadPrices(f'currency = {currency!r}: three capital letters are needed, such as "USD"')
    tables = document.get("prices")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise BadPrices("there is no [[prices]] in it")
    if len(tables) > PRICES_MAX:
        raise BadPrices(f"{len(tables)} prices: at most {PRICES_MAX}")
    by_model: dict[str, dict[UnixMs, Price]] = {}
    for number, table in enumerate(tables, 1):
        model, price = _price(f"price {number}", table)
        if price.since in by_model.setdefault(model, {}):
            raise BadPrices(f"price {number}: a second one for model {model!r} from the same day")
        by_model[model][price.since] = price
    prices = {
        model: tuple(by_day[since] for since in sorted(by_day, reverse=True))
        for model, by_day in sorted(by_model.items())
    }
    version = hashlib.sha256(msgspec.json.encode([currency, prices], order="sorted")).hexdigest()[:16]
    return PriceList(currency, version, prices)


def _price(where: str, table: dict[str, Any]) -> tuple[str, Price]:
    if unknown := set(table) - set(_FIELDS):
        raise BadPrices(f"{where}: unknown field {sorted(unknown)[0]!r}; there are {', '.join(_FIELDS)}")
    model = table.get("model")
    if not isinstance(model, str) or not model:
        raise BadPrices(f"{where}: `model` is missing")
    where = f"{where} ({model!r})"
    for name in ("input", "output"):
        if name not in table:
            raise BadPrices(f"{where}: `{name}` is missing")
    rate = {name: _rate(f"{where}: {name}", table[name]) for name in ("input", "cached", "output") if name in table}
    return model, Price(
        _since(where, table.get("effective")), rate["input"], rate.get("cached", rate["input"]), rate["output"]
    )


def _rate(where: str, given: Any) -> int:
    """Converts `given`, a price per million tokens, into picos per token. Raises BadPrices, which names it as
    `where`."""
    if isinstance(given, bool) or not isinstance(given, int | Decimal):
        raise BadPrices(f"{where} = {given!r}: a number is needed, per million tokens")
    price = Decimal(given)
    if not price.is_finite() or price < 0 or price > PRICE_MAX:
        raise BadPrices(f"{where} = {given}: at least 0, at most {PRICE_MAX}")
    picos = price * (PICOS // TOKENS)
    if picos != picos.to_integral_value():
        raise BadPrices(f"{where} = {given}: at most {DECIMALS_MAX} decimals")
    return int(picos)


def _since(where: str, given: Any) -> UnixMs:
    match given:
        case None:
            return UnixMs(0)
        case datetime():
            day = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        case date():
            day = datetime(given.year, given.month, given.day, tzinfo=UTC)
        case _:
            raise BadPrices(f"{where}: effective = {given!r}: a date is needed, such as 2026-12-01 without quotes")
    if day.year < 1970:
        raise BadPrices(f"{where}: effective = {given}: 1970 or later")
    return UnixMs(int(day.timestamp() * 1000))
