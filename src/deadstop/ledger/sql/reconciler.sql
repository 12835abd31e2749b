-- SPDX-License-Identifier: Apache-2.0
-- What waits to be asked about, apart for each definition: one authority that does not answer hides no other's.

-- name: due_definitions
SELECT tool, definition FROM operation WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING')
    AND state = 'UNKNOWN' AND next_ms <= :now GROUP BY tool, definition ORDER BY min(next_ms)

-- name: due_of_definition
SELECT op_id FROM operation WHERE state IN ('PREPARED', 'DISPATCHING', 'UNKNOWN', 'RECONCILING')
    AND state = 'UNKNOWN' AND next_ms <= :now AND tool = :tool AND definition = :definition ORDER BY next_ms LIMIT :limit
