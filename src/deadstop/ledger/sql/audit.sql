-- SPDX-License-Identifier: Apache-2.0
-- Statements of the log: its order, its tree, its checkpoints, and what verifies them.

-- name: log_lock
SELECT size, frontier FROM head WHERE id = 1

-- name: log_lock postgresql
SELECT size, frontier FROM head WHERE id = 1 FOR UPDATE

-- name: log_head
SELECT size, frontier FROM head WHERE id = 1

-- name: log_take
SELECT op_id, n, hash FROM (
    SELECT e.op_id, e.n, e.hash, max(e.at_ms) OVER (PARTITION BY e.op_id ORDER BY e.n) AS due
    FROM evidence AS e WHERE NOT EXISTS (SELECT 1 FROM leaf AS l WHERE l.op_id = e.op_id AND l.n = e.n)
) AS waiting ORDER BY due, op_id, n LIMIT :limit

-- Only the first 4096 by the key, which begins with the time of the operation, are looked at and put in order: however many
-- wait, one transaction ends in its time. Of one operation the first come first either way.
-- name: log_take postgresql
WITH first AS MATERIALIZED (
    SELECT op_id, n, ctid AS place FROM unplaced ORDER BY op_id, n LIMIT greatest(:limit, 4096)
), waiting AS (
    SELECT f.op_id, f.n, f.place, e.hash, max(e.at_ms) OVER (PARTITION BY f.op_id ORDER BY f.n) AS due
    FROM first AS f CROSS JOIN LATERAL (
        SELECT hash, at_ms FROM evidence AS e WHERE e.op_id = f.op_id AND e.n = f.n LIMIT 1
    ) AS e
), taken AS MATERIALIZED (
    SELECT * FROM waiting ORDER BY due, op_id COLLATE "C", n LIMIT :limit
), gone AS (
    DELETE FROM unplaced WHERE ctid = ANY (ARRAY(SELECT place FROM taken))
)
SELECT op_id, n, hash FROM taken ORDER BY due, op_id COLLATE "C", n

-- name: log_waits
SELECT 0

-- name: log_waits postgresql
SELECT count(*) FROM (SELECT 1 FROM unplaced LIMIT 1) AS any_one

-- name: log_elect
SELECT 1

-- name: log_elect postgresql
SELECT pg_try_advisory_xact_lock(1684370276, hashtext(current_schema()))::int

-- name: log_add
INSERT INTO leaf (seq, op_id, n, hash) VALUES (:seq, :op_id, :n, :hash)

-- name: log_add_node
INSERT INTO node (level, place, hash) VALUES (:level, :place, :hash)

-- name: log_set_head
UPDATE head SET size = :size, frontier = :frontier WHERE id = 1

-- name: log_leaves
SELECT hash FROM leaf WHERE seq >= :first AND seq < :end ORDER BY seq

-- name: log_nodes
SELECT hash FROM node WHERE level = :level AND place >= :first AND place < :end ORDER BY place

-- name: log_every_node
SELECT level, place, hash FROM node WHERE place >= 0 ORDER BY level, place

-- name: log_add_checkpoint
INSERT INTO checkpoint (size, note, at_ms) VALUES (:size, :note, :at_ms) ON CONFLICT DO NOTHING

-- name: log_checkpoints
SELECT size, note FROM checkpoint ORDER BY size

-- name: log_last_checkpoint
SELECT size, note FROM checkpoint ORDER BY size DESC LIMIT 1

-- name: log_entries
SELECT l.seq, l.op_id, l.n, l.hash, e.hash, e.body, e.at_ms
FROM leaf AS l LEFT JOIN evidence AS e ON e.op_id = l.op_id AND e.n = l.n WHERE l.seq >= :first ORDER BY l.seq LIMIT :limit

-- NULL for a leaf that stands for no entry, or one with another hash.
-- name: log_leaves_of_entries
SELECT l.seq, CASE WHEN e.hash = l.hash THEN l.hash END
FROM leaf AS l LEFT JOIN evidence AS e ON e.op_id = l.op_id AND e.n = l.n WHERE l.seq >= :first ORDER BY l.seq LIMIT :limit

-- name: log_count_leaves
SELECT count(*) FROM leaf

-- name: log_first
SELECT min(seq) FROM leaf

-- name: log_waiting
SELECT '' AS op_id, 0 AS n WHERE 1 = 0

-- name: log_waiting postgresql
SELECT op_id, n FROM unplaced

-- name: log_operations
SELECT op_id, scope, key, binding, fingerprint, tool, definition, correlation, target, state, ver, fence, attempts,
    verdict, reference, evidence, head
FROM operation WHERE op_id > :after ORDER BY op_id LIMIT :limit

-- name: log_trails
SELECT e.op_id, e.n, e.kind, e.at_ms, e.body, e.prev, e.hash, l.seq
FROM evidence AS e LEFT JOIN leaf AS l ON l.op_id = e.op_id AND l.n = e.n
WHERE e.op_id > :after AND e.op_id <= :until ORDER BY e.op_id, e.n

-- name: log_attempts
SELECT op_id, n, fence, owner, started_ms FROM attempt WHERE op_id > :after AND op_id <= :until ORDER BY op_id, n

-- name: log_ends
SELECT op_id, n, ended_ms, outcome, phase, certain, observation, receipt
FROM attempt_end WHERE op_id > :after AND op_id <= :until ORDER BY op_id, n

-- name: log_payloads
SELECT op_id, name, salt, value FROM payload WHERE op_id > :after AND op_id <= :until ORDER BY op_id, name

-- name: log_definitions
SELECT tool, version, digest, body FROM definition ORDER BY tool, version

-- name: log_count_operations
SELECT count(*) FROM operation
