"""Every bound of the library, named with its unit.

Checked in Python before any SQL, the same on every store.
"""

from __future__ import annotations

NAME_MAX_CHARS = 128  # recurring task, queue and handler names
CRON_TEXT_MAX_CHARS = 256  # a cron expression as written
KEY_MAX_BYTES = 256  # UTF-8 bytes of a dedup key
PAYLOAD_MAX_BYTES = 256 * 1024  # encoded payload, UTF-8 bytes
PAYLOAD_MAX_DEPTH = 100  # nested containers in a payload
RESULT_MAX_BYTES = 64 * 1024  # encoded handler result; larger is dropped with a marker
FAILURE_MESSAGE_MAX_BYTES = 32 * 1024  # UTF-8 bytes of a recorded failure
PRIORITY_MIN, PRIORITY_MAX = -(2**31), 2**31 - 1  # 32-bit integer column

CLAIM_BATCH_MAX = 1000  # rows of one claim statement
COMPLETE_BATCH_MAX = 500  # outcomes of one completion statement
INSERT_BATCH_MAX = 1000  # rows of one insert statement; more are sent in turns, one transaction
LIST_MAX = 500  # rows of one list call
LIST_DEFAULT = 50

TICK_PAGE = 1000  # nominated names read at once
MATERIALIZE_BATCH = 100  # tasks of one materializing transaction
CATCH_UP_MAX = 100  # instances of one catch_up task and tick
PROMOTE_BATCH = 500  # delayed jobs made ready by one statement
RECLAIM_BATCH = 100  # orphans taken back by one transaction
FOLD_BATCH = 10_000  # count deltas folded by one transaction
FOLD_ROUNDS_MAX = 50  # such transactions in one turn of the housekeeping
SWEEP_BATCH = 1000  # dead nudges swept by one transaction
COUNT_MAX = 2**31 - 1  # attempts and tokens of one job; more than that is damage
HISTORY_MAX = 100_000  # entries of one job's history on Redis; more than that is damage
RECOUNT_MAX = 10_000  # unfinished jobs that are looked at to check the counter of a task
RETENTION_BATCH = 100  # finished jobs removed by one transaction
RETENTION_ROUNDS_MAX = 50  # such transactions in one turn of the sweep

REVISION_BLOCK = 1000  # revisions of nudges that a producer draws from the sequence at once
NUDGE_ACCEPT_TRIES = 3  # an enable that races the accept is tried again this often
STORE_TRIES = 8  # tries of our own transaction on a conflict or a busy database
STORE_RETRY_MIN_SECONDS, STORE_RETRY_MAX_SECONDS = 0.005, 0.25  # pause between them, jittered
SQLITE_BUSY_SECONDS = 30.0  # the engine waits this long for another writer, then tries again

TICK_SECONDS = 1.0
RELIEVED_TICK_SECONDS = 5.0  # at most, between two ticks while another node keeps house
POLL_SECONDS = 0.5
HEARTBEAT_SECONDS = 15.0
HEARTBEAT_TIMEOUT_SECONDS = 60.0
HEARTBEATS_PER_TIMEOUT = 3  # a timeout shorter than this many heartbeats is refused
GRACE_SECONDS = 30.0
OUTAGE_PAUSE_MAX_SECONDS = 5.0  # longest pause between tries while the store is out

JOB_TIMEOUT_MAX_SECONDS = 100 * 365 * 86_400.0
MAX_ATTEMPTS_MAX = 10_000
MAX_ATTEMPTS_DEFAULT = 5
DELAY_MAX_SECONDS = 100 * 365 * 86_400.0
BACKOFF_MAX_SECONDS = 365 * 86_400.0
RECURRING_BACKOFF_MAX_SECONDS = 60.0  # a recurring instance never backs off longer by default
BROKEN_RETRY_SECONDS = 60.0  # a broken task is looked at again this often
INTERVAL_MIN_SECONDS, INTERVAL_MAX_SECONDS = 1e-3, 100 * 365 * 86_400.0
PREVIEW_MAX = 1000
WORKERS_MAX = 1000

HOUSEKEEPING_SECONDS = 5.0  # reclaim, fold, sweep and stale nodes run this often, or each tick
PROMOTE_ROUNDS_MAX = 20  # promote statements of one tick; the rest waits for the next
RECLAIM_ROUNDS_MAX = 10  # reclaim transactions of one housekeeping pass
NODE_STALE_SECONDS = 600.0  # a node row that has not beaten for so long is forgotten
RETENTION_MIN_SECONDS, RETENTION_MAX_SECONDS = 1.0, 100 * 365 * 86_400.0
RETENTION_SECONDS = 3600.0  # finished jobs whose time has passed are looked for this often
RETENTION_FIRST_SECONDS = 60.0  # and first within this time of a node's start
RETENTION_TURN_SECONDS = 0.2  # of one turn; ticks wait meanwhile, and the next one carries on
OUTAGE_PAUSE_MIN_SECONDS = 0.05  # first pause while the store is out; doubles up to the maximum
COMPLETE_REFUSALS_MAX = 3  # refusals of one outcome before a plain failure is recorded instead
COMPLETE_STOP_SECONDS = 5.0  # after the grace: time to write the last outcomes of a node
UNWIND_SECONDS = 1.0  # after the release: time for cancelled coroutines and idle threads to end
WAIT_MAX_SECONDS = 60.0  # longest single wait of a thread; it looks around and waits again
WAKE_GAP_MIN_SECONDS, WAKE_GAP_MAX_SECONDS = 0.002, 0.05  # between two ticks that wakes asked for
INLINE_RUNS_MAX = 100_000  # attempts of one run_until_idle

HOLDER_MAX_CHARS = 255  # who holds a lease: host, process and a random part
LEASE_TTL_SECONDS = 15.0
LEASE_TTL_MIN_SECONDS, LEASE_TTL_MAX_SECONDS = 0.1, 86_400.0
LEASE_CALL_MAX_SECONDS = 3.0  # default bound of one call to the lease store
LEASE_RETRY_MIN_SECONDS, LEASE_RETRY_MAX_SECONDS = 0.1, 1.0  # pause after a failed call, doubling
LEASE_HINT_SPREAD_SECONDS = 0.05  # those who heard of a release try within this time
LEASE_ATTEMPT_GAP_SECONDS = 0.05  # between two attempts of one contender, whatever the hints
LEASE_RELEASE_TRIES = 3  # of one release; then the lease runs out by itself
LEASE_CALLS_MAX = 3  # calls of one contender that hang at once; further ones fail at once
LEASE_CONNECTIONS_MAX = 4  # connections of a process for its leases, beside the engine's pool
DRAIN_SECONDS = 30.0  # how long a stop waits for work and callbacks of a leader
DRAIN_MAX_SECONDS = 86_400.0
TICK_REPLAY_MAX = 1000  # missed fixed-rate ticks that may be made up for
