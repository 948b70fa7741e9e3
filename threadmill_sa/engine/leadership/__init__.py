"""Who leads: leases held by contenders, locks, and schedules that only the leader runs."""
