"""Everything Threadmill raises on purpose.

    ThreadmillError
    ├── InvalidValueError            (also ValueError)  fix the argument
    │   ├── InvalidNameError
    │   ├── NaiveDatetimeError
    │   ├── ScheduleError            cron text, zone or interval
    │   └── PayloadError             a value that JSON or the database cannot hold
    │       └── PayloadTooLargeError
    ├── DeclarationError             fix the code that declares jobs and tasks
    │   └── UnknownHandlerError
    ├── RecurringTaskError
    │   ├── UnknownTaskError
    │   └── TaskDisabledError
    ├── JobCancelledError            raised inside a handler: let it pass
    ├── JobRunningError              a node holds the job: let the attempt end first
    ├── LeadershipError
    │   ├── LeadershipLostError      stop acting: the term is over
    │   ├── MutexBusyError           (also TimeoutError)  somebody else holds it
    │   ├── NotLeaderError
    │   └── LockInUseError           a lock is not re-entrant
    ├── JoinError                    the session or connection cannot be used this way
    │   ├── UnsupportedSessionError  (also TypeError)
    │   ├── ForeignSessionError
    │   ├── CannotJoinError
    │   ├── AutocommitError
    │   ├── AfterCommitError
    │   └── SavepointError
    ├── SchemaError                  run the command that the message prints
    │   ├── SchemaMissingError
    │   ├── SchemaBehindError
    │   ├── SchemaAheadError
    │   └── SchemaEditedError
    └── StoreError
        ├── UnsupportedStoreError    dialect or server that is not supported
        ├── StoreUnavailableError    retry later
        ├── StoreAccessError         grant the role what it needs
        └── StoreInvariantError      a bug here, or rows edited by hand

Each class has a stable ``code``; ``docs/errors.md`` has a heading for each. A message says what
failed, on which value, what was expected and the next step. The facts are attributes as well.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ThreadmillError(Exception):
    """Root of all errors of this library; ``code`` is stable across releases."""

    code: ClassVar[str] = "TM-000"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        # Facts read as attributes; `facts` itself is absent while unpickling.
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(cls: type[ThreadmillError], message: str, facts: dict[str, Any]) -> ThreadmillError:
    return cls(message, **facts)


class InvalidValueError(ThreadmillError, ValueError):
    """An argument outside its documented bounds; nothing was written."""

    code = "TM-V01"


class InvalidNameError(InvalidValueError):
    """A name or queue that is empty, too long or holds control characters."""

    code = "TM-V02"


class NaiveDatetimeError(InvalidValueError):
    """A datetime without a zone, where an instant is needed."""

    code = "TM-V03"


class ScheduleError(InvalidValueError):
    """A cron expression, zone or interval that cannot be evaluated."""

    code = "TM-V04"


class PayloadError(InvalidValueError):
    """A payload that JSON or the database cannot hold; ``path`` names the value."""

    code = "TM-V05"


class PayloadTooLargeError(PayloadError):
    """An encoded payload over the size limit."""

    code = "TM-V06"


class DeclarationError(ThreadmillError):
    """A job or recurring task that is declared in a way that cannot work."""

    code = "TM-C01"


class UnknownHandlerError(DeclarationError):
    """A handler that no ``tm.job`` of this process declares."""

    code = "TM-C02"


class RecurringTaskError(ThreadmillError):
    """A recurring task refused the request; ``task`` is its name."""

    code = "TM-R00"


class UnknownTaskError(RecurringTaskError):
    """No recurring task of that name is registered; ``tasks`` lists every bad name."""

    code = "TM-R01"


class TaskDisabledError(RecurringTaskError):
    """The recurring task is paused; a nudge never overrides a pause."""

    code = "TM-R03"


class JobCancelledError(ThreadmillError):
    """The attempt must stop: timeout, lost claim or shutdown; ``reason`` says which."""

    code = "TM-E01"


class JobRunningError(ThreadmillError):
    """A running job cannot be deleted; ``job_id``."""

    code = "TM-E02"


class LeadershipError(ThreadmillError):
    """A mutex that is not held as the call needs it; ``name`` is the mutex."""

    code = "TM-L00"


class LeadershipLostError(LeadershipError):
    """The term is over, so nothing more may be done for it; ``term``, ``reason``."""

    code = "TM-L01"


class MutexBusyError(LeadershipError, TimeoutError):
    """The mutex was not free within the time; ``holder`` is who had it last, when known."""

    code = "TM-L02"


class NotLeaderError(LeadershipError):
    """The call is for the leader alone, and this process does not lead."""

    code = "TM-L03"


class LockInUseError(LeadershipError):
    """This lock object is held already; locks are not re-entrant."""

    code = "TM-L04"


class JoinError(ThreadmillError):
    """The session or connection cannot carry our write in the way asked for."""

    code = "TM-J00"


class UnsupportedSessionError(JoinError, TypeError):
    """No session or connection that Threadmill knows, or an async one in a sync call."""

    code = "TM-J01"


class ForeignSessionError(JoinError):
    """The session would reach another database than the one Threadmill is bound to."""

    code = "TM-J02"


class CannotJoinError(JoinError):
    """This store cannot write inside a SQL transaction."""

    code = "TM-J03"


class AutocommitError(JoinError):
    """The connection commits each statement, so there is no transaction to join."""

    code = "TM-J04"


class AfterCommitError(JoinError):
    """Nothing tells when this transaction really commits; join it instead."""

    code = "TM-J05"


class SavepointError(JoinError):
    """SQLite's driver would let the write survive the outer rollback."""

    code = "TM-J06"


class SchemaError(ThreadmillError):
    """The database's schema is not the one this release needs."""

    code = "TM-S00"


class SchemaMissingError(SchemaError):
    """The database has no Threadmill schema."""

    code = "TM-S01"


class SchemaBehindError(SchemaError):
    """The schema misses revisions that this release needs."""

    code = "TM-S02"


class SchemaAheadError(SchemaError):
    """The schema has revisions that this release does not know."""

    code = "TM-S03"


class SchemaEditedError(SchemaError):
    """A revision is not the one shipped, or what it brought was dropped; ``missing``."""

    code = "TM-S04"


class StoreError(ThreadmillError):
    """The store refused or could not answer."""

    code = "TM-D00"


class UnsupportedStoreError(StoreError):
    """A dialect, driver or server version that is not supported."""

    code = "TM-D01"


class StoreUnavailableError(StoreError):
    """The store could not be reached or stayed busy; retry later."""

    code = "TM-D02"


class StoreInvariantError(StoreError):
    """Rows contradict each other: a bug here, or rows edited by hand."""

    code = "TM-D03"


class StoreAccessError(StoreError):
    """The database role lacks a privilege on our tables."""

    code = "TM-D04"
