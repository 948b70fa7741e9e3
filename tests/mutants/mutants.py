"""Every mutant, by topic. To add one, add an entry to a topic, or a topic to this list."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.topics.accepting import ACCEPTING
from tests.mutants.topics.keeping import KEEPING
from tests.mutants.topics.leading import LEADING
from tests.mutants.topics.processing import PROCESSING
from tests.mutants.topics.recording import RECORDING
from tests.mutants.topics.redis import REDIS
from tests.mutants.topics.redis_damage import REDIS_DAMAGE
from tests.mutants.topics.redis_records import REDIS_RECORDS
from tests.mutants.topics.schema import SCHEMA
from tests.mutants.topics.sessions import SESSIONS
from tests.mutants.topics.showing import SHOWING
from tests.mutants.topics.steering import STEERING
from tests.mutants.topics.ticking import TICKING

MUTANTS: tuple[Mutant, ...] = (
    *ACCEPTING,
    *TICKING,
    *STEERING,
    *SESSIONS,
    *SCHEMA,
    *PROCESSING,
    *KEEPING,
    *RECORDING,
    *REDIS,
    *REDIS_RECORDS,
    *REDIS_DAMAGE,
    *LEADING,
    *SHOWING,
)
