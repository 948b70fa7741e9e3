"""Cron text: what is accepted, what it means, and which wall clock readings match it.

Our own validator decides before croniter sees anything, and croniter gets plain lists of numbers
only, so a new release of it cannot change the meaning of a stored task. Zones and daylight saving
are in `walltime`; here a reading is a naive datetime.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import NoReturn

from croniter import croniter

from threadmill_sa.errors import ScheduleError
from threadmill_sa.model.limits import CRON_TEXT_MAX_CHARS

# The rarest accepted date is a leap day on one weekday: 40 years across a common century year.
_SEARCH_YEARS = 50

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MACROS = {
    "@HOURLY": "0 * * * *",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0",
    "@MONTHLY": "0 0 1 * *",
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
}
_FEBRUARY, _SHORT_MONTHS = 2, frozenset({4, 6, 9, 11})
_WEEKS = 5  # the fifth week has the days from 29

_VALUE = r"[0-9]+|[A-Z]{3}"
_ITEM = re.compile(
    rf"(?:(?P<star>\*)|(?P<low>{_VALUE})(?:-(?P<high>{_VALUE}))?)(?:/(?P<step>[0-9]+))?"
)
_NTH = re.compile(rf"(?P<day>{_VALUE})#(?P<nth>[0-9]+)")
_LAST = re.compile(r"L(?P<day>[0-9]+)")
_DAY_OF_MONTH, _DAY_OF_WEEK = 2, 4


@dataclass(frozen=True, slots=True)
class _Spec:
    """Bounds of one field; `top` is the last value that `*` and an open step reach."""

    name: str
    low: int
    high: int
    top: int
    names: dict[str, int]


_SPECS = (
    _Spec("minute", 0, 59, 59, {}),
    _Spec("hour", 0, 23, 23, {}),
    _Spec("day-of-month", 1, 31, 31, {}),
    _Spec("month", 1, 12, 12, {name: n for n, name in enumerate(_MONTHS, 1)}),
    _Spec("day-of-week", 0, 7, 6, {name: n for n, name in enumerate(_WEEKDAYS)}),
)


@dataclass(frozen=True, slots=True)
class _Field:
    """One parsed field: plain values, and the `L`, `5#2` and `L5` items beside them."""

    values: frozenset[int]
    specials: tuple[str, ...]
    starred: bool  # the text starts with `*`, which decides two rules: AND of days, elapsed time
    canonical: str


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A checked five-field expression that has at least one date.

    `canonical` is the same schedule in numbers and single spaces; parsing it gives the same
    value. `elapsed` tells which of the two zone rules applies: the minute or hour field starts
    with `*`.
    """

    canonical: str
    elapsed: bool
    _walkers: tuple[croniter, ...] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> CronExpression:
        """Check `text` and make it ready to walk.

        Raises: ScheduleError with `expression`, `field` and `position` (1-based character).
        """
        words = _words(text)
        fields = [
            _parse_field(text, index, word, position)
            for index, (word, position) in enumerate(words)
        ]
        terms = _terms(fields)
        if not terms:
            _refuse(
                text,
                _SPECS[_DAY_OF_MONTH].name,
                words[_DAY_OF_MONTH][1],
                f"{words[_DAY_OF_MONTH][0]!r}, which no selected month and weekday ever has",
                "a day that exists",
            )
        return cls(
            canonical=" ".join(each.canonical for each in fields),
            elapsed=fields[0].starred or fields[1].starred,
            _walkers=tuple(_walker(fields, term) for term in terms),
        )

    def next_reading(self, after: datetime) -> datetime:
        """The first matching naive reading strictly later than the naive `after`.

        Raises: OverflowError or ValueError past the last calendar year.
        """
        start = after.replace(second=0, microsecond=0)
        found = []
        for walker in self._walkers:
            # croniter keeps its position in itself; a shallow copy is private to this call and
            # shares the parsed lists, which nothing changes.
            walk = copy.copy(walker)
            walk.set_current(start, force=True)
            found.append(walk.get_next(datetime))
        return min(found)


