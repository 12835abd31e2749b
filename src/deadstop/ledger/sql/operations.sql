-- SPDX-License-Identifier: Apache-2.0
-- Statements of operations, attempts and evidence, the same for both databases. A section is one statement.

-- name: last_time
SELECT e.at_ms FROM leaf AS l JOIN evidence AS e ON e.op_id = l.op_id AND e.n = l.n ORDER BY l.seq DESC LIMIT 1

-- name: meta
SELECT value FROM meta WHERE name = :name

-- name: set_meta
INSERT INTO meta (name, value) VALUES (:name, :value) ON CONFLICT DO NOTHING

-- name: definition_by_digest
SELECT version FROM definition WHERE tool = :tool AND digest = :digest

-- name: definition_digest
SELECT digest FROM definition WHERE tool = :tool AND version = :version

-- The one that was declared last: the newest, unless an earlier one was declared again since.
-- name: last_definition
SELECT version, body FROM definition WHERE tool = :tool ORDER BY CASE WHEN version = (
        SELECT d.version FROM declared AS d WHERE d.tool = :tool ORDER BY d.n DESC LIMIT 1) THEN 0 ELSE 1 END,
    version DESC LIMIT 1

-- name: declare
INSERT INTO declared (tool, n, version, at_ms)
SELECT :tool, coalesce(max(n), 0) + 1, :version, :at_ms FROM declared WHERE tool = :tool
ON CONFLICT DO NOTHING

-- name: definition
SELECT version, body FROM definition WHERE tool = :tool AND version = :version

-- name: add_definition
INSERT INTO definition (tool, version, digest, body, at_ms)
SELECT :tool, coalesce(max(version), 0) + 1, :digest, :body, :at_ms FROM definition WHERE tool = :tool
ON CONFLICT DO NOTHING

-- name: add_operation
INSERT INTO operation (op_id, scope, key, binding, fingerprint, tool, definition, correlation, target, state, ver, fence,
    attempts, request_ms, recovery_ms, next_ms, queries, created_ms, updated_ms, evidence, head)
VALUES (:op_id, :scope, :key, :binding, :fingerprint, :tool, :definition, :correlation, :target, 'PREPARED', 1, 0,
    0, :request_ms, :recovery_ms, :next_ms, 0, :at_ms, :at_ms, :evidence, :head)
ON CONFLICT DO NOTHING

-- name: operation
SELECT op_id, scope, key, fingerprint, tool, definition, correlation, target, state, ver, fence, owner, lease_ms, attempts,
    request_ms, recovery_ms, next_ms, queries, verdict, reference, first_sent_ms, last_sent_ms, created_ms, updated_ms,
    evidence, head
FROM operation WHERE op_id = :op_id

-- name: lock_operation
SELECT op_id, scope, key, fingerprint, tool, definition, correlation, target, state, ver, fence, owner, lease_ms, attempts,
    request_ms, recovery_ms, next_ms, queries, verdict, reference, first_sent_ms, last_sent_ms, created_ms, updated_ms,
    evidence, head
FROM operation WHERE op_id = :op_id

-- name: lock_operation postgresql
SELECT op_id, scope, key, fingerprint, tool, definition, correlation, target, state, ver, fence, owner, lease_ms, attempts,
    request_ms, recovery_ms, next_ms, queries, verdict, reference, first_sent_ms, last_sent_ms, created_ms, updated_ms,
    evidence, head
FROM operation WHERE op_id = :op_id FOR UPDATE

-- name: lock_to_end
SELECT op_id, scope, key, fingerprint, tool, definition, correlation, target, state, ver, fence, owner, lease_ms, attempts,
    request_ms, recovery_ms, next_ms, queries, verdict, reference, first_sent_ms, last_sent_ms, created_ms, updated_ms,
    evidence, head,
    (SELECT value FROM meta WHERE name = 'events')
FROM operation WHERE op_id = :op_id

-- name: lock_to_end postgresql
SELECT op_id, scope, key, fingerprint, tool, definition, correlation, target, state, ver, fence, owner, lease_ms, attempts,
    request_ms, recovery_ms, next_ms, queries, verdict, reference, first_sent_ms, last_sent_ms, created_ms, updated_ms,
    evidence, head,
    (SELECT value FROM meta WHERE name = 'events')
