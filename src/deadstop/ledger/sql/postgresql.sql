-- SPDX-License-Identifier: Apache-2.0
-- Statements in PostgreSQL's own words. `-- quiet` marks those whose answer nobody waits for: they go out with the next one
-- that is asked for, or with COMMIT. They count as having changed one row, so what must change one fails if it does not
-- (1/0), which undoes the transaction: it is then run again. `-- batch` marks those that take many rows at once, each
-- parameter as an array of its values.

-- name: change_operation postgresql
-- quiet
WITH changed AS (
    UPDATE operation SET state = :state, ver = :ver, fence = :fence, owner = :owner, lease_ms = :lease_ms,
        attempts = :attempts, request_ms = :request_ms, recovery_ms = :recovery_ms, next_ms = :next_ms,
        queries = :queries, verdict = :verdict, reference = :reference, first_sent_ms = :first_sent_ms,
        last_sent_ms = :last_sent_ms, updated_ms = :updated_ms, evidence = :evidence, head = :head
    WHERE op_id = :op_id AND ver = :old_ver AND fence = :old_fence RETURNING 1
) SELECT 1 / count(*) FROM changed

-- name: set_head postgresql
-- quiet
WITH changed AS (
    UPDATE operation SET evidence = :evidence, head = :head
    WHERE op_id = :op_id AND evidence < :evidence RETURNING 1
) SELECT 1 / count(*) FROM changed

-- name: end_attempt postgresql
-- quiet
INSERT INTO attempt_end (op_id, n, ended_ms, outcome, phase, certain, observation, receipt)
VALUES (:op_id, :n, :ended_ms, :outcome, :phase, :certain, :observation, :receipt)
ON CONFLICT DO NOTHING

-- name: add_payload postgresql
-- quiet
INSERT INTO payload (op_id, name, salt, value) VALUES (:op_id, :name, :salt, :value) ON CONFLICT DO NOTHING

-- name: log_add postgresql
-- batch
INSERT INTO leaf (seq, op_id, n, hash)
SELECT * FROM unnest(CAST(:seq AS bigint[]), CAST(:op_id AS text[]), CAST(:n AS bigint[]), CAST(:hash AS text[]))

-- name: log_add_node postgresql
-- batch
INSERT INTO node (level, place, hash)
SELECT * FROM unnest(CAST(:level AS bigint[]), CAST(:place AS bigint[]), CAST(:hash AS text[]))