def _words(text: str) -> list[tuple[str, int]]:
    """Exactly five fields in upper case, each with its 1-based position in `text`."""
    if len(text) > CRON_TEXT_MAX_CHARS:
        _refuse(
            text[:40] + "...",
            "expression",
            CRON_TEXT_MAX_CHARS + 1,
            f"{len(text)} characters",
            f"at most {CRON_TEXT_MAX_CHARS}",
        )
    for position, char in enumerate(text, 1):
        if not (char == "\t" or " " <= char <= "~"):
            _refuse(text, _field_at(text, position), position, repr(char), "printable ASCII")
    if text.strip(" \t").startswith("@"):
        text = _expand_macro(text)
    words = [(match.group().upper(), match.start() + 1) for match in re.finditer(r"[^ \t]+", text)]
    if len(words) < len(_SPECS):
        missing = _SPECS[len(words)].name
        _refuse(text, missing, len(text) + 1, f"{len(words)} fields", "exactly five")
    if len(words) > len(_SPECS):
        _refuse(
            text,
            "sixth",
            words[len(_SPECS)][1],
            f"{len(words)} fields",
            "exactly five; Every(seconds=...) serves below a minute",
        )
    return words


def _field_at(text: str, position: int) -> str:
    before = len(re.findall(r"[^ \t]+", text[:position]))
    return _SPECS[min(max(before, 1), len(_SPECS)) - 1].name


def _expand_macro(text: str) -> str:
    word = text.strip(" \t")
    expanded = _MACROS.get(word.upper())
    if expanded is None:
        known = ", ".join(name.lower() for name in _MACROS)
        _refuse(text, "expression", text.index("@") + 1, repr(word), f"one of {known}")
    return expanded


def _parse_field(text: str, index: int, word: str, position: int) -> _Field:
    values: set[int] = set()
    specials: dict[str, None] = {}
    canonical = []
    offset = position
    for item in word.split(","):
        special = _parse_special(text, index, item, offset)
        if special is None:
            found, spelling = _parse_plain(text, index, item, offset)
            values |= found
        else:
            spelling = special
            specials[special] = None
        canonical.append(spelling)
        offset += len(item) + 1
    return _Field(
        values=frozenset(values),
        specials=tuple(specials),
        starred=word.startswith("*"),
        canonical=",".join(canonical),
    )


def _parse_special(text: str, index: int, item: str, position: int) -> str | None:
    """The normal spelling of `L`, `5#2` or `L5`; None for a plain item."""
    spec = _SPECS[index]
    if index == _DAY_OF_MONTH and item == "L":
        return "L"
    if index != _DAY_OF_WEEK:
        return None
    if match := _LAST.fullmatch(item):
        return f"L{_number(text, spec, match['day'], position) % 7}"
    if match := _NTH.fullmatch(item):
        nth = int(match["nth"])
        if not 1 <= nth <= _WEEKS:
            _refuse(text, spec.name, position, repr(item), f"the week after # in 1..{_WEEKS}")
        return f"{_number(text, spec, match['day'], position) % 7}#{nth}"
    return None


def _parse_plain(text: str, index: int, item: str, position: int) -> tuple[set[int], str]:
    """Values and normal spelling of `*`, `a`, `a-b`, each with an optional `/step`."""
    spec = _SPECS[index]
    match = _ITEM.fullmatch(item)
    if match is None:
        _refuse(text, spec.name, position, repr(item) if item else "an empty item", _forms(index))
    step = 1 if match["step"] is None else int(match["step"])
    size = spec.top - spec.low + 1
    if not 1 <= step <= size:
        _refuse(text, spec.name, position, f"step {step} in {item!r}", f"a step in 1..{size}")
    stride = "" if match["step"] is None else f"/{step}"
    if match["star"]:
        return set(range(spec.low, spec.top + 1, step)), f"*{stride}"
    low = _number(text, spec, match["low"], position)
    if match["high"] is None:
        # An open step ends at the field's last value; 7 as a start has none after it.
        high = max(low, spec.top) if stride else low
        spelling = f"{low}{stride}" if stride or index != _DAY_OF_WEEK else f"{low % 7}"
    else:
        high = _number(text, spec, match["high"], position)
        spelling = f"{low}-{high}{stride}"
    if low > high:
        _refuse(
            text,
            spec.name,
            position,
            f"the reversed range {item!r}",
            "its lower end first, or two ranges with a comma",
        )
    found = set(range(low, high + 1, step))
    return ({day % 7 for day in found} if index == _DAY_OF_WEEK else found), spelling


