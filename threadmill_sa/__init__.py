"""Durable jobs, recurring tasks and transactional nudges on your own SQLAlchemy engine."""

from threadmill_sa.app import Threadmill as Threadmill
from threadmill_sa.engine.processing.context import JobContext as JobContext
from threadmill_sa.errors import JobCancelledError as JobCancelledError
from threadmill_sa.errors import TaskDisabledError as TaskDisabledError
from threadmill_sa.errors import ThreadmillError as ThreadmillError
from threadmill_sa.errors import UnknownTaskError as UnknownTaskError
from threadmill_sa.model.job import JobId as JobId
from threadmill_sa.model.nudge import EnqueueMode as EnqueueMode
from threadmill_sa.model.nudge import NudgeReceipt as NudgeReceipt
from threadmill_sa.model.recurring import CronOrigin as CronOrigin
from threadmill_sa.model.recurring import CronTaskView as CronTaskView
from threadmill_sa.model.recurring import MissedRunPolicy as MissedRunPolicy
from threadmill_sa.model.retry import Backoff as Backoff
from threadmill_sa.model.state import JobState as JobState
from threadmill_sa.model.trigger import Cron as Cron
from threadmill_sa.model.trigger import Every as Every

__all__ = [
    "Backoff",
    "Cron",
    "CronOrigin",
    "CronTaskView",
    "EnqueueMode",
    "Every",
    "JobCancelledError",
    "JobContext",
    "JobId",
    "JobState",
    "MissedRunPolicy",
    "NudgeReceipt",
    "TaskDisabledError",
    "Threadmill",
    "ThreadmillError",
    "UnknownTaskError",
]
