-- SPDX-License-Identifier: Apache-2.0
-- Statements of alerts and beats, the same for both databases. A section is one statement.

-- name: alert_raise
INSERT INTO alert (kind, op_id, detail, first_ms, last_ms, count, tries, next_ms)
VALUES (:kind, :op_id, :detail, :now, :now, 1, 0, :now)
ON CONFLICT (kind, op_id) DO UPDATE SET
    last_ms = excluded.last_ms,
    count = CASE WHEN alert.over_ms IS NULL THEN alert.count + 1 ELSE 1 END,
    detail = CASE WHEN alert.over_ms IS NULL THEN alert.detail ELSE excluded.detail END,
    first_ms = CASE WHEN alert.over_ms IS NULL THEN alert.first_ms ELSE excluded.first_ms END,
    delivered_ms = CASE WHEN alert.over_ms IS NULL THEN alert.delivered_ms END,
    ack_ms = CASE WHEN alert.over_ms IS NULL THEN alert.ack_ms END,
    ack_by = CASE WHEN alert.over_ms IS NULL THEN alert.ack_by END,
    tries = CASE WHEN alert.over_ms IS NULL THEN alert.tries ELSE 0 END,
    next_ms = CASE WHEN alert.over_ms IS NULL THEN alert.next_ms ELSE excluded.next_ms END,
    over_ms = NULL
RETURNING count

-- name: alert_over
UPDATE alert SET over_ms = :now WHERE kind = :kind AND op_id = :op_id AND over_ms IS NULL

-- name: alerts_answer
UPDATE alert SET over_ms = :now, ack_ms = coalesce(ack_ms, :now), ack_by = coalesce(ack_by, :by)
WHERE op_id = :op_id AND over_ms IS NULL
    AND kind IN ('recovery_deadline_passed', 'no_authority', 'marker_contradiction', 'started_without_end')

-- name: alerts_past
SELECT a.kind, a.op_id FROM alert AS a JOIN operation AS o ON o.op_id = a.op_id
WHERE a.over_ms IS NULL AND (
    (a.kind = 'started_without_end' AND (o.state <> 'DISPATCHING' OR o.lease_ms > :now))
    OR (a.kind IN ('recovery_deadline_passed', 'no_authority', 'marker_contradiction')
        AND o.state IN ('PREPARED', 'DISPATCHING', 'SUCCEEDED', 'FAILED', 'ABANDONED')))
LIMIT :limit

-- name: alerts_pending
SELECT kind, op_id, detail, first_ms, last_ms, count, delivered_ms, ack_ms, ack_by, tries FROM alert
WHERE delivered_ms IS NULL AND ack_ms IS NULL AND over_ms IS NULL AND next_ms <= :now AND tries < :most
ORDER BY next_ms, kind, op_id LIMIT :limit

-- name: alert_take
UPDATE alert SET tries = tries + 1, next_ms = :next_ms WHERE kind = :kind AND op_id = :op_id AND tries = :tries
    AND delivered_ms IS NULL AND ack_ms IS NULL AND over_ms IS NULL

-- name: alert_delivered
UPDATE alert SET delivered_ms = :now WHERE kind = :kind AND op_id = :op_id AND delivered_ms IS NULL

-- Of these kinds each is an event of its own: the next one after it was seen to is news.
-- name: alert_acknowledge
UPDATE alert SET ack_ms = :now, ack_by = :by,
    over_ms = CASE WHEN kind IN ('key_conflict', 'late_contradiction') THEN :now ELSE over_ms END
WHERE kind = :kind AND op_id = :op_id AND ack_ms IS NULL

-- name: alerts_open
SELECT kind, op_id, detail, first_ms, last_ms, count, delivered_ms, ack_ms, ack_by FROM alert
WHERE ack_ms IS NULL AND over_ms IS NULL ORDER BY first_ms DESC, kind, op_id LIMIT :limit

-- name: alerts_all
SELECT kind, op_id, detail, first_ms, last_ms, count, delivered_ms, ack_ms, ack_by FROM alert
ORDER BY first_ms DESC, kind, op_id LIMIT :limit

-- name: alert_counts
SELECT kind, count(*) FROM alert WHERE ack_ms IS NULL AND over_ms IS NULL GROUP BY kind

-- name: alert
SELECT kind, op_id, detail, first_ms, last_ms, count, delivered_ms, ack_ms, ack_by FROM alert
WHERE kind = :kind AND op_id = :op_id

-- name: operations_open
SELECT state, count(*) FROM operation
WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING', 'NEEDS_HUMAN') GROUP BY state

-- name: beat_write
INSERT INTO beat (name, owner, at_ms, every_ms) VALUES (:name, :owner, :now, :every_ms)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, at_ms = excluded.at_ms, every_ms = excluded.every_ms

-- name: beats
SELECT name, owner, at_ms, every_ms FROM beat ORDER BY name

-- name: started_unended
SELECT op_id, owner, lease_ms FROM operation AS o
WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING') AND state = 'DISPATCHING'
    AND next_ms <= :before AND lease_ms <= :before AND NOT EXISTS (
        SELECT 1 FROM alert AS a
        WHERE a.kind = 'started_without_end' AND a.op_id = o.op_id AND a.over_ms IS NULL)
ORDER BY next_ms LIMIT :limit

-- name: unknown_overdue
SELECT op_id, recovery_ms FROM operation AS o
WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING', 'NEEDS_HUMAN')
    AND state IN ('UNKNOWN', 'RECONCILING') AND recovery_ms <= :before AND NOT EXISTS (
        SELECT 1 FROM alert AS a
        WHERE a.kind = 'recovery_deadline_passed' AND a.op_id = o.op_id AND a.over_ms IS NULL)
ORDER BY recovery_ms LIMIT :limit

-- name: alert_stands
SELECT 1 FROM alert WHERE kind = :kind AND op_id = :op_id AND over_ms IS NULL
