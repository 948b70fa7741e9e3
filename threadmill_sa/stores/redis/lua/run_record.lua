-- Records what is committed as an instance of a recurring task starts an attempt.
--
-- KEYS[1] sequences
-- KEYS[2] snapshots
-- ARGV[1] task
-- ARGV[2] job
-- ARGV[3] attempt
-- ARGV[4] now  microseconds since 1970; empty: the server's clock
-- Replies: recorded
-- Cost: O(1)

local sequences, snapshots = KEYS[1], KEYS[2]

--@include clock
--@include records

record_snapshot(ARGV[1], 'run', moment(ARGV[4]), ARGV[2], tonumber(ARGV[3]))
return 'recorded'