def _number(text: str, spec: _Spec, word: str, position: int) -> int:
    number = spec.names.get(word, int(word) if word.isdecimal() else -1)
    if not spec.low <= number <= spec.high:
        names = f" or {', '.join(spec.names)}" if spec.names else ""
        _refuse(text, spec.name, position, repr(word), f"{spec.low}..{spec.high}{names}")
    return number


def _forms(index: int) -> str:
    extra = {_DAY_OF_MONTH: ", L for the last day", _DAY_OF_WEEK: ", 5#2 or L5"}
    return f"*, a value, a range a-b or a step such as */5{extra.get(index, '')}"


def _refuse(text: str, name: str, position: int, found: str, expected: str) -> NoReturn:
    raise ScheduleError(
        f"cron expression {text!r} is refused: {name} field, position {position}: "
        f"found {found}, expected {expected}",
        expression=text,
        field=name,
        position=position,
    )


@dataclass(frozen=True, slots=True)
class _Days:
    """One side of a term: plain values, or special items, never both."""

    values: frozenset[int]
    specials: tuple[str, ...] = ()


_ANY_DAY = _Days(frozenset(range(1, 32)))
_ANY_WEEKDAY = _Days(frozenset(range(7)))


def _terms(fields: list[_Field]) -> list[tuple[_Days, _Days]]:
    """Pairs (days of month, days of week), 0..4: a date matches when both sides of one pair do.

    Both day fields must match when one of them starts with `*`, else either. croniter combines
    `L` and `5#2` with other values in ways of its own, so each kind gets a pair to itself.
    """
    days, weekdays = fields[_DAY_OF_MONTH], fields[_DAY_OF_WEEK]
    day_sides = _sides(days)
    weekday_sides = _sides(weekdays)
    if days.starred or weekdays.starred:
        pairs = [(day, weekday) for day in day_sides for weekday in weekday_sides]
    else:
        pairs = [(day, _ANY_WEEKDAY) for day in day_sides]
        pairs += [(_ANY_DAY, weekday) for weekday in weekday_sides]
    months = fields[3].values
    return [pair for pair in pairs if _has_a_date(pair, months)]


def _sides(parsed: _Field) -> list[_Days]:
    sides = [_Days(parsed.values)] if parsed.values else []
    if parsed.specials:
        sides.append(_Days(frozenset(), parsed.specials))
    return sides


def _has_a_date(pair: tuple[_Days, _Days], months: frozenset[int]) -> bool:
    """Whether any year has such a date; exact, because every date meets every weekday."""
    days, weekdays = pair
    return any(
        _week_fits(weekdays, day, length)
        for month in months
        for length in _lengths(month)
        for day in (days.values or {length})
        if day <= length
    )


def _lengths(month: int) -> tuple[int, ...]:
    if month == _FEBRUARY:
        return 28, 29
    return (30,) if month in _SHORT_MONTHS else (31,)


def _week_fits(weekdays: _Days, day: int, length: int) -> bool:
    if weekdays.values:
        return True
    return any(
        day > length - 7 if item.startswith("L") else (day + 6) // 7 == int(item.partition("#")[2])
        for item in weekdays.specials
    )


def _walker(fields: list[_Field], term: tuple[_Days, _Days]) -> croniter:
    minute, hour, month = (_listed(fields[n].values, _SPECS[n]) for n in (0, 1, 3))
    day, weekday = (
        ",".join(side.specials) or _listed(side.values, _SPECS[n])
        for side, n in zip(term, (_DAY_OF_MONTH, _DAY_OF_WEEK), strict=True)
    )
    return croniter(
        f"{minute} {hour} {day} {month} {weekday}",
        0,  # replaced by each call
        day_or=False,
        max_years_between_matches=_SEARCH_YEARS,
    )


def _listed(values: frozenset[int], spec: _Spec) -> str:
    if len(values) == spec.top - spec.low + 1:
        return "*"
    return ",".join(str(value) for value in sorted(values))
