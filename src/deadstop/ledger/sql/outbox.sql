-- SPDX-License-Identifier: Apache-2.0
-- Statements of the outbox, the same for both databases. A section is one statement.

-- name: outbox_lock
SELECT 1

-- name: outbox_lock postgresql
SELECT pg_advisory_xact_lock(hashtextextended(:ordering, 0))

-- name: outbox_unended
SELECT id FROM outbox WHERE state IN ('waiting', 'sending') AND ordering = :ordering ORDER BY position LIMIT 1

-- name: outbox_last
SELECT position, next_ms FROM outbox WHERE ordering = :ordering ORDER BY position DESC LIMIT 1

-- name: outbox_add
INSERT INTO outbox (id, dedup, ordering, position, op_id, url, event, state, fence, tries, next_ms, created_ms)
VALUES (:id, :dedup, :ordering, :position, :op_id, :url, :event, 'waiting', 0, 0, :next_ms, :now)
ON CONFLICT DO NOTHING

-- name: outbox_of_dedup
SELECT id FROM outbox WHERE dedup = :dedup

-- name: outbox_unspread
SELECT id, ordering, op_id, event FROM outbox
WHERE state IN ('waiting', 'sending') AND url IS NULL ORDER BY next_ms, position LIMIT :limit

-- name: outbox_spread
UPDATE outbox SET state = 'sent', next_ms = CASE WHEN next_ms > :now THEN next_ms ELSE :now END
WHERE id = :id AND state = 'waiting' AND url IS NULL

-- name: outbox_receivers
-- From one URL to the next: what waits for its turn is passed over.
WITH RECURSIVE receiver (url) AS (
    SELECT min(url) FROM outbox WHERE state IN ('waiting', 'sending') AND url IS NOT NULL
    UNION ALL
    SELECT (SELECT min(o.url) FROM outbox o WHERE o.state IN ('waiting', 'sending') AND o.url > receiver.url)
    FROM receiver WHERE receiver.url IS NOT NULL
)
SELECT url FROM receiver WHERE url IS NOT NULL AND EXISTS (
    SELECT 1 FROM outbox o WHERE o.state IN ('waiting', 'sending') AND o.url = receiver.url AND o.next_ms <= :now
) LIMIT :limit

-- name: outbox_due
SELECT id, fence, url, event, tries, op_id, ordering FROM outbox
WHERE state IN ('waiting', 'sending') AND url = :url AND next_ms <= :now ORDER BY next_ms, position LIMIT :limit

-- name: outbox_due postgresql
-- Several who take at once do not get the same ones, and then none.
SELECT id, fence, url, event, tries, op_id, ordering FROM outbox
WHERE state IN ('waiting', 'sending') AND url = :url AND next_ms <= :now ORDER BY next_ms, position LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: outbox_take
UPDATE outbox SET state = 'sending', fence = fence + 1, tries = tries + 1, lease_ms = :lease_ms, next_ms = :lease_ms
WHERE id = :id AND fence = :fence AND state IN ('waiting', 'sending')

-- name: outbox_taken
SELECT tries, created_ms, op_id, url FROM outbox WHERE id = :id AND fence = :fence AND state = 'sending'

-- name: outbox_sent
UPDATE outbox SET state = 'sent', lease_ms = NULL, problem = NULL, next_ms = :now
WHERE id = :id AND fence = :fence AND state = 'sending'
RETURNING ordering

-- name: outbox_again
UPDATE outbox SET state = 'waiting', lease_ms = NULL, next_ms = :next_ms, problem = :problem
WHERE id = :id AND fence = :fence AND state = 'sending'

-- name: outbox_give_back
UPDATE outbox SET state = 'waiting', lease_ms = NULL, next_ms = :now, tries = tries - 1
WHERE id = :id AND fence = :fence AND state = 'sending'

-- name: outbox_dies
UPDATE outbox SET state = 'dead', lease_ms = NULL, problem = :problem
WHERE id = :id AND fence = :fence AND state IN ('waiting', 'sending')
RETURNING ordering

-- name: outbox_release
UPDATE outbox SET next_ms = :now WHERE id = :id AND state = 'waiting' AND next_ms = :never

-- name: outbox_revive
UPDATE outbox SET state = 'waiting', fence = fence + 1, tries = 0, next_ms = :now, created_ms = :now
WHERE id = :id AND state = 'dead'

-- name: outbox_dead
SELECT id, op_id, url, tries, problem, created_ms FROM outbox WHERE state = 'dead' ORDER BY created_ms, id LIMIT :limit

-- name: outbox_op
SELECT op_id FROM outbox WHERE id = :id

-- name: outbox_counts
SELECT state, count(*) FROM outbox WHERE state IN ('waiting', 'sending') GROUP BY state
UNION ALL SELECT 'dead', count(*) FROM outbox WHERE state = 'dead'

-- name: outbox_prunable
SELECT 1 FROM outbox WHERE state = 'sent' AND next_ms < :before LIMIT 1

-- name: outbox_prune
DELETE FROM outbox WHERE id IN (
    SELECT id FROM outbox WHERE state = 'sent' AND next_ms < :before ORDER BY next_ms LIMIT :limit
)
