"""Durable jobs, recurring tasks and transactional nudges on your own SQLAlchemy engine."""

from threadmill_sa.app import Threadmill as Threadmill
from threadmill_sa.engine.leadership.aleader import AsyncLeader as AsyncLeader
from threadmill_sa.engine.leadership.decorators import leader_only as leader_only
from threadmill_sa.engine.leadership.gated import Tick as Tick
from threadmill_sa.engine.leadership.grant import Grant as Grant
from threadmill_sa.engine.leadership.leader import Leader as Leader
from threadmill_sa.engine.leadership.locks import Lock as Lock
from threadmill_sa.engine.leadership.schedule import ScheduleConfig as ScheduleConfig
from threadmill_sa.engine.leadership.schedule import Strategy as Strategy
from threadmill_sa.engine.leadership.scheduler import AbstractScheduler as AbstractScheduler
from threadmill_sa.engine.leadership.scheduler import LeaderScheduler as LeaderScheduler
from threadmill_sa.engine.leadership.timings import Timings as Timings
from threadmill_sa.engine.processing.context import JobContext as JobContext
from threadmill_sa.errors import JobCancelledError as JobCancelledError
from threadmill_sa.errors import LeadershipLostError as LeadershipLostError
from threadmill_sa.errors import MutexBusyError as MutexBusyError
from threadmill_sa.errors import TaskDisabledError as TaskDisabledError
from threadmill_sa.errors import ThreadmillError as ThreadmillError
from threadmill_sa.errors import UnknownTaskError as UnknownTaskError
from threadmill_sa.model.job import JobId as JobId
from threadmill_sa.model.lease import LossReason as LossReason
from threadmill_sa.model.nudge import EnqueueMode as EnqueueMode
from threadmill_sa.model.nudge import NudgeReceipt as NudgeReceipt
from threadmill_sa.model.recurring import CronOrigin as CronOrigin
from threadmill_sa.model.recurring import CronTaskView as CronTaskView
from threadmill_sa.model.recurring import MissedRunPolicy as MissedRunPolicy
from threadmill_sa.model.retention import Retention as Retention
from threadmill_sa.model.retry import Backoff as Backoff
from threadmill_sa.model.state import JobState as JobState
from threadmill_sa.model.trigger import Cron as Cron
from threadmill_sa.model.trigger import Every as Every

__all__ = [
    "AbstractScheduler",
    "AsyncLeader",
    "Backoff",
    "Cron",
    "CronOrigin",
    "CronTaskView",
    "EnqueueMode",
    "Every",
    "Grant",
    "JobCancelledError",
    "JobContext",
    "JobId",
    "JobState",
    "Leader",
    "LeaderScheduler",
    "LeadershipLostError",
    "Lock",
    "LossReason",
    "MissedRunPolicy",
    "MutexBusyError",
    "NudgeReceipt",
    "Retention",
    "ScheduleConfig",
    "Strategy",
    "TaskDisabledError",
    "Threadmill",
    "ThreadmillError",
    "Tick",
    "Timings",
    "UnknownTaskError",
    "leader_only",
]