FROM operation WHERE op_id = :op_id FOR UPDATE OF operation

-- name: op_id_of_key
SELECT op_id FROM operation WHERE scope = :scope AND key = :key

-- name: state_of_key
SELECT state FROM operation WHERE scope = :scope AND key = :key

-- How its last attempt ended, and whether a caller was told more since.
-- name: end_as_told
SELECT e.outcome, (SELECT count(*) FROM evidence AS t WHERE t.op_id = o.op_id AND t.kind = 'answer.told')
FROM operation AS o JOIN attempt_end AS e ON e.op_id = o.op_id AND e.n = o.attempts WHERE o.scope = :scope AND o.key = :key

-- name: op_ids_like
SELECT op_id FROM operation WHERE op_id >= :low AND op_id < :high ORDER BY op_id LIMIT 2

-- name: change_operation
UPDATE operation SET state = :state, ver = :ver, fence = :fence, owner = :owner, lease_ms = :lease_ms,
    attempts = :attempts, request_ms = :request_ms, recovery_ms = :recovery_ms, next_ms = :next_ms, queries = :queries,
    verdict = :verdict, reference = :reference, first_sent_ms = :first_sent_ms, last_sent_ms = :last_sent_ms,
    updated_ms = :updated_ms, evidence = :evidence, head = :head
WHERE op_id = :op_id AND ver = :old_ver AND fence = :old_fence

-- name: set_head
UPDATE operation SET evidence = :evidence, head = :head WHERE op_id = :op_id AND evidence < :evidence

-- name: heartbeat
UPDATE operation SET lease_ms = :lease_ms, next_ms = :lease_ms
WHERE op_id = :op_id AND fence = :fence AND state IN ('DISPATCHING', 'RECONCILING')

-- name: add_attempt
INSERT INTO attempt (op_id, n, fence, owner, started_ms) VALUES (:op_id, :n, :fence, :owner, :started_ms)

-- name: attempt_of_fence
SELECT n FROM attempt WHERE op_id = :op_id AND fence = :fence

-- A reference that came late, and that it is worth asking now.
-- name: look_now
UPDATE operation SET reference = coalesce(:reference, reference), next_ms = :next_ms, evidence = :evidence, head = :head
WHERE op_id = :op_id AND evidence < :evidence

-- name: look_now postgresql
UPDATE operation SET reference = coalesce(CAST(:reference AS text), reference), next_ms = :next_ms,
    evidence = :evidence, head = :head
WHERE op_id = :op_id AND evidence < :evidence

-- name: end_attempt
INSERT INTO attempt_end (op_id, n, ended_ms, outcome, phase, certain, observation, receipt)
VALUES (:op_id, :n, :ended_ms, :outcome, :phase, :certain, :observation, :receipt)
ON CONFLICT DO NOTHING

-- name: attempts
SELECT a.op_id, a.n, a.fence, a.owner, a.started_ms, e.ended_ms, e.outcome, e.phase, e.certain, e.observation, e.receipt
FROM attempt AS a LEFT JOIN attempt_end AS e ON e.op_id = a.op_id AND e.n = a.n WHERE a.op_id = :op_id ORDER BY a.n

-- name: add_evidence
INSERT INTO evidence (op_id, n, kind, at_ms, body, prev, hash) VALUES (:op_id, :n, :kind, :at_ms, :body, :prev, :hash)

-- name: trail
SELECT e.op_id, e.n, e.kind, e.at_ms, e.body, e.prev, e.hash, l.seq
FROM evidence AS e LEFT JOIN leaf AS l ON l.op_id = e.op_id AND l.n = e.n WHERE e.op_id = :op_id ORDER BY e.n

-- name: add_payload
INSERT INTO payload (op_id, name, salt, value) VALUES (:op_id, :name, :salt, :value) ON CONFLICT DO NOTHING

-- name: payload
SELECT salt, value FROM payload WHERE op_id = :op_id AND name = :name

-- name: payload_names
SELECT name FROM payload WHERE op_id = :op_id ORDER BY name

-- name: shred_payload
DELETE FROM payload WHERE op_id = :op_id AND name = :name

-- name: overdue
SELECT op_id FROM operation WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING')
    AND ((state = 'PREPARED' AND request_ms <= :now) OR (state IN ('DISPATCHING', 'RECONCILING') AND lease_ms <= :now)
    OR (state = 'UNKNOWN' AND recovery_ms <= :now)) ORDER BY next_ms LIMIT :limit

