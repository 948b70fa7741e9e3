"""What a starting node does about the schema."""

from __future__ import annotations

from enum import StrEnum

from threadmill_sa.errors import InvalidValueError
from threadmill_sa.stores.sql.migrate import SchemaManager


class SchemaMode(StrEnum):
    """How `node`, the worker and `run_until_idle` treat the schema, once, before they start."""

    MIGRATE = "migrate"  # apply what is pending
    VALIDATE = "validate"  # refuse anything but the schema of this release
    NONE = "none"  # look at nothing
    DROP_AND_MIGRATE = "drop-and-migrate"  # destroy our tables; for throw-away databases

    @classmethod
    def parse(cls, value: SchemaMode | str, *, allow_destructive_reset: bool) -> SchemaMode:
        """Return the mode. Raises: InvalidValueError."""
        try:
            mode = cls(value)
        except ValueError:
            words = ", ".join(repr(each.value) for each in cls)
            raise InvalidValueError(
                f"schema_mode must be one of {words}, found {value!r:.200}", value=value
            ) from None
        if mode is cls.DROP_AND_MIGRATE and not allow_destructive_reset:
            raise InvalidValueError(
                "schema_mode 'drop-and-migrate' destroys every job and task: pass"
                " allow_destructive_reset=True as well, or use 'migrate'",
                value=value,
            )
        return mode

    def prepare(self, manager: SchemaManager) -> None:
        """Bring the schema to where this mode wants it. Raises: SchemaError."""
        match self:
            case SchemaMode.MIGRATE:
                manager.migrate()
            case SchemaMode.VALIDATE:
                manager.validate()
            case SchemaMode.DROP_AND_MIGRATE:
                manager.drop_and_migrate(allow_destructive_reset=True)
            case SchemaMode.NONE:
                pass