-- name: leased
SELECT op_id, owner FROM operation WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING')
    AND state IN ('DISPATCHING', 'RECONCILING')

-- name: due
SELECT op_id FROM operation WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING') AND state = 'UNKNOWN'
    AND next_ms <= :now ORDER BY next_ms LIMIT :limit

-- name: list_operations
SELECT op_id, scope, key, fingerprint, tool, definition, correlation, target, state, ver, fence, owner, lease_ms, attempts,
    request_ms, recovery_ms, next_ms, queries, verdict, reference, first_sent_ms, last_sent_ms, created_ms, updated_ms,
    evidence, head
FROM operation
WHERE (:tool IS NULL OR tool = :tool) AND (:state_a IS NULL OR state IN (:state_a, :state_b, :state_c, :state_d, :state_e,
    :state_f, :state_g, :state_h)) AND created_ms < :before ORDER BY created_ms DESC, op_id DESC LIMIT :limit

-- name: list_operations postgresql
SELECT op_id, scope, key, fingerprint, tool, definition, correlation, target, state, ver, fence, owner, lease_ms, attempts,
    request_ms, recovery_ms, next_ms, queries, verdict, reference, first_sent_ms, last_sent_ms, created_ms, updated_ms,
    evidence, head
FROM operation
WHERE (CAST(:tool AS text) IS NULL OR tool = :tool) AND (CAST(:state_a AS text) IS NULL OR state IN (:state_a, :state_b,
    :state_c, :state_d, :state_e, :state_f, :state_g, :state_h)) AND created_ms < :before
ORDER BY created_ms DESC, op_id DESC LIMIT :limit

-- The same with the words of an index's own condition, so that it is used: few are open among many that are not.
-- name: list_open
SELECT op_id, scope, key, fingerprint, tool, definition, correlation, target, state, ver, fence, owner, lease_ms, attempts,
    request_ms, recovery_ms, next_ms, queries, verdict, reference, first_sent_ms, last_sent_ms, created_ms, updated_ms,
    evidence, head
FROM operation
WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING', 'NEEDS_HUMAN') AND (:tool IS NULL OR tool = :tool) AND (:state_a IS NULL OR state IN (:state_a, :state_b, :state_c, :state_d, :state_e,
    :state_f, :state_g, :state_h)) AND created_ms < :before ORDER BY created_ms DESC, op_id DESC LIMIT :limit

-- name: list_open postgresql
SELECT op_id, scope, key, fingerprint, tool, definition, correlation, target, state, ver, fence, owner, lease_ms, attempts,
    request_ms, recovery_ms, next_ms, queries, verdict, reference, first_sent_ms, last_sent_ms, created_ms, updated_ms,
    evidence, head
FROM operation
WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING', 'NEEDS_HUMAN') AND (CAST(:tool AS text) IS NULL OR tool = :tool) AND (CAST(:state_a AS text) IS NULL OR state IN (:state_a, :state_b,
    :state_c, :state_d, :state_e, :state_f, :state_g, :state_h)) AND created_ms < :before
ORDER BY created_ms DESC, op_id DESC LIMIT :limit

-- name: counts
SELECT state, count(*) FROM operation GROUP BY state

-- name: without_deadline
SELECT op_id FROM operation WHERE (state IN ('DISPATCHING', 'RECONCILING') AND lease_ms IS NULL)
    OR (state IN ('UNKNOWN', 'RECONCILING', 'NEEDS_HUMAN') AND recovery_ms <= 0) OR request_ms <= 0 LIMIT 100

-- name: attempts_without_end
SELECT count(*) FROM attempt AS a JOIN operation AS o ON o.op_id = a.op_id
WHERE NOT (o.state = 'DISPATCHING' AND a.fence = o.fence)
    AND NOT EXISTS (SELECT 1 FROM attempt_end AS e WHERE e.op_id = a.op_id AND e.n = a.n)

-- name: lapsed
SELECT count(*) FROM operation WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING')
    AND ((state = 'PREPARED' AND request_ms < :now) OR (state IN ('DISPATCHING', 'RECONCILING') AND lease_ms < :now)
    OR (state = 'UNKNOWN' AND recovery_ms < :now))
